//! Which processes are in a PID namespace. A cgroup lists its processes; without cgroups, those of a sandbox are found in `/proc`, which has
//! all processes of the machine.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::living_thread;

/// Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessTable {
    /// Guards the result of the last look. Held during a look, so that nobody else looks meanwhile.
    last: Arc<Mutex<Option<Look>>>,
}

#[derive(Debug)]
struct Look {
    /// The PID namespaces of the processes, by inode. A process never changes its own.
    namespaces: HashMap<u32, u64>,
    /// When nothing was taken over from the look before. Ids are used again.
    anew: Instant,
    /// Until when nobody looks again.
    good_until: Instant,
}

impl ProcessTable {
    /// The ids of the processes in this namespace, but not of those in namespaces inside it. Blocks. With many thousands of processes, it
    /// is what there was a moment ago: looking takes a few percent of a CPU then.
    pub(crate) fn in_namespace(&self, namespace: u64) -> Vec<u32> {
        let mut last = self.last.lock();
        let look = match last.take() {
            Some(look) if Instant::now() < look.good_until => look,
            before => Look::after(before),
        };
        let members = look.namespaces.iter();
        let members = members.filter(|(_, of)| **of == namespace);
        let members = members.map(|(pid, _)| *pid).collect();
        *last = Some(look);
        members
    }
}

impl Look {
    fn after(before: Option<Self>) -> Self {
        let begun = Instant::now();
        let before = before.filter(|look| begun.duration_since(look.anew) < ANEW_EVERY);
        let (known, anew) = before.map_or_else(
            || (HashMap::new(), begun),
            |look| (look.namespaces, look.anew),
        );
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let namespaces = pids.filter_map(|pid| {
            let namespace = known.get(&pid).copied().or_else(|| namespace_of(pid))?;
            Some((pid, namespace))
        });
        let namespaces = namespaces.collect();
        let took = begun.elapsed();
        let pause = match took > LONG {
            true => took * PAUSES_PER_LOOK,
            false => Duration::ZERO,
        };
        Self {
            namespaces,
            anew,
            good_until: begun + took + pause,
        }
    }
}

/// `None`: the process has ended, or belongs to somebody else.
fn namespace_of(pid: u32) -> Option<u64> {
    let inode = |process: &Path| fs::metadata(process.join("ns/pid")).map(|found| found.ino());
    match inode(Path::new(&format!("/proc/{pid}"))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            inode(&living_thread::folder(pid)?).ok()
        }
        found => found.ok(),
    }
}

const ANEW_EVERY: Duration = Duration::from_secs(1);
/// Longer than a look at some thousand processes.
const LONG: Duration = Duration::from_millis(10);
/// So that long looks take one twentieth of the time.
const PAUSES_PER_LOOK: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_namespace_and_by_no_other() {
        let own = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        let table = ProcessTable::default();
        assert!(table.in_namespace(own).contains(&std::process::id()));
        assert!(table.in_namespace(0).is_empty());
    }

    #[test]
    fn a_look_sees_what_has_begun_and_ended_since_the_last_one() {
        let own = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        let look = Look::after(None);
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let look = Look::after(Some(look));
        assert_eq!(look.namespaces.get(&child.id()), Some(&own));
        drop(child.stdin.take());
        child.wait().unwrap();
        let look = Look::after(Some(look));
        assert_eq!(look.namespaces.get(&child.id()), None);
    }
}
