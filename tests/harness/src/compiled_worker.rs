//! The bytecode of the Python worker, kept from one daemon for the next.
//!
//! A daemon compiles the worker once per data directory, which takes 0.3 s of CPU time. Each test has a data directory of its own.
//! Daemons of the same binary unpack the same files, so the first one's compiled files are as good as those that the next one would
//! make. They lie beside the binary.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The folder of a data directory with the worker's files.
const UNPACKED: &str = "run";

/// How the name of a copy begins that is not complete.
const STAGING: &str = "staging-";

/// Puts the compiled worker into a data directory that does not exist yet, if another daemon of this binary has left one.
pub(crate) fn give(binary: &Path, data: &Path) {
    let kept = place(binary);
    if !kept.exists() || data.exists() {
        return;
    }
    DirBuilder::new().mode(0o700).create(data).unwrap();
    copy(&kept, &data.join(UNPACKED)).unwrap();
}

/// Keeps the compiled worker of a daemon that has ended.
pub(crate) fn keep(binary: &Path, data: &Path) {
    let kept = place(binary);
    if kept.exists() {
        return;
    }
    let Some(worker) = compiled(&data.join(UNPACKED)) else {
        return;
    };
    let parent = kept.parent().unwrap();
    for older in names(parent).filter(|name| !name.starts_with(STAGING)) {
        let older = parent.join(older);
        if older != kept {
            let _ = fs::remove_dir_all(older);
        }
    }
    // Tests run beside each other. The first one that renames its copy wins.
    let staging = parent.join(format!("{STAGING}{}", std::process::id()));
    let copied = copy(&worker, &staging.join(worker.file_name().unwrap()));
    if copied.is_err() || fs::rename(&staging, &kept).is_err() {
        let _ = fs::remove_dir_all(&staging);
    }
}

/// Where the worker of this binary is kept.
fn place(binary: &Path) -> PathBuf {
    let built = fs::metadata(binary).map_or_else(|_| String::new(), |file| build_of(&file));
    binary.with_file_name("compiled-worker").join(built)
}

/// Tells builds apart.
fn build_of(binary: &Metadata) -> String {
    format!("{}-{}", binary.mtime_nsec(), binary.len())
}

/// The unpacked Python worker, if it was compiled to the end.
fn compiled(unpacked: &Path) -> Option<PathBuf> {
    let is_mark = |name: &str| name.starts_with("compiled-");
    names(unpacked)
        .filter(|name| name.starts_with("python-"))
        .map(|name| unpacked.join(name))
        .find(|worker| names(&worker.join("pilot_worker/__pycache__")).any(|name| is_mark(&name)))
}

fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
