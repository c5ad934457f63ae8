//! The language workers' sources, which are part of this binary: written out once per content, compiled once per interpreter.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use include_dir::{Dir, include_dir};
use pilot_sys::FORK_SERVER;
use sha2::{Digest, Sha256};

static PYTHON_WORKER: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../../python/pilot_worker");

/// Where a sandbox finds the Python worker.
pub(crate) const PYTHON_WORKER_INSIDE: &str = "/opt/pilot/python";

/// The files on disk.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeFiles {
    python: PathBuf,
}

impl RuntimeFiles {
    /// Writes the sources below `dir`, unless they are there.
    pub(crate) fn unpack(dir: &Path) -> io::Result<Self> {
        let mut sources = Vec::new();
        collect(&PYTHON_WORKER, &mut sources);
        // Beside the package, where it looks for it.
        sources.push((PathBuf::from("../fork_server.so"), FORK_SERVER));
        let mut hash = Sha256::new();
        for (path, text) in &sources {
            hash.update(path.to_string_lossy().as_bytes());
            hash.update([0]);
            hash.update(text);
        }
        let id: String = hash
            .finalize()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let python = dir.join(format!("python-{id}"));
        if !python.exists() {
            // Written beside and renamed, so that a half-written one is never taken for whole.
            let staging = dir.join(format!("python-{id}.{}", std::process::id()));
            for (path, text) in &sources {
                let file = match path.strip_prefix("..") {
                    Ok(beside) => staging.join(beside),
                    Err(_) => staging.join("pilot_worker").join(path),
                };
                if let Some(parent) = file.parent() {
                    fs::create_dir_all(parent)?;
                }
                fs::write(file, text)?;
            }
            fs::rename(&staging, &python)?;
        }
        Ok(Self { python })
    }

    pub(crate) fn python(&self) -> &Path {
        &self.python
    }

    /// Compiles the worker for an interpreter, so that none of its processes has to. Blocks for some 100 ms the first time.
    pub(crate) fn compile(&self, python: &Path) -> io::Result<()> {
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

/// The sources; not what an interpreter has left beside them.
fn collect(dir: &Dir<'static>, into: &mut Vec<(PathBuf, &'static [u8])>) {
    for file in dir.files() {
        if file.path().extension().is_some_and(|ext| ext == "py") {
            into.push((file.path().to_owned(), file.contents()));
        }
    }
    for dir in dir.dirs() {
        collect(dir, into);
    }
    into.sort();
}
