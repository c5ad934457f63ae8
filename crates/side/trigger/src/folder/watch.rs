//! A watch of a folder (inotify(7)).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;

use inotify::{EventMask, Inotify, WatchMask};
use tokio::io::unix::AsyncFd;

/// What happened in a folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Files of these names were written, came or went.
    Names(BTreeSet<OsString>),
    /// Too much happened: nobody knows what.
    Lost,
    /// The folder is not there any more.
    Gone,
}

/// A watch of one folder, without those in it.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: AsyncFd<Inotify>,
}

impl Watch {
    /// # Errors
    /// The kernel's; above all, too many watches (`fs.inotify.max_user_instances`).
    pub(super) fn begin(folder: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        inotify.watches().add(folder, mask)?;
        #[expect(
            deprecated,
            reason = "it is safe for a type that never closes or changes its descriptor, as this one; the other way needs unsafe code"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self { inotify })
    }

    /// What happened since the last call; waits until something does.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) async fn next(&mut self) -> io::Result<Seen> {
        let mut buffer = [0; BUFFER_LEN];
        loop {
            let mut ready = self.inotify.readable_mut().await?;
            let events = match ready.get_inner_mut().read_events(&mut buffer) {
                Ok(events) => events,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut names = BTreeSet::new();
            for event in events {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    return Ok(Seen::Lost);
                }
                let ends = EventMask::DELETE_SELF
                    | EventMask::MOVE_SELF
                    | EventMask::UNMOUNT
                    | EventMask::IGNORED;
                if event.mask.intersects(ends) {
                    return Ok(Seen::Gone);
                }
                if let Some(name) = event.name {
                    names.insert(name.to_owned());
                }
            }
            if !names.is_empty() {
                return Ok(Seen::Names(names));
            }
        }
    }
}

/// Room for about a hundred events.
const BUFFER_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_seen_when_they_are_closed_and_the_end_of_the_folder_too() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("in");
        std::fs::create_dir(&folder).unwrap();
        let mut watch = Watch::begin(&folder).unwrap();
        std::fs::write(folder.join("a"), "1").unwrap();
        let seen = watch.next().await.unwrap();
        assert_eq!(seen, Seen::Names(["a".into()].into()));
        std::fs::rename(&folder, parent.path().join("other")).unwrap();
        assert_eq!(watch.next().await.unwrap(), Seen::Gone);
    }
}
