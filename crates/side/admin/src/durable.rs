//! The files of tokens, secrets and keys: each is written under another name first, and replaced as a whole and durably.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use tempfile::NamedTempFile;

/// A file beside `path` that becomes `path` when it is complete. It has mode 0600 from its beginning.
///
/// # Errors
/// The kernel's.
pub fn unfinished(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .rand_bytes(RANDOM_LEN)
        .tempfile_in(path.parent().unwrap_or(Path::new(".")))
}

/// Removes what a daemon left that was killed while it wrote such a file. Returns how many. Call it before this daemon writes one. It leaves
/// files with other names alone.
///
/// # Errors
/// The kernel's.
pub fn remove_unfinished(folder: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(is_unfinished) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_unfinished(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).unwrap_or_default();
    random.len() == RANDOM_LEN && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Replaces a file by this value as JSON. After a power failure, the file is the new one: a token that was revoked stays so.
pub(crate) fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = unfinished(path)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The name, too.
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// What no other program calls its files.
const PREFIX: &str = ".pilotlight-new-";
const RANDOM_LEN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_daemon_left_goes_and_files_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        replace(&path, &1).unwrap();
        // As kill -9 leaves it.
        let (_, left) = unfinished(&path).unwrap().keep().unwrap();
        let others = [
            ".tmpaB3xYz",
            ".pilotlight-new-",
            ".pilotlight-new-aB3xYz.json",
            ".pilotlight-new-a.b.c.",
        ];
        for name in others {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let below = folder.path().join(".pilotlight-new-folder");
        fs::create_dir(&below).unwrap();
        assert_eq!(remove_unfinished(folder.path()).unwrap(), 1);
        assert!(!left.exists() && below.exists());
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        for name in others {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        assert_eq!(remove_unfinished(folder.path()).unwrap(), 0);
    }
}
