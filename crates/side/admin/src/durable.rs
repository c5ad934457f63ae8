//! The files of tokens and secrets: each is replaced as a whole, and durably.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

/// Replaces a file by this value as JSON. It has mode 0600 from its beginning. After a power failure, the file is the new one: a token
/// that was revoked stays so.
pub(crate) fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The name, too.
    File::open(folder)?.sync_all()
}
