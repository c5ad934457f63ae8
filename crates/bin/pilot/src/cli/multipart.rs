//! The `multipart/form-data` body (RFC 7578) of a deployment: the configuration as JSON and the code as an archive. Written by
//! hand because it is forty lines. It only writes.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{Cursor, Read};

use pilot_model::FunctionSpec;

use super::pack::Archive;

/// A form, ready to be sent. The archive stays on the disk.
#[derive(Debug)]
pub(super) struct Multipart {
    boundary: String,
    head: Vec<u8>,
    archive: File,
    archive_bytes: u64,
    tail: Vec<u8>,
}

impl Multipart {
    /// A body with the parts `spec` and `code`.
    pub(super) fn new(spec: &FunctionSpec, archive: Archive) -> serde_json::Result<Self> {
        Ok(Self::with_boundary(
            random_boundary(),
            &serde_json::to_vec(spec)?,
            archive,
        ))
    }

    fn with_boundary(boundary: String, spec: &[u8], archive: Archive) -> Self {
        let mut head = format!(
            "--{boundary}\r\n\
             content-disposition: form-data; name=\"spec\"\r\n\
             content-type: application/json\r\n\r\n"
        )
        .into_bytes();
        head.extend_from_slice(spec);
        head.extend_from_slice(
            format!(
                "\r\n--{boundary}\r\n\
                 content-disposition: form-data; name=\"code\"; filename=\"code.tar.gz\"\r\n\
                 content-type: application/gzip\r\n\r\n"
            )
            .as_bytes(),
        );
        let tail = format!("\r\n--{boundary}--\r\n").into_bytes();
        Self {
            boundary,
            head,
            archive: archive.file,
            archive_bytes: archive.bytes,
            tail,
        }
    }

    /// The `content-type` header's value.
    pub(super) fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={}", self.boundary)
    }

    /// The body's length.
    pub(super) fn length_bytes(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64 + self.archive_bytes
    }

    /// The body.
    pub(super) fn into_reader(self) -> impl Read + 'static {
        Cursor::new(self.head)
            .chain(self.archive)
            .chain(Cursor::new(self.tail))
    }
}

/// 128 random bits, so that no archive contains them by chance.
fn random_boundary() -> String {
    let bits = || RandomState::new().hash_one("boundary");
    format!("pilotlight-{:016x}{:016x}", bits(), bits())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use pilot_deploy::content::Content;

    use super::*;

    #[test]
    fn the_form_has_both_parts_and_the_length_it_says() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0x1f, 0x8b, 0, 0xff]).unwrap();
        file.rewind().unwrap();
        let archive = Archive {
            file,
            bytes: 4,
            content: Content::default(),
        };
        let form = Multipart::with_boundary("B".to_owned(), b"{}", archive);
        assert_eq!(form.content_type(), "multipart/form-data; boundary=B");
        let length = form.length_bytes();
        let mut body = Vec::new();
        form.into_reader().read_to_end(&mut body).unwrap();
        assert_eq!(body.len() as u64, length);
        let expected = b"--B\r\n\
            content-disposition: form-data; name=\"spec\"\r\n\
            content-type: application/json\r\n\r\n\
            {}\r\n\
            --B\r\n\
            content-disposition: form-data; name=\"code\"; filename=\"code.tar.gz\"\r\n\
            content-type: application/gzip\r\n\r\n\
            \x1f\x8b\x00\xff\r\n\
            --B--\r\n";
        assert_eq!(body, expected);
    }

    #[test]
    fn boundaries_differ() {
        assert_ne!(random_boundary(), random_boundary());
    }
}
