//! Unpacks uploaded code or an uploaded layer, an untrusted gzip-compressed tar, into a staging folder. It reads the archive as a
//! stream, so that memory does not grow with its size.
//!
//! It creates only files and folders with fixed modes and a fixed time, and in layers symbolic links, so that equal code is equal on
//! disk. Links are made last, and no name may lie below one, so a checked name cannot lead out of the folder. Sizes and numbers are
//! limited.

mod gzip;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, FileTimes, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use pilot_model::log_line::is_unsafe;
use pilot_model::size::Size;
use tar::EntryType;

use self::gzip::Gunzip;
use crate::content::{self, Content, FileDigest, Part};
use crate::data_dir::make_dir;

/// The limits of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Largest upload, bytes. Above the unpacked limit, because content that cannot be compressed grows a little.
    pub compressed_bytes_max: u64,
    /// Largest unpacked size of a function's code and layers together, bytes: Lambda's limit.
    pub unpacked_bytes_max: u64,
    /// Highest number of files and folders.
    pub entries_max: usize,
}

impl ArchiveLimits {
    /// The limits of a daemon.
    pub const DEFAULT: Self = Self {
        compressed_bytes_max: 280 << 20,
        unpacked_bytes_max: 250 << 20,
        entries_max: 20_000,
    };
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What is done with symbolic links. Hard links are always refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// They are errors: the daemon reads code.
    Refused,
    /// They are made as they are, wherever they lead. For content that nobody but a function follows.
    Kept,
}

