//! The body of a request, with its length: a body of unknown length would be chunked.

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
}

impl Content {
    /// The length of the body; `None`: there is none.
    pub(super) fn length_bytes(&self) -> Option<usize> {
        match self {
            Self::Nothing => None,
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::Form(form) => Some(form.length_bytes()),
        }
    }

    /// The body for the HTTP client.
    pub(super) fn into_body(self) -> SendBody<'static> {
        match self {
            Self::Nothing => SendBody::none(),
            Self::Bytes(bytes) => SendBody::from_owned_reader(Cursor::new(bytes)),
            Self::Form(form) => SendBody::from_owned_reader(form.into_reader()),
        }
    }
}
