//! Packs the folder of a function or of a layer into a tar.gz, in a temporary file: memory does not grow with its size. The same
//! files always give the same bytes: entries are sorted by name and have no times, no owners and one of two modes (executable or
//! not).
//!
//! Symbolic links of code are stored as the files that they point to, which must be in the folder. Those of layers are stored as they
//! are, because only functions follow them, at `/opt`. [`ignore`] decides what is left out.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use flate2::{Compression, GzBuilder};
use pilot_deploy::content::{self, Content, FileDigest};
use pilot_model::layer::LAYERS_INSIDE;

pub(super) use self::ignore::Ignore;

mod ignore;

/// A packed folder.
#[derive(Debug)]
pub(super) struct Archive {
    /// The tar.gz, from its beginning. The file has no name.
    pub(super) file: File,
    /// Its length.
    pub(super) bytes: u64,
    /// The files in it.
    pub(super) content: Content,
}

/// What is in a folder, which decides what is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The code of a function.
    Code,
    /// A layer.
    Layer,
    /// A layer's zip file that was unpacked. Somebody else may have made it: its links may lead anywhere, and nothing follows them.
    Unzipped,
}

/// Why a folder cannot be packed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A symbolic link points out of the folder.
    #[error(
        "{}: is a symbolic link to {}, outside the folder; copy the file here or list it in .pilotignore",
        path.display(), target.display()
    )]
    LinkLeaves {
        /// The link.
        path: PathBuf,
        /// Its target.
        target: PathBuf,
    },
    /// A symbolic link of a layer points out of `/opt`.
    #[error(
        "{}: is a symbolic link to {}, outside the layer; copy the file here, link to {}, or list it in .pilotignore",
        path.display(), target.display(), LAYERS_INSIDE
    )]
    LinkLeavesLayer {
        /// The link.
        path: PathBuf,
        /// Its target.
        target: PathBuf,
    },
    /// A symbolic link points to nothing.
    #[error(
        "{}: is a symbolic link to {}, which cannot be followed ({error}); remove it or list it in .pilotignore",
        path.display(), target.display()
    )]
    LinkDangles {
        /// The link.
        path: PathBuf,
        /// Its target.
        target: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A symbolic link points to a folder that contains it.
    #[error("{}: is a symbolic link to a folder above it; remove it or list it in .pilotignore", path.display())]
    LinkLoops {
        /// The link.
        path: PathBuf,
    },
    /// A package in pnpm's store.
    #[error("{}: {}", path.display(), content::PNPM_STORE)]
    Pnpm {
        /// The store.
        path: PathBuf,
    },
    /// Neither a file nor a folder.
    #[error("{}: is a {kind}, neither file nor folder; remove it or list it in .pilotignore", path.display())]
    Special {
        /// The path.
        path: PathBuf,
        /// `socket`, `device` …
        kind: &'static str,
    },
    /// A file changed between two reads.
    #[error("{}: changed while it was packed; try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A line of `.pilotignore` is invalid.
    #[error("{}:{line}: {problem}", path.display())]
    Ignore {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

/// Packs the folder.
///
/// # Errors
/// The first path that cannot be packed, and why.
pub(super) fn pack(folder: &Path, kind: Kind) -> Result<Archive, PackError> {
    let in_folder = |error| io_error(folder, error);
    let file = tempfile::tempfile().map_err(in_folder)?;
    let gzip = GzBuilder::new()
        .mtime(0)
        .write(BufWriter::new(file), Compression::fast());
    let mut tar = tar::Builder::new(gzip);
    let mut content = Content::default();
    walk(folder, kind, &mut |entry| {
        let io_error = |error| io_error(&entry.path, error);
        if entry.metadata.is_dir() {
            let mut header = header(0o755, tar::EntryType::Directory, 0);
            return tar
                .append_data(&mut header, &entry.inside, io::empty())
                .map_err(io_error);
        }
        if let Some(target) = &entry.target {
            content.add_link(entry.inside.clone(), target);
            return append_link(&mut tar, &entry.inside, target).map_err(io_error);
        }
        let file = File::open(&entry.path).map_err(io_error)?;
        let length = file.metadata().map_err(io_error)?.len();
        let mode = if entry.is_executable() { 0o755 } else { 0o644 };
        let mut header = header(mode, tar::EntryType::Regular, length);
        let mut digesting = Digesting {
            file: file.take(length),
            digest: FileDigest::default(),
            bytes: 0,
        };
        tar.append_data(&mut header, &entry.inside, &mut digesting)
            .map_err(io_error)?;
        if digesting.bytes != length {
            return Err(PackError::Changed {
                path: entry.path.clone(),
            });
        }
        entry.add_to(&mut content, digesting.digest);
        Ok(())
    })?;
    let finish = || -> io::Result<(File, u64)> {
        let mut file = tar.into_inner()?.finish()?;
        file.flush()?;
        let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let bytes = file.stream_position()?;
        file.rewind()?;
        Ok((file, bytes))
    };
    let (file, bytes) = finish().map_err(in_folder)?;
    Ok(Archive {
        file,
        bytes,
        content,
    })
}

/// The content that [`pack`] would pack.
///
/// # Errors
/// As [`pack`].
pub(super) fn content(folder: &Path, kind: Kind) -> Result<Content, PackError> {
    let mut content = Content::default();
    walk(folder, kind, &mut |entry| {
        if let Some(target) = &entry.target {
            content.add_link(entry.inside.clone(), target);
        } else if !entry.metadata.is_dir() {
            let digest = File::open(&entry.path).and_then(FileDigest::of);
            entry.add_to(
                &mut content,
                digest.map_err(|error| io_error(&entry.path, error))?,
            );
        }
        Ok(())
    })?;
    Ok(content)
}

/// Computes a file's digest while it is read.
struct Digesting {
    file: io::Take<File>,
    digest: FileDigest,
    bytes: u64,
}

impl Read for Digesting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.digest.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// The folders that would be packed, the folder itself first. `pilot dev` watches them.
///
/// # Errors
/// As [`pack`].
pub(super) fn folders(folder: &Path, kind: Kind) -> Result<Vec<PathBuf>, PackError> {
    let mut found = vec![folder.to_owned()];
    walk(folder, kind, &mut |entry| {
        if entry.metadata.is_dir() {
            found.push(entry.path.clone());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Something to pack.
struct Entry {
    /// Its path on disk.
    path: PathBuf,
    /// Its path inside the archive.
    inside: PathBuf,
    /// Its metadata, with links followed if they are not stored.
    metadata: Metadata,
    /// The target of a link that is stored as one.
    target: Option<PathBuf>,
}

impl Entry {
    fn is_executable(&self) -> bool {
        self.metadata.permissions().mode() & 0o111 != 0
    }

    /// Bytecode does not count: the daemon leaves it out, too.
    fn add_to(&self, content: &mut Content, digest: FileDigest) {
        if content::counts(&self.inside) {
            content.add(self.inside.clone(), self.is_executable(), digest);
        }
    }
}

type Visit<'a> = &'a mut dyn FnMut(&Entry) -> Result<(), PackError>;

fn walk(folder: &Path, kind: Kind, visit: Visit<'_>) -> Result<(), PackError> {
    let root = fs::canonicalize(folder).map_err(|error| io_error(folder, error))?;
    let walk = Walk {
        ignore: Ignore::of(folder, kind)?,
        root: root.clone(),
        kind,
    };
    walk.folder(folder, Path::new(""), &mut vec![root], visit)
}

struct Walk {
    ignore: Ignore,
    /// The folder's canonical path, which links must not leave.
    root: PathBuf,
    kind: Kind,
}

impl Walk {
    /// `above` has the canonical paths of this folder and of the folders that contain it.
    fn folder(
        &self,
        folder: &Path,
        inside: &Path,
        above: &mut Vec<PathBuf>,
        visit: Visit<'_>,
    ) -> Result<(), PackError> {
        let names = fs::read_dir(folder)
            .and_then(|entries| {
                entries
                    .map(|entry| Ok(entry?.file_name()))
                    .collect::<io::Result<Vec<_>>>()
            })
            .map_err(|error| io_error(folder, error));
        let mut names = names?;
        names.sort();
        for name in names {
            let path = folder.join(&name);
            let inside = inside.join(&name);
            let Some(entry) = self.entry(path, inside)? else {
                continue;
            };
            visit(&entry)?;
            if entry.metadata.is_dir() {
                let real =
                    fs::canonicalize(&entry.path).map_err(|error| io_error(&entry.path, error))?;
                if above.contains(&real) {
                    return Err(PackError::LinkLoops { path: entry.path });
                }
                above.push(real);
                self.folder(&entry.path, &entry.inside, above, visit)?;
                above.pop();
            }
        }
        Ok(())
    }

    /// The entry at `path`, or `None` if it is left out.
    fn entry(&self, path: PathBuf, inside: PathBuf) -> Result<Option<Entry>, PackError> {
        let own = fs::symlink_metadata(&path).map_err(|error| io_error(&path, error))?;
        if !own.is_symlink() {
            if self.ignore.matches(&inside, own.is_dir()) {
                return Ok(None);
            }
            if self.kind == Kind::Code && content::is_in_pnpm_store(&inside) {
                // NODE_MODULES/.pnpm/PACKAGE/node_modules
                let store = path.ancestors().nth(2).unwrap_or(&path).to_owned();
                return Err(PackError::Pnpm { path: store });
            }
            check_kind(&path, &own)?;
            return Ok(Some(Entry {
                path,
                inside,
                metadata: own,
                target: None,
            }));
        }
        let target = fs::read_link(&path).map_err(|error| io_error(&path, error))?;
        match self.kind {
            Kind::Code => self.followed(path, inside, target),
            Kind::Layer | Kind::Unzipped => self.kept(path, inside, own, target),
        }
    }

    /// A link of code: what it points to.
    fn followed(
        &self,
        path: PathBuf,
        inside: PathBuf,
        named: PathBuf,
    ) -> Result<Option<Entry>, PackError> {
        let found = fs::metadata(&path);
        let is_folder = found.as_ref().is_ok_and(Metadata::is_dir);
        if self.ignore.matches(&inside, is_folder) {
            return Ok(None);
        }
        let dangles = |error| PackError::LinkDangles {
            path: path.clone(),
            target: named.clone(),
            error,
        };
        let metadata = found.map_err(dangles)?;
        let target = fs::canonicalize(&path).map_err(dangles)?;
        if !target.starts_with(&self.root) {
            return Err(PackError::LinkLeaves { path, target });
        }
        check_kind(&path, &metadata)?;
        Ok(Some(Entry {
            path,
            inside,
            metadata,
            target: None,
        }))
    }

    /// A link of a layer, as it is. It need not lead to anything here: the file may be in another layer.
    fn kept(
        &self,
        path: PathBuf,
        inside: PathBuf,
        metadata: Metadata,
        mut target: PathBuf,
    ) -> Result<Option<Entry>, PackError> {
        // A pattern for folders is also one for links, whatever they lead to here or at /opt.
        if self.ignore.matches(&inside, false) || self.ignore.matches(&inside, true) {
            return Ok(None);
        }
        if self.kind == Kind::Layer {
            if let Ok(below) = target.strip_prefix(&self.root) {
                // Where the same file will be.
                target = Path::new(LAYERS_INSIDE).join(below);
            }
            if leaves_layer(&inside, &target) {
                return Err(PackError::LinkLeavesLayer { path, target });
            }
        }
        Ok(Some(Entry {
            path,
            inside,
            metadata,
            target: Some(target),
        }))
    }
}

/// Whether a link at `inside` of a layer would lead out of `/opt`. In a folder this is a mistake: what it leads to on this machine is
/// not there in a sandbox.
fn leaves_layer(inside: &Path, target: &Path) -> bool {
    let (mut depth, rest) = match target.strip_prefix(LAYERS_INSIDE) {
        Ok(below) => (0, below),
        Err(_) => (inside.components().count() - 1, target),
    };
    for component in rest.components() {
        depth = match component {
            Component::Normal(_) => depth + 1,
            Component::CurDir => depth,
            Component::ParentDir if depth > 0 => depth - 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        };
    }
    false
}

/// The library would write the target without `.` and doubled slashes.
fn append_link(tar: &mut tar::Builder<impl Write>, inside: &Path, target: &Path) -> io::Result<()> {
    let bytes = target.as_os_str().as_encoded_bytes();
    let mut link = header(0o777, tar::EntryType::Symlink, 0);
    if link.set_link_name_literal(bytes).is_err() {
        let length = bytes.len() as u64 + 1;
        let mut long = header(0o644, tar::EntryType::GNULongLink, length);
        long.set_path("././@LongLink")?;
        long.set_cksum();
        tar.append(&long, bytes.chain(&b"\0"[..]))?;
    }
    tar.append_data(&mut link, inside, io::empty())
}

fn check_kind(path: &Path, metadata: &Metadata) -> Result<(), PackError> {
    let kind = metadata.file_type();
    let kind = match () {
        () if kind.is_file() || kind.is_dir() => return Ok(()),
        () if kind.is_socket() => "socket",
        () if kind.is_fifo() => "named pipe",
        () => "device",
    };
    Err(PackError::Special {
        path: path.to_owned(),
        kind,
    })
}

fn header(mode: u32, kind: tar::EntryType, length_bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(length_bytes);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn io_error(path: &Path, error: io::Error) -> PackError {
    PackError::Io {
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests;