/// Why an archive cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Not a gzip-compressed tar, or a truncated one.
    #[error("the archive cannot be read: {problem}; send the code as a gzip-compressed tar")]
    Unreadable {
        /// The decoder's message.
        problem: String,
    },
    /// An entry that is not allowed.
    #[error("the archive's entry '{entry}' {problem}")]
    Entry {
        /// Its name, made printable and shortened to 200 characters.
        entry: String,
        /// What is wrong, and what to change.
        problem: String,
    },
    /// Too large, or too many entries.
    #[error("{problem}")]
    TooLarge {
        /// Which limit, and what to change.
        problem: String,
    },
    /// It has no files, but the function needs some. The deployer checks this.
    #[error("the archive has no files; check the function's path in pilot.toml")]
    Empty,
    /// The disk failed.
    #[error("the code could not be written to {path}: {source}")]
    Disk {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Unpacks into `folder`, which must exist and be empty. After an error, the caller removes the folder.
///
/// # Errors
/// See [`ArchiveError`].
pub fn unpack(
    archive: impl Read,
    folder: &Path,
    links: Links,
    limits: &ArchiveLimits,
) -> Result<Content, ArchiveError> {
    let mut unpacking = Unpacking {
        folder,
        kept: links,
        limits,
        content: Content::default(),
        links: Vec::new(),
        sizes: Vec::new(),
        folders: BTreeSet::new(),
        bytes: 0,
        modified: SystemTime::now(),
    };
    // Headers and padding are added to the files' bytes: at most 1.5 KiB per entry, and an extra entry for a long name.
    let overhead = (limits.entries_max as u64).saturating_mul(8 * 1024);
    let archive = BufReader::with_capacity(BUFFER_BYTES, archive);
    let plain = Gunzip::new(archive).take(limits.unpacked_bytes_max.saturating_add(overhead));
    let mut tar = tar::Archive::new(plain);
    // Raw, because otherwise the library reads extended headers of any size into memory.
    let entries = tar.entries().map_err(unreadable)?.raw(true);
    let mut long = LongNames::default();
    for entry in entries {
        let mut entry = entry.map_err(unreadable)?;
        if !long.read(&mut entry)? {
            let names = std::mem::take(&mut long).of(&entry)?;
            unpacking.entry(&names, entry)?;
        }
    }
    // Reads to the end, because a gzip stream that is truncated after the tar's end mark is still a broken upload.
    io::copy(&mut tar.into_inner(), &mut io::sink()).map_err(unreadable)?;
    unpacking.make_links()?;
    Ok(unpacking.content)
}

/// The extended headers before an entry. Only its name and the target of a link are used.
#[derive(Default)]
struct LongNames {
    pax: Option<Vec<u8>>,
    gnu: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// What an entry and its extended headers say.
struct Names {
    name: Vec<u8>,
    /// Of a link.
    target: Vec<u8>,
}

struct Unpacking<'a> {
    folder: &'a Path,
    kept: Links,
    limits: &'a ArchiveLimits,
    content: Content,
    /// Links that are not made yet, with their targets.
    links: Vec<(PathBuf, PathBuf)>,
    /// Of its files.
    sizes: Vec<(PathBuf, u64)>,
    folders: BTreeSet<PathBuf>,
    bytes: u64,
    /// When the files were last modified, as a server of static files tells its clients: now, because they may be others than before.
    modified: SystemTime,
}

impl Unpacking<'_> {
    fn entry<R: Read>(
        &mut self,
        names: &Names,
        mut entry: tar::Entry<'_, R>,
    ) -> Result<(), ArchiveError> {
        let raw = names.name.as_slice();
        let fail = |problem: String| ArchiveError::Entry {
            entry: printable(raw),
            problem,
        };
        let kind = entry.header().entry_type();
        check_kind(kind, self.kept).map_err(fail)?;
        let path = checked_path(raw).map_err(fail)?;
        if path.as_os_str().is_empty() || !content::counts(&path) {
            return Ok(());
        }
        if self.kept == Links::Refused && content::is_in_pnpm_store(&path) {
            return Err(fail(format!("is of pnpm: {}", content::PNPM_STORE)));
        }
        if self.content.files() + self.folders.len() >= self.limits.entries_max {
            return Err(ArchiveError::TooLarge {
                problem: format!(
                    "the archive has more than {} files and folders; {LEAVE_OUT}",
                    self.limits.entries_max
                ),
            });
        }
        if kind.is_dir() {
            return self.make_folders(&path, raw);
        }
        if let Some(parent) = path.parent() {
            self.make_folders(parent, raw)?;
        }
        if kind.is_symlink() {
            let target = checked_target(&names.target).map_err(fail)?;
            return self.add_link(path, target, raw);
        }
        let executable = entry.header().mode().map_err(unreadable)? & 0o111 != 0;
        let digest = self.write_file(&path, raw, executable, &mut entry)?;
        self.content.add(path, executable, digest);
        Ok(())
    }

    fn make_folders(&mut self, path: &Path, raw: &[u8]) -> Result<(), ArchiveError> {
        let missing: Vec<&Path> = path
            .ancestors()
            .filter(|folder| !folder.as_os_str().is_empty() && !self.folders.contains(*folder))
            .collect();
        for folder in missing.into_iter().rev() {
            if self.content.has(folder) {
                return Err(ArchiveError::Entry {
                    entry: printable(raw),
                    problem: format!("lies below '{}', which is a file", folder.display()),
                });
            }
            let full = self.folder.join(folder);
            let made = make_dir(&full).and_then(|()| {
                // Independent of the umask, because workers run as another user.
                fs::set_permissions(&full, fs::Permissions::from_mode(0o755))
            });
            made.map_err(|source| disk_or_name(source, full, raw))?;
            self.folders.insert(folder.to_owned());
        }
        Ok(())
    }

    fn add_link(&mut self, path: PathBuf, target: PathBuf, raw: &[u8]) -> Result<(), ArchiveError> {
        self.check_new(&path, raw)?;
        let bytes = target.as_os_str().len() as u64;
        self.bytes += bytes;
        if self.bytes > self.limits.unpacked_bytes_max {
            return Err(self.too_large(&path, bytes));
        }
        self.sizes.push((path.clone(), bytes));
        self.content.add_link(path.clone(), &target);
        self.links.push((path, target));
        Ok(())
    }

    fn make_links(&self) -> Result<(), ArchiveError> {
        for (path, target) in &self.links {
            let full = self.folder.join(path);
            symlink(target, &full).map_err(|source| {
                disk_or_name(source, full, path.as_os_str().as_encoded_bytes())
            })?;
        }
        Ok(())
    }

    fn check_new(&self, path: &Path, raw: &[u8]) -> Result<(), ArchiveError> {
        if self.content.has(path) || self.folders.contains(path) {
            return Err(ArchiveError::Entry {
                entry: printable(raw),
                problem: "appears twice; pack the code again".to_owned(),
            });
        }
        Ok(())
    }

    fn write_file(
        &mut self,
        path: &Path,
        raw: &[u8],
        executable: bool,
        content: &mut impl Read,
    ) -> Result<FileDigest, ArchiveError> {
        let full = self.folder.join(path);
        self.check_new(path, raw)?;
        let mode = if executable { 0o755 } else { 0o644 };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&full)
            .map_err(|source| disk_or_name(source, full.clone(), raw))?;
        let disk = |source| ArchiveError::Disk {
            path: full.clone(),
            source,
        };
        let before = self.bytes;
        let mut digest = FileDigest::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = content.read(&mut buffer).map_err(unreadable)?;
            if count == 0 {
                break;
            }
            self.bytes += count as u64;
            if self.bytes > self.limits.unpacked_bytes_max {
                return Err(self.too_large(path, self.bytes - before));
            }
            digest.update(&buffer[..count]);
            file.write_all(&buffer[..count]).map_err(disk)?;
        }
        let times = FileTimes::new().set_modified(self.modified);
        file.set_permissions(fs::Permissions::from_mode(mode))
            .and_then(|()| file.set_times(times))
            .map_err(disk)?;
        self.sizes.push((path.to_owned(), self.bytes - before));
        Ok(digest)
    }

    /// The rest of the archive is not read, so the total size is unknown.
    fn too_large(&mut self, path: &Path, bytes: u64) -> ArchiveError {
        let mut sizes = std::mem::take(&mut self.sizes);
        sizes.push((path.to_owned(), bytes));
        let part = Part::new("code".to_owned(), sizes.into_iter());
        ArchiveError::TooLarge {
            problem: format!(
                "the unpacked content is larger than the limit of {}; its largest files up to there are{}; {LEAVE_OUT}",
                Size(self.limits.unpacked_bytes_max),
                content::largest_of(&[part]),
            ),
        }
    }
}

