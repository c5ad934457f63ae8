//! Memory as a file: written once, sealed, then mapped by other processes (memfd_create(2)).

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An empty file in memory, which can be sealed.
///
/// # Errors
/// The kernel's: too many open files.
pub fn create(name: &CStr) -> io::Result<File> {
    // SAFETY: the name is NUL-terminated and lives through the call.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, so this is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// As [`create`], for a program that is to be executed.
///
/// # Errors
/// The kernel's: too many open files, or executables in memory are forbidden (sysctl `vm.memfd_noexec`).
pub fn create_executable(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and need none.
    let fd = [flags | MFD_EXEC, flags].into_iter().find_map(|flags| {
        // SAFETY: the name is NUL-terminated and lives through the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        let is_unknown = fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        (!is_unknown).then_some(fd)
    });
    match fd {
        // SAFETY: the kernel has just made this descriptor, so this is its only owner.
        Some(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `MFD_EXEC` of `linux/memfd.h`.
const MFD_EXEC: libc::c_uint = 0x10;

/// A file of `len` zeros in memory. Nobody can change its length; its content can be sealed later. [`is_used_elsewhere`] notices who has
/// this descriptor.
///
/// # Errors
/// The kernel's: too many open files; out of memory.
pub fn create_sized(name: &CStr, len: u64) -> io::Result<File> {
    let file = create(name)?;
    file.set_len(len)?;
    add_seals(file.as_fd(), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    // Opened again: the kernel does not count the descriptor of memfd_create(2) as a writer (`alloc_file` in fs/file_table.c), so
    // [`is_used_elsewhere`] would not notice it.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(true).open(path)
}

/// Fixes length and content for ever, for everybody who has the file or will get it.
///
/// # Errors
/// The kernel's: `EBUSY` while somebody has mapped it for writing.
pub fn seal(file: BorrowedFd<'_>) -> io::Result<()> {
    add_seals(
        file,
        libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL,
    )
}

/// As [`seal`], for a file that others read already: it neither waits for them nor fails because of what they do. The caller knows that
/// nobody has ever had another descriptor that writes, nor has the file mapped for writing. `F_SEAL_FUTURE_WRITE` forbids both from now
/// on (fcntl(2), Linux 5.1), and, unlike `F_SEAL_WRITE`, does not look for pages that somebody reads directly (`memfd_wait_for_pins` in
/// mm/memfd.c).
///
/// # Errors
/// The kernel's.
pub fn seal_while_read(file: BorrowedFd<'_>) -> io::Result<()> {
    add_seals(
        file,
        libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL,
    )
}

fn add_seals(file: BorrowedFd<'_>, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The file opened once more, for reading: an open file description of its own, with its own offset.
///
/// # Errors
/// The kernel's.
pub fn reopen(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(File::open(path)?.into())
}

/// Whether somebody else has the file open or mapped: any open file description but that of `file`, which must come from
/// [`reopen`] and have no duplicate elsewhere. Asks for a write lease, which the kernel gives only if there is none (fcntl(2),
/// "Leases"), and returns it.
#[must_use]
pub fn is_used_elsewhere(file: BorrowedFd<'_>) -> bool {
    let lease = |kind: libc::c_int| {
        // SAFETY: integers only.
        unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETLEASE, kind) }
    };
    if lease(libc::F_WRLCK) < 0 {
        return io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
    }
    lease(libc::F_UNLCK);
    false
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_sealed_file_cannot_change() {
        let mut file = create(c"test").unwrap();
        file.write_all(b"pixels").unwrap();
        seal(file.as_fd()).unwrap();
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(1).is_err() && file.set_len(10).is_err());
        let mut text = String::new();
        File::from(reopen(file.as_fd()).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "pixels");
    }

    #[test]
    fn a_file_that_others_read_is_sealed_and_they_cannot_prevent_it() {
        let file = create(c"test").unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let reader = reopen(file.as_fd()).unwrap();
        // SAFETY: the kernel chooses the place, and nothing reads or writes it.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                reader.as_raw_fd(),
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        seal_while_read(file.as_fd()).unwrap();
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(1).is_err());
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        assert!(again.write_at(b"x", 0).is_err());
        // SAFETY: as above.
        let writable = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                again.as_raw_fd(),
                0,
            )
        };
        assert_eq!(writable, libc::MAP_FAILED);
        // SAFETY: it was mapped above and is not used.
        assert_eq!(unsafe { libc::munmap(mapped, 8192) }, 0);
    }

    #[test]
    fn a_sized_file_keeps_its_length_and_takes_content_until_it_is_sealed() {
        let file = create_sized(c"test", 6).unwrap();
        assert!(file.set_len(5).is_err() && file.set_len(7).is_err());
        file.write_all_at(b"pixels", 0).unwrap();
        assert!(file.write_at(b"x", 6).is_err());
        seal(file.as_fd()).unwrap();
        assert!(file.write_at(b"x", 0).is_err());
    }

    #[test]
    fn what_is_mapped_for_writing_cannot_be_sealed() {
        let file = create_sized(c"test", 4096).unwrap();
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the kernel chooses the place, and nothing reads or writes it.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                read_write,
                shared,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        let refused = seal(file.as_fd()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        // SAFETY: it was mapped above and is not used.
        assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
        seal(file.as_fd()).unwrap();
    }

    #[test]
    fn it_is_known_whether_somebody_else_has_the_file() {
        let ours = reopen(create(c"test").unwrap().as_fd()).unwrap();
        assert!(!is_used_elsewhere(ours.as_fd()));
        let theirs = reopen(ours.as_fd()).unwrap();
        assert!(is_used_elsewhere(ours.as_fd()));
        drop(theirs);
        assert!(!is_used_elsewhere(ours.as_fd()));
        let writer = create_sized(c"test", 4096).unwrap();
        let ours = reopen(writer.as_fd()).unwrap();
        let theirs = writer.try_clone().unwrap();
        drop(writer);
        assert!(is_used_elsewhere(ours.as_fd()), "it can still be written");
        drop(theirs);
        assert!(!is_used_elsewhere(ours.as_fd()));
    }
}
