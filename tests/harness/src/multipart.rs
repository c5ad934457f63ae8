//! Hand-made uploads: archives that no correct client would send.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

/// An entry of an archive.
#[derive(Debug, Clone)]
pub enum ArchiveEntry {
    /// A file. Its name is written as it is, also with `..` and a leading `/`.
    File(String, Vec<u8>),
    /// A symbolic link: name, target.
    Symlink(String, String),
    /// A hard link: name, target.
    Hardlink(String, String),
    /// A character device (1, 3: `/dev/null`).
    Device(String),
    /// A named pipe.
    Fifo(String),
}

impl ArchiveEntry {
    /// A text file.
    #[must_use]
    pub fn text(name: &str, content: &str) -> Self {
        Self::File(name.to_owned(), content.as_bytes().to_vec())
    }
}

/// A gzip-compressed tar of the entries, without checks.
///
/// # Panics
/// If a name is longer than a tar header can hold.
#[must_use]
pub fn archive(entries: &[ArchiveEntry]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        let (name, link, content, kind): (_, _, &[u8], _) = match entry {
            ArchiveEntry::File(name, content) => (name, None, content, tar::EntryType::Regular),
            ArchiveEntry::Symlink(name, target) => {
                (name, Some(target), &[], tar::EntryType::Symlink)
            }
            ArchiveEntry::Hardlink(name, target) => (name, Some(target), &[], tar::EntryType::Link),
            ArchiveEntry::Device(name) => (name, None, &[], tar::EntryType::Char),
            ArchiveEntry::Fifo(name) => (name, None, &[], tar::EntryType::Fifo),
        };
        header.set_entry_type(kind);
        // `set_path` would refuse the names of these tests.
        let raw = header.as_old_mut();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        if let Some(target) = link {
            raw.linkname[..target.len()].copy_from_slice(target.as_bytes());
        }
        if kind == tar::EntryType::Char {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// A `multipart/form-data` body of the parts (name, content type, bytes), with its content type.
///
/// # Panics
/// Never: writing to a vector does not fail.
#[must_use]
pub fn multipart(parts: &[(&str, &str, &[u8])]) -> (String, Vec<u8>) {
    const BOUNDARY: &str = "----pilot-harness-7d3f9a";
    let mut body = Vec::new();
    for (name, kind, bytes) in parts {
        write!(
            body,
            "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\ncontent-type: {kind}\r\n\r\n"
        )
        .unwrap();
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    write!(body, "--{BOUNDARY}--\r\n").unwrap();
    (format!("multipart/form-data; boundary={BOUNDARY}"), body)
}
