//! Unpacks a zip file into a new folder. Zip files come from elsewhere, so nothing in them is trusted: names are plain paths below the
//! folder, nothing is written through a link, and sizes and numbers are limited by what is unpacked, not by what the zip says.
//!
//! Symbolic links, which zip files of libraries often have, are made last and as they are, wherever they lead. Nothing here follows
//! them: packing stores the links themselves.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use pilot_deploy::ArchiveLimits;
use pilot_model::size::Size;
use zip::ZipArchive;
use zip::result::ZipError;

/// Why a zip file cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnzipError {
    /// It is not a zip file, or a damaged one.
    #[error("is not a zip file that can be read ({problem}); a layer is a folder or a zip file")]
    Unreadable {
        /// The library's message.
        problem: String,
    },
    /// An entry that is not allowed.
    #[error("the entry '{entry}' {problem}")]
    Entry {
        /// Its name, made printable.
        entry: String,
        /// What is wrong, and what to change.
        problem: String,
    },
    /// Too large, or too many entries.
    #[error("{problem}")]
    TooLarge {
        /// Which limit.
        problem: String,
    },
    /// The disk failed.
    #[error("cannot unpack to {}: {error}", path.display())]
    Disk {
        /// The path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Unpacks the zip file into `folder`, which must be empty.
///
/// # Errors
/// See [`UnzipError`].
pub(super) fn unzip(path: &Path, folder: &Path) -> Result<(), UnzipError> {
    unzip_within(path, folder, &ArchiveLimits::DEFAULT)
}

fn unzip_within(path: &Path, folder: &Path, limits: &ArchiveLimits) -> Result<(), UnzipError> {
    let file = File::open(path).map_err(|error| unreadable(&error.into()))?;
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|error| unreadable(&error))?;
    // Names that occur twice, entries that overlap, and files that the list of entries hides. The library keeps only one entry of
    // each name, so they cannot be seen below.
    zip.validate_header_consistency()
        .map_err(|error| unreadable(&error))?;
    let mut unzipping = Unzipping {
        folder,
        limits,
        files: BTreeSet::new(),
        folders: BTreeSet::new(),
        links: Vec::new(),
        bytes: 0,
    };
    for at in 0..zip.len() {
        let mut entry = zip.by_index(at).map_err(|error| unreadable(&error))?;
        let (raw, mode) = (entry.name_raw().to_vec(), entry.unix_mode().unwrap_or(0));
        unzipping.entry(&raw, mode, &mut entry)?;
    }
    unzipping.make_links()
}

struct Unzipping<'a> {
    folder: &'a Path,
    limits: &'a ArchiveLimits,
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
    /// Links that are not made yet, with their targets.
    links: Vec<(PathBuf, PathBuf)>,
    bytes: u64,
}

