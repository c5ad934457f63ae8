//! Removes folders that somebody hostile has filled: with more levels than paths have bytes, descriptors or calls on the stack, with any
//! number of entries, and with links.
//!
//! Invariants: no link is followed, and nothing outside of the folder is touched, whoever changes it meanwhile; at most
//! [`DEPTH_MAX`] folders are open at a time, and nothing is kept in memory for an entry.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Removes a folder and everything in it, or a file. It is no error if it does not exist. Blocks.
///
/// # Errors
/// The kernel's.
pub fn remove(root: &Path) -> io::Result<()> {
    remove_while(root, || true)
}

/// As [`remove`], as long as `goes_on` says so; it is asked before each entry. What is left then can be removed later.
///
/// # Errors
/// The kernel's, or [`io::ErrorKind::Interrupted`].
pub fn remove_while(root: &Path, mut goes_on: impl FnMut() -> bool) -> io::Result<()> {
    let top = match open(root, FOLDER, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return fs::remove_file(root),
        Err(error) => return Err(error.into()),
    };
    let mut moved = Moved {
        to: top.as_fd(),
        count: 0,
    };
    let mut vain = 0;
    loop {
        let before = moved.count;
        let again = openat(&top, c".", FOLDER, Mode::empty())?;
        empty(again, DEPTH_MAX, &mut moved, &mut goes_on)?;
        match fs::remove_dir(root) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            removed => return removed,
        }
        // Reading a folder while entries are removed may leave some out, and somebody may still add some.
        vain += u32::from(moved.count == before);
        if vain > VAIN_MAX {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
    }
}

/// The folders that were too deep, and are now in the root.
struct Moved<'a> {
    to: BorrowedFd<'a>,
    count: u64,
}

impl Moved<'_> {
    fn add(&mut self, folder: BorrowedFd<'_>, name: &CString) -> io::Result<()> {
        loop {
            let place = format!(".removed-{}", self.count);
            self.count += 1;
            match renameat(folder, name.as_c_str(), self.to, place.as_str()) {
                // There is something of this name already.
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
                renamed => return Ok(renamed?),
            }
        }
    }
}

/// Removes what is in a folder. Folders that are deeper than `levels` are moved.
fn empty(
    folder: OwnedFd,
    levels: u32,
    moved: &mut Moved<'_>,
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<()> {
    let mut folder = Dir::from_fd(folder)?;
    // The iterator borrows the folder.
    let at = folder.as_fd().try_clone_to_owned()?;
    for entry in folder.iter() {
        let name = entry?.file_name().to_owned();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if !goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match unlinkat(&at, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => continue,
            // unlink(2): a folder; POSIX and some file systems say EPERM.
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        if levels == 0 {
            moved.add(at.as_fd(), &name)?;
            continue;
        }
        let inner = openat(&at, name.as_c_str(), FOLDER, Mode::empty())?;
        empty(inner, levels - 1, moved, goes_on)?;
        match unlinkat(&at, name.as_c_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

const FOLDER: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Levels of folders that are removed in their place.
const DEPTH_MAX: u32 = 16;
/// Passes that have moved nothing and left something.
const VAIN_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::mkdirat;

    use super::*;

    /// Folders in each other, with a file and a link in each.
    fn nest(root: &Path, levels: u32) {
        let mut at = open(root, FOLDER, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&at, c"deeper", Mode::S_IRWXU).unwrap();
            nix::unistd::symlinkat(c"/", &at, c"link").unwrap();
            at = openat(&at, c"deeper", FOLDER, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn folders_of_any_depth_are_removed_and_links_not_followed() {
        let kept = tempfile_dir("kept");
        fs::write(kept.join("file"), "kept").unwrap();
        let root = tempfile_dir("root");
        nest(&root, 20_000);
        for (number, name) in ["a", "b", ".removed-0"].into_iter().enumerate() {
            let folder = root.join(name);
            fs::create_dir_all(folder.join("in/it")).unwrap();
            fs::write(folder.join(format!("in/it/{number}")), "").unwrap();
            symlink(&kept, folder.join("outside")).unwrap();
        }
        fs::write(root.join(".removed-1"), "").unwrap();
        remove(&root).unwrap();
        assert!(!root.exists() && kept.join("file").exists());
        remove(&root).unwrap();
        // A link is removed, and not what it leads to.
        symlink(&kept, &root).unwrap();
        remove(&root).unwrap();
        assert!(!root.exists() && root.symlink_metadata().is_err());
        fs::write(&root, "a file").unwrap();
        remove(&root).unwrap();
        assert!(!root.exists() && kept.join("file").exists());
        remove(&kept).unwrap();
    }

    #[test]
    fn a_removal_that_is_interrupted_goes_on_later() {
        let root = tempfile_dir("parts");
        nest(&root, 500);
        let mut turns = 0;
        loop {
            let mut left = 100;
            let removed = remove_while(&root, || {
                left -= 1;
                left >= 0
            });
            turns += 1;
            match removed {
                Ok(()) => break,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Interrupted),
            }
        }
        assert!(!root.exists());
        assert!((10..100).contains(&turns), "{turns}");
    }

    fn tempfile_dir(name: &str) -> std::path::PathBuf {
        // Disks take milliseconds for each folder.
        let path = Path::new("/dev/shm").join(format!("pilot-tree-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }
}
