//! A file without a name: written from its start to its end, then mapped (O_TMPFILE in open(2), mmap(2)). Nobody else can open it,
//! so nobody can change or shorten it under the mapping. The kernel takes back its room when the last of file and mapping is gone,
//! even if the process is killed.
//!
//! Not guarded against: a disk that cannot read back what it has stored. The kernel then ends a process that touches that part
//! of a mapping (SIGBUS).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

/// See the module.
#[derive(Debug)]
pub struct Scratch {
    file: File,
    len: usize,
}

impl Scratch {
    /// An empty file on the file system of this folder.
    ///
    /// # Errors
    /// The kernel's: `EOPNOTSUPP` if the file system has no files without names, `ENOSPC`, `EMFILE`.
    pub fn create_in(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            // O_EXCL: it can never get a name (linkat(2)).
            .custom_flags(libc::O_TMPFILE | libc::O_EXCL)
            .open(dir)?;
        Ok(Self { file, len: 0 })
    }

    /// Writes bytes at its end.
    ///
    /// # Errors
    /// The kernel's: `ENOSPC`, `EDQUOT`. Some of the bytes may have been written, so the file is of no more use.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.len += bytes.len();
        Ok(())
    }

    /// How many bytes were written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its content as memory that can only be read. The kernel reads it from the disk if it is not in the page cache any more.
    ///
    /// # Errors
    /// The kernel's: `ENOMEM` if the process has too many mappings.
    pub fn map(self) -> io::Result<Mapping> {
        let Some(len) = NonZeroUsize::new(self.len) else {
            return Ok(Mapping { mapped: None });
        };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced. The descriptor is open.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len.get(),
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                self.file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        // The pages are about to be read. Only advice, so its error does not matter.
        // SAFETY: this range has just been mapped.
        unsafe { libc::madvise(at.as_ptr().cast(), len.get(), libc::MADV_WILLNEED) };
        Ok(Mapping {
            mapped: Some((at, len)),
        })
    }
}

/// The content of a [`Scratch`], until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    /// `None`: it is empty, which cannot be mapped.
    mapped: Option<(NonNull<u8>, NonZeroUsize)>,
}

// SAFETY: the memory is only read, and nobody can change it: the file has no name, and `Scratch::map` has dropped its descriptor.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        match self.mapped {
            // SAFETY: the range was mapped for reading with this length, the file is at least as long, nobody can change it (see the
            // module), and it stays mapped as long as `self`.
            Some((at, len)) => unsafe { slice::from_raw_parts(at.as_ptr(), len.get()) },
            None => &[],
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some((at, len)) = self.mapped {
            // SAFETY: the range was mapped by `Scratch::map` and belongs to `self` alone; no reference outlives `self`.
            unsafe { libc::munmap(at.as_ptr().cast(), len.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_written_is_mapped_and_the_file_has_no_name() {
        let dir = std::env::temp_dir().join(format!("pilot-scratch-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut scratch = Scratch::create_in(&dir).unwrap();
        scratch.append(b"slow ").unwrap();
        scratch.append(&[b'x'; 10_000]).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
        assert_eq!(scratch.len(), 10_005);
        let mapping = scratch.map().unwrap();
        let bytes = mapping.as_ref();
        assert!(bytes.starts_with(b"slow x"));
        assert_eq!(bytes.len(), 10_005);
    }

    #[test]
    fn an_empty_file_is_an_empty_mapping() {
        let scratch = Scratch::create_in(&std::env::temp_dir()).unwrap();
        assert!(scratch.is_empty());
        assert_eq!(scratch.map().unwrap().as_ref(), b"");
    }
}
