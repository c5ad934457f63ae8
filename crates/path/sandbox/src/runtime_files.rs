//! The sources of the language workers, which are embedded in this binary. They are written to disk once per content and
//! compiled once per interpreter.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use include_dir::{Dir, include_dir};
use nix::sys::statvfs::statvfs;
use pilot_sys::FORK_SERVER;
use sha2::{Digest, Sha256};

static PYTHON_WORKER: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../../python/pilot_worker");

static NODE_WORKER: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../../node");

/// The Python worker's folder in a sandbox.
pub(crate) const PYTHON_WORKER_INSIDE: &str = "/opt/pilot/python";

/// The Node.js worker's folder in a sandbox.
pub(crate) const NODE_WORKER_INSIDE: &str = "/opt/pilot/node";

/// This binary in a sandbox: it runs the workers of WebAssembly components. A folder of its own, beside those of the language workers.
pub(crate) const PILOT_INSIDE: &str = "/opt/pilot/bin/pilot";

/// The files on disk.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeFiles {
    python: PathBuf,
    node: PathBuf,
    /// `None`: it is not known where it lies.
    pilot: Option<PathBuf>,
}

/// A source's path and contents.
type Source = (PathBuf, &'static [u8]);

impl RuntimeFiles {
    /// Writes the sources below `dir`, unless they are there.
    pub(crate) fn unpack(dir: &Path) -> io::Result<Self> {
        let mut python = Vec::new();
        collect(&PYTHON_WORKER, &["py"], &mut python);
        for (path, _) in &mut python {
            *path = Path::new("pilot_worker").join(&*path);
        }
        // Next to the package, where it expects it.
        python.push((PathBuf::from("fork_server.so"), FORK_SERVER));
        let mut node = Vec::new();
        collect(&NODE_WORKER, &["js", "mjs", "cjs", "json"], &mut node);
        node.retain(|(path, _)| !path.starts_with("test"));
        Ok(Self {
            python: write(dir, "python", &python)?,
            node: write(dir, "node", &node)?,
            pilot: std::env::current_exe().ok(),
        })
    }

    pub(crate) fn python(&self) -> &Path {
        &self.python
    }

    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// The file of this binary. An update may have replaced it, or have it removed.
    pub(crate) fn pilot(&self) -> Option<&Path> {
        self.pilot.as_deref().filter(|file| file.is_file())
    }

    /// Compiles the worker for an interpreter, so that its processes need not. Blocks for about 100 ms the first time.
    ///
    /// On a full disk, Python replaces a whole file by the part that fits and says nothing (fixed in 3.12.8 and 3.13.1, issue 126606 of
    /// CPython), and nothing checks such a file later. So what is compiled is left alone, nothing is compiled without room, and what was
    /// compiled while the disk filled up is removed. An interpreter without compiled files compiles in memory.
    pub(crate) fn compile(&self, python: &Path) -> io::Result<()> {
        let compiled = self.python.join("pilot_worker/__pycache__");
        let mark = compiled.join(mark_of(python)?);
        if mark.exists() {
            return Ok(());
        }
        let without = |why: &str| {
            tracing::warn!(folder = %compiled.display(), "{why}: each start of Python compiles the worker");
            remove_compiled(&self.python)
        };
        if self.free() < COMPILE_BYTES_MAX {
            return without("the disk has no room for compiled files");
        }
        self.run_compiler(python)?;
        if self.free() < LEFT_BYTES_MIN {
            return without("the disk became full");
        }
        // Nothing checks a compiled file later, also not one that a power failure leaves incomplete. One call for the whole file system
        // takes less time than one for each file.
        nix::unistd::syncfs(File::open(&self.python)?)?;
        // Without it, the next daemon compiles again.
        let _ = File::create(mark);
        Ok(())
    }

    /// Bytes that may still be written. An error counts as room: compiling tells.
    fn free(&self) -> u64 {
        statvfs(&self.python).map_or(u64::MAX, |disk| {
            disk.blocks_available().saturating_mul(disk.fragment_size())
        })
    }

    fn run_compiler(&self, python: &Path) -> io::Result<()> {
        let status = Command::new(python)
            .args([
                "-I",
                "-m",
                "compileall",
                "-q",
                "--invalidation-mode",
                "unchecked-hash",
            ])
            .arg(&self.python)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("compileall: {status}")))
        }
    }
}

/// Removes all compiled files below a folder.
fn remove_compiled(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        if entry.file_name() == "__pycache__" {
            fs::remove_dir_all(entry.path())?;
        } else {
            remove_compiled(&entry.path())?;
        }
    }
    Ok(())
}

/// The name of the file that says that the worker is compiled for this interpreter.
fn mark_of(python: &Path) -> io::Result<String> {
    let metadata = fs::metadata(python)?;
    let mut hash = Sha256::new();
    hash.update(python.as_os_str().as_encoded_bytes());
    hash.update(metadata.len().to_be_bytes());
    hash.update(metadata.mtime_nsec().to_be_bytes());
    hash.update(metadata.mtime().to_be_bytes());
    let digest = hash.finalize();
    Ok(format!("compiled-{}", hex::encode(&digest[..8])))
}