impl LongNames {
    /// Reads the entry if it describes the next one; returns whether it does.
    fn read<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<bool, ArchiveError> {
        let (kind, size) = (entry.header().entry_type(), entry.size());
        let described = match kind {
            EntryType::XGlobalHeader => None,
            EntryType::XHeader => Some(&mut self.pax),
            EntryType::GNULongName => Some(&mut self.gnu),
            EntryType::GNULongLink => Some(&mut self.link),
            _ => return Ok(false),
        };
        let fail = |problem: String| ArchiveError::Unreadable { problem };
        if size > EXTENDED_HEADER_BYTES_MAX {
            return Err(fail(format!(
                "an extended header of {} is larger than the limit of {}",
                Size(size),
                Size(EXTENDED_HEADER_BYTES_MAX)
            )));
        }
        let Some(described) = described else {
            return Ok(true);
        };
        if described.is_some() {
            return Err(fail(
                "two extended headers of one kind describe one entry".to_owned(),
            ));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(unreadable)?;
        *described = Some(bytes);
        Ok(true)
    }

    /// The names of the entry that they describe.
    fn of<R: Read>(self, entry: &tar::Entry<'_, R>) -> Result<Names, ArchiveError> {
        let unreadable = |problem: &str| ArchiveError::Unreadable {
            problem: problem.to_owned(),
        };
        let (mut name, mut target) = (None, None);
        for extension in tar::PaxExtensions::new(self.pax.as_deref().unwrap_or_default()) {
            let extension = extension.map_err(|error| unreadable(&error.to_string()))?;
            match extension.key_bytes() {
                b"path" => name = Some(extension.value_bytes().to_vec()),
                b"linkpath" => target = Some(extension.value_bytes().to_vec()),
                b"size" => {
                    let told = extension.value().ok().and_then(|text| text.parse().ok());
                    if told != Some(entry.size()) {
                        return Err(unreadable("an entry has two different sizes"));
                    }
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(unreadable("an entry is stored as a sparse file"));
                }
                _ => {}
            }
        }
        let ended = |mut bytes: Vec<u8>| {
            if bytes.last() == Some(&0) {
                bytes.pop();
            }
            bytes
        };
        let header = entry.header();
        Ok(Names {
            name: name
                .or(self.gnu.map(ended))
                .unwrap_or_else(|| header.path_bytes().into_owned()),
            target: target
                .or(self.link.map(ended))
                .or_else(|| header.link_name_bytes().map(Cow::into_owned))
                .unwrap_or_default(),
        })
    }
}

fn check_kind(kind: EntryType, links: Links) -> Result<(), String> {
    match kind {
        EntryType::Symlink if links == Links::Kept => Ok(()),
        EntryType::Regular | EntryType::Continuous | EntryType::Directory => Ok(()),
        EntryType::GNUSparse => {
            Err("is stored as a sparse file; pack it without --sparse".to_owned())
        }
        EntryType::Symlink | EntryType::Link => Err(
            "is a link; put the file itself there (tar --dereference packs what links point at)"
                .to_owned(),
        ),
        EntryType::Char | EntryType::Block | EntryType::Fifo => {
            Err("is a device or pipe; leave it out".to_owned())
        }
        _ => Err("is neither a file nor a folder; leave it out".to_owned()),
    }
}

/// Folders in each other. Every one of them takes the kernel longer than the one before.
const DEPTH_MAX: usize = 64;

/// The name as a path below the folder, with plain components only. `.` gives the empty path.
fn checked_path(raw: &[u8]) -> Result<PathBuf, String> {
    let text = std::str::from_utf8(raw)
        .map_err(|_| "has a name that is not UTF-8; rename it".to_owned())?;
    if text.len() > NAME_BYTES_MAX {
        return Err(format!(
            "has a name of more than {NAME_BYTES_MAX} bytes; shorten it"
        ));
    }
    if text.contains('\0') {
        return Err("has a NUL byte in its name; rename it".to_owned());
    }
    if let Some(hidden) = text.chars().find(|c| is_unsafe(*c)) {
        return Err(format!(
            "has the character U+{:04X} in its name, which hides or moves other text where names are shown; rename it or leave it out",
            u32::from(hidden)
        ));
    }
    let mut path = PathBuf::new();
    if Path::new(text).components().count() > DEPTH_MAX {
        return Err(format!("is in more than {DEPTH_MAX} folders; use fewer"));
    }
    for component in Path::new(text).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => {
                return Err(
                    "leads out of the code with '..'; pack the code from inside its folder"
                        .to_owned(),
                );
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err("has an absolute path; pack the code with relative paths".to_owned());
            }
        }
    }
    Ok(path)
}

