//! The process ids inside sandboxes. Each sandbox is a PID namespace, in which the kernel would give every worker the id 2, and
//! its template too. Libraries that detect a fork by a changed `getpid()` would not see it: OpenSSL would make the same "random" key
//! in every worker, and a connection pool would use a connection of another process.
//!
//! So the first process of each use of a sandbox has an id that no other running worker or template has inside its own sandbox. A
//! template outlives its workers, so no worker ever has an id of a template that it was forked from.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::ports::StartError;

use crate::message::{Folders, Usage};

/// The ids that can be given: above those that the kernel leaves out when it wraps around (`RESERVED_PIDS` in kernel/pid.c), and
/// below the smallest default of `kernel.pid_max`. A lower `kernel.pid_max` lowers the end.
const RANGE: std::ops::Range<u32> = 301..32_700;

/// Ids that are left for the processes which the first one starts.
const ROOM_ABOVE: u32 = 68;

/// Where an init sets the last id that was used in its namespace (pid_namespaces(7)).
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Gives ids. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct ProcessIds {
    range: std::ops::Range<u32>,
    state: Arc<Mutex<GivenIds>>,
}

#[derive(Debug, Default)]
struct GivenIds {
    given: HashSet<u32>,
    /// Given last. Ids are given in turn, so that one is not given again soon.
    last: u32,
}

/// An id of one sandbox. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct FirstPid {
    number: u32,
    ids: ProcessIds,
}

impl ProcessIds {
    /// Those of this machine.
    pub(crate) fn probe() -> Self {
        let most = fs::read_to_string("/proc/sys/kernel/pid_max").ok();
        let most = most.and_then(|text| text.trim().parse::<u32>().ok());
        let end = most.map_or(RANGE.end, |most| {
            most.saturating_sub(ROOM_ABOVE).min(RANGE.end)
        });
        Self {
            range: RANGE.start..end.max(RANGE.start + 1),
            state: Arc::default(),
        }
    }

    /// An id that nobody has.
    ///
    /// # Errors
    /// All of them are given.
    pub(crate) fn take(&self) -> Result<FirstPid, StartError> {
        let mut state = self.state.lock();
        let range = self.range.clone();
        let after = state.last.saturating_add(1).max(range.start);
        let mut free = (after..range.end).chain(range.start..after.min(range.end));
        let number = free
            .find(|number| !state.given.contains(number))
            .ok_or_else(|| StartError::Sandbox {
                problem: format!("all of {} process ids are in use", range.len()),
            })?;
        state.given.insert(number);
        state.last = number;
        Ok(FirstPid {
            number,
            ids: self.clone(),
        })
    }
}

impl FirstPid {
    pub(crate) fn usage(&self, folders: Folders) -> Usage {
        Usage {
            folders,
            first_pid: self.number,
        }
    }
}

impl Drop for FirstPid {
    fn drop(&mut self) {
        self.ids.state.lock().given.remove(&self.number);
    }
}

/// Called by an init: the next process in its PID namespace gets the id `first`.
///
/// # Errors
/// The kernel's. It is no error that the kernel does not have the setting: [`available`] says so at the daemon's start.
pub(crate) fn begin_at(first: u32) -> io::Result<()> {
    match fs::write(LAST_PID, (first - 1).to_string()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

/// Whether the kernel can set the next id (`CONFIG_CHECKPOINT_RESTORE`, which distributions turn on).
pub(crate) fn available() -> bool {
    fs::exists(LAST_PID).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_one_id_and_an_id_is_not_given_again_at_once() {
        let ids = ProcessIds::probe();
        let first = ids.take().unwrap();
        let second = ids.take().unwrap();
        assert_ne!(first.number, second.number);
        let gone = first.number;
        drop(first);
        assert_ne!(ids.take().unwrap().number, gone);
    }

    #[test]
    fn all_are_given_before_there_is_none_left_and_those_given_back_can_be_had_again() {
        let ids = ProcessIds::probe();
        let mut held: Vec<_> = ids.range.clone().map(|_| ids.take().unwrap()).collect();
        assert!(ids.take().is_err());
        let free = held.swap_remove(77).number;
        assert_eq!(ids.take().unwrap().number, free);
    }
}
