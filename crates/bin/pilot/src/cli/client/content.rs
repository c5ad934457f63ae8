//! The body of a request, with its length: a body of unknown length would be chunked.

use std::fs::File;
use std::io::Cursor;

use ureq::SendBody;

use super::super::multipart::Multipart;

/// The body of a request.
#[derive(Debug)]
pub(super) enum Content {
    /// No body.
    Nothing,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A form.
    Form(Multipart),
    /// A file of this length, from its beginning.
    File(File, u64),
}

impl Content {
    /// The length of the body; `None`: there is none.
    pub(super) fn length_bytes(&self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::Form(form) => Some(form.length_bytes()),
            Self::File(_, length) => Some(*length),
        }
    }

    /// The body for the HTTP client.
    pub(super) fn into_body(self) -> SendBody<'static> {
        match self {
            Self::Nothing => SendBody::none(),
            Self::Bytes(bytes) => SendBody::from_owned_reader(Cursor::new(bytes)),
            Self::Form(form) => SendBody::from_owned_reader(form.into_reader()),
            Self::File(file, _) => SendBody::from_owned_reader(file),
        }
    }
}