/// The target of a link. It may lead anywhere: only a function follows it, in its sandbox.
fn checked_target(raw: &[u8]) -> Result<PathBuf, String> {
    let text = std::str::from_utf8(raw)
        .map_err(|_| "is a link to a name that is not UTF-8; rename it".to_owned())?;
    if text.is_empty() || text.contains('\0') {
        return Err("is a link without a target; leave it out".to_owned());
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(format!(
            "is a link to a name of more than {NAME_BYTES_MAX} bytes; shorten it"
        ));
    }
    if let Some(hidden) = text.chars().find(|c| is_unsafe(*c)) {
        return Err(format!(
            "is a link to a name with the character U+{:04X}, which hides or moves other text where names are shown; rename it",
            u32::from(hidden)
        ));
    }
    Ok(PathBuf::from(text))
}

/// A name that the file system refuses is an error of the archive. Everything else is an error of the disk.
fn disk_or_name(source: io::Error, path: PathBuf, raw: &[u8]) -> ArchiveError {
    match source.kind() {
        io::ErrorKind::InvalidFilename => ArchiveError::Entry {
            entry: printable(raw),
            problem: "has a name too long for the file system; shorten it".to_owned(),
        },
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => ArchiveError::Entry {
            entry: printable(raw),
            problem: "appears twice, once as a file and once as a folder; pack the code again"
                .to_owned(),
        },
        _ => ArchiveError::Disk { path, source },
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err passes")]
fn unreadable(error: io::Error) -> ArchiveError {
    ArchiveError::Unreadable {
        problem: error.to_string().escape_debug().take(300).collect(),
    }
}

fn printable(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw)
        .chars()
        .take(200)
        .flat_map(char::escape_debug)
        .collect()
}

const NAME_BYTES_MAX: usize = 1024;
/// Largest extended header: pax or a long GNU name.
const EXTENDED_HEADER_BYTES_MAX: u64 = 64 << 10;
const LEAVE_OUT: &str = "list what the function does not need in .pilotignore";
const BUFFER_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests;