/// More than the compiled worker takes.
const COMPILE_BYTES_MAX: u64 = 2 << 20;
/// If less is left after compiling, a file may be a part.
const LEFT_BYTES_MIN: u64 = 64 << 10;

/// Writes sources to a folder named after their hash, unless they are there. After a power failure, the folder may be there without the
/// contents of its files.
fn write(dir: &Path, name: &str, sources: &[Source]) -> io::Result<PathBuf> {
    let mut hash = Sha256::new();
    for (path, text) in sources {
        hash.update(path.to_string_lossy().as_bytes());
        hash.update([0]);
        hash.update(text);
    }
    let id = hex::encode(&hash.finalize()[..8]);
    let place = dir.join(format!("{name}-{id}"));
    let is_there =
        |(path, text): &Source| fs::read(place.join(path)).is_ok_and(|found| found == *text);
    if !sources.iter().all(is_there) {
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Written to a temporary folder and renamed, so that an incomplete one is never used.
        let staging = dir.join(format!("{name}-{id}.{}", std::process::id()));
        for (path, text) in sources {
            let file = staging.join(path);
            if let Some(parent) = file.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(file, text)?;
        }
        fs::rename(&staging, &place)?;
    }
    if let Err(error) = remove_others(dir, name, &place) {
        tracing::warn!(%error, dir = %dir.display(), "sources of other versions of the daemon were not removed");
    }
    Ok(place)
}

/// Removes what other versions of the daemon have written, and what a start has left that was interrupted. The data directory has one
/// daemon at a time.
fn remove_others(dir: &Path, name: &str, place: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let rest = path.file_name().and_then(|file| file.to_str());
        let rest = rest.and_then(|file| file.strip_prefix(name)?.strip_prefix('-'));
        if path != place && rest.is_some_and(is_id_with_process) {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// The id of sources, and the process that writes them if they are not complete: `0123456789abcdef`, `0123456789abcdef.4711`.
fn is_id_with_process(text: &str) -> bool {
    let (id, process) = text.split_once('.').unwrap_or((text, "0"));
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    id.len() == 16 && id.bytes().all(is_hex) && process.parse::<u32>().is_ok()
}

/// Collects the sources, without files that an interpreter has left there.
fn collect(dir: &Dir<'static>, endings: &[&str], into: &mut Vec<Source>) {
    for file in dir.files() {
        let ending = file.path().extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| endings.contains(&ending)) {
            into.push((file.path().to_owned(), file.contents()));
        }
    }
    for dir in dir.dirs() {
        collect(dir, endings, into);
    }
    into.sort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_their_contents_are_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let files = RuntimeFiles::unpack(folder.path()).unwrap();
        let source = files.python().join("pilot_worker/worker.py");
        let compiled = files.python().join("pilot_worker/__pycache__");
        let whole = fs::read(&source).unwrap();
        fs::create_dir(&compiled).unwrap();
        RuntimeFiles::unpack(folder.path()).unwrap();
        assert!(compiled.exists(), "whole files are left as they are");
        File::create(&source).unwrap();
        RuntimeFiles::unpack(folder.path()).unwrap();
        assert_eq!(fs::read(&source).unwrap(), whole);
        assert!(
            !compiled.exists(),
            "what was compiled may be incomplete, too"
        );
    }

    #[test]
    fn what_other_versions_and_interrupted_starts_have_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let others = ["python-0123456789abcdef", "node-0123456789abcdef.4711"];
        let kept = [
            "python-mine",
            "pythons-0123456789abcdef",
            "node-0123456789abcdef.log",
        ];
        for name in others.iter().chain(&kept) {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let files = RuntimeFiles::unpack(folder.path()).unwrap();
        assert!(files.python().exists());
        let is_there = |name: &&str| folder.path().join(name).exists();
        assert!(!others.iter().any(&is_there));
        assert!(kept.iter().all(is_there));
    }

    #[test]
    fn what_cannot_be_removed_does_not_stop_a_start() {
        let folder = tempfile::tempdir().unwrap();
        // A file, where the daemon makes folders.
        let odd = folder.path().join("python-0123456789abcdef");
        File::create(&odd).unwrap();
        let files = RuntimeFiles::unpack(folder.path()).unwrap();
        assert!(files.python().exists() && odd.exists());
    }

    #[test]
    fn what_was_compiled_is_removed_in_all_packages() {
        let folder = tempfile::tempdir().unwrap();
        let files = RuntimeFiles::unpack(folder.path()).unwrap();
        let packages =
            ["", "protocol", "drop_ins"].map(|name| files.python().join("pilot_worker").join(name));
        for package in &packages {
            fs::create_dir(package.join("__pycache__")).unwrap();
        }
        remove_compiled(files.python()).unwrap();
        for package in &packages {
            assert!(
                !package.join("__pycache__").exists(),
                "{}",
                package.display()
            );
            assert!(
                package.join("__init__.py").exists(),
                "{}",
                package.display()
            );
        }
    }
}