impl Unzipping<'_> {
    fn entry(&mut self, raw: &[u8], mode: u32, content: &mut impl Read) -> Result<(), UnzipError> {
        let path = checked_path(raw)?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        if self.files.len() + self.folders.len() >= self.limits.entries_max {
            return Err(UnzipError::TooLarge {
                problem: format!(
                    "has more than {} entries; leave out what the function does not need",
                    self.limits.entries_max
                ),
            });
        }
        let kind = mode & FILE_KIND;
        if raw.ends_with(b"/") || kind == FOLDER {
            return self.make_folders(&path);
        }
        if let Some(parent) = path.parent() {
            self.make_folders(parent)?;
        }
        if self.files.contains(&path) || self.folders.contains(&path) {
            return Err(wrong(&path, "appears twice; pack the layer again"));
        }
        match kind {
            LINK => {
                self.links
                    .push((path.clone(), link_target(&path, content)?));
            }
            // Zip files that were not made on Unix have no kind.
            0 | REGULAR => self.write(&path, mode, content)?,
            _ => return Err(wrong(&path, "is a device or pipe; leave it out")),
        }
        self.files.insert(path);
        Ok(())
    }

    /// Only these folders are written to: none of them is a link.
    fn make_folders(&mut self, path: &Path) -> Result<(), UnzipError> {
        let ancestors = path.ancestors().filter(|path| !path.as_os_str().is_empty());
        let ancestors: Vec<&Path> = ancestors.collect();
        for folder in ancestors.into_iter().rev() {
            if self.files.contains(folder) {
                let problem = format!("lies below '{}', which is a file", folder.display());
                return Err(wrong(path, &problem));
            }
            if self.folders.insert(folder.to_owned()) {
                let full = self.folder.join(folder);
                fs::create_dir(&full).map_err(|error| disk(full, error))?;
            }
        }
        Ok(())
    }

    fn write(&mut self, path: &Path, mode: u32, content: &mut impl Read) -> Result<(), UnzipError> {
        let full = self.folder.join(path);
        let mode = if mode & 0o111 == 0 { 0o600 } else { 0o700 };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&full)
            .map_err(|error| disk(full.clone(), error))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = content
                .read(&mut buffer)
                .map_err(|error| wrong(path, &format!("cannot be read: {error}")))?;
            if count == 0 {
                return Ok(());
            }
            self.bytes += count as u64;
            if self.bytes > self.limits.unpacked_bytes_max {
                return Err(UnzipError::TooLarge {
                    problem: format!(
                        "is larger than the limit of {} when it is unpacked (it was at '{}'); leave out what the function does \
                         not need",
                        Size(self.limits.unpacked_bytes_max),
                        shown(path)
                    ),
                });
            }
            file.write_all(&buffer[..count])
                .map_err(|error| disk(full.clone(), error))?;
        }
    }

    fn make_links(&self) -> Result<(), UnzipError> {
        for (path, target) in &self.links {
            let full = self.folder.join(path);
            symlink(target, &full).map_err(|error| disk(full, error))?;
        }
        Ok(())
    }
}

/// The target of a link: its content.
fn link_target(path: &Path, content: &mut impl Read) -> Result<PathBuf, UnzipError> {
    let mut target = String::new();
    content
        .take(LINK_BYTES_MAX + 1)
        .read_to_string(&mut target)
        .map_err(|error| wrong(path, &format!("is a link that cannot be read: {error}")))?;
    if target.is_empty() || target.contains('\0') {
        return Err(wrong(path, "is a link without a target; leave it out"));
    }
    if target.len() as u64 > LINK_BYTES_MAX {
        return Err(wrong(
            path,
            "is a link to a name that is too long; shorten it",
        ));
    }
    Ok(PathBuf::from(target))
}

/// The name as a path below the folder, with plain components only.
fn checked_path(raw: &[u8]) -> Result<PathBuf, UnzipError> {
    let fail = |problem: &str| UnzipError::Entry {
        entry: shown(Path::new(&*String::from_utf8_lossy(raw))),
        problem: problem.to_owned(),
    };
    let text =
        std::str::from_utf8(raw).map_err(|_| fail("has a name that is not UTF-8; rename it"))?;
    if text.len() > NAME_BYTES_MAX {
        return Err(fail("has a name that is too long; shorten it"));
    }
    if text.contains('\0') {
        return Err(fail("has a NUL byte in its name; rename it"));
    }
    if text.contains('\\') {
        return Err(fail(
            "has a backslash in its name; pack the layer with a program that separates folders with '/'",
        ));
    }
    let mut path = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => {
                return Err(fail(
                    "leads out of the layer with '..'; pack the layer from inside its folder",
                ));
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err(fail(
                    "has an absolute path; pack the layer with relative paths",
                ));
            }
        }
    }
    Ok(path)
}

fn wrong(path: &Path, problem: &str) -> UnzipError {
    UnzipError::Entry {
        entry: shown(path),
        problem: problem.to_owned(),
    }
}

fn disk(path: PathBuf, error: io::Error) -> UnzipError {
    UnzipError::Disk { path, error }
}

fn unreadable(error: &ZipError) -> UnzipError {
    UnzipError::Unreadable {
        problem: error.to_string().escape_debug().take(300).collect(),
    }
}

fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.chars()
        .take(200)
        .flat_map(char::escape_debug)
        .collect()
}

/// The kinds of files in a mode (inode(7)).
const FILE_KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

const NAME_BYTES_MAX: usize = 1024;
/// The daemon's limit, too.
const LINK_BYTES_MAX: u64 = 1024;
const BUFFER_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests;
