//! The epoll instances of this process (epoll(7)), for looking at one that a library made and does not show.

use std::collections::BTreeSet;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::{fs, io};

/// Runs `open`, and returns duplicates of the epoll instances that were open after it and not before, in the order of their
/// descriptors. Call it while no other thread opens or closes descriptors.
///
/// # Errors
/// `/proc/self/fd` cannot be read, or the kernel is out of descriptors.
pub fn opened_by<T>(open: impl FnOnce() -> T) -> io::Result<(T, Vec<OwnedFd>)> {
    let before = instances()?;
    let opened = open();
    let new = instances()?
        .difference(&before)
        .copied()
        .collect::<Vec<_>>();
    let duplicates = new.into_iter().map(duplicate);
    Ok((opened, duplicates.collect::<io::Result<_>>()?))
}

/// The descriptors of this process that are epoll instances (proc_pid_fd(5)).
fn instances() -> io::Result<BTreeSet<RawFd>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_epoll = fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]");
        if let Some(number) = entry.file_name().to_str().filter(|_| is_epoll) {
            found.extend(number.parse::<RawFd>());
        }
    }
    Ok(found)
}

fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers; that the descriptor is not open is an error.
    let new = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::epoll::{Epoll, EpollCreateFlags};

    use super::*;

    #[test]
    fn a_new_instance_is_found_and_an_older_one_is_not() {
        let make = || Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let older = make();
        let (new, found) = opened_by(make).unwrap();
        let [found] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_ne!(found.as_raw_fd(), new.0.as_raw_fd());
        assert_ne!(found.as_raw_fd(), older.0.as_raw_fd());
        assert_eq!(opened_by(|| ()).unwrap().1.len(), 0);
    }
}
