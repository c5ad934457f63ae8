//! What a worker is given with a call, as open descriptors.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::inputs::Decoded;
use crate::invocation::Transfer;
use crate::timeline::Instant;

/// Maximum number of inputs of one call to any worker.
pub const INPUTS_MAX: usize = 64;

/// An open descriptor that goes to the worker with a call. Descriptors go to workers and never come from them.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name in the function.
    pub name: String,
    /// What the descriptor is.
    pub kind: InputKind,
    /// The descriptor. The worker gets a duplicate.
    pub descriptor: Arc<OwnedFd>,
    /// What clients of its store call it. `None`: drop-ins for clients do not answer from it.
    pub object: Option<Arc<StoreRead>>,
    /// What a decoder has made of it. `None`: it is as in its store.
    pub decoded: Option<Arc<Decoded>>,
}

impl Input {
    /// Whether it can be read more than once, so that another worker can have it after one has read it.
    #[must_use]
    pub fn can_be_read_again(&self) -> bool {
        matches!(self.kind, InputKind::Memory { .. })
    }
}

/// An object that was read from its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRead {
    /// The object.
    pub object: StoreObject,
    /// The store was asked at this time or later, so what a worker wrote before is part of the answer. Workers have the same clock.
    pub asked: Instant,
}

/// An object as clients of its store name it, so that a worker's drop-ins recognise a request for it. Without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreObject {
    /// Of S3.
    S3 {
        /// `http://HOST:PORT` or `https://…`. `None`: Amazon.
        endpoint: Option<String>,
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// What the store said about the object: lower-case names of HTTP headers, and their values.
        headers: Vec<(String, String)>,
    },
    /// Of Redis: the value of a string key.
    Redis {
        /// The server's name or address.
        host: String,
        /// The server's port.
        port: u16,
        /// The number of the database.
        database: i64,
        /// The key.
        key: String,
    },
    /// The response to one request of an initscript to an HTTP server.
    Http {
        /// The method.
        method: String,
        /// The whole URL, as the request had it.
        url: String,
        /// SHA-256 of the request's body, hexadecimal. Empty: it had none.
        body_sha256: String,
        /// The headers that the script sent.
        request_headers: Vec<(String, String)>,
        /// The status.
        status: u16,
        /// The headers of the response, without those that frame its body.
        headers: Vec<(String, String)>,
    },
    /// The answer of a queue with SQS's API to one request of an initscript.
    Sqs {
        /// The URL of the queue.
        url: String,
        /// The action, for example `ReceiveMessage`.
        action: String,
        /// SHA-256 of the arguments without the URL, hexadecimal. The JSON has sorted keys and no spaces.
        arguments_sha256: String,
    },
}

impl StoreObject {
    /// Whether it answers only one call of a client. An equal second call goes to the server, which may answer it differently.
    #[must_use]
    pub fn answers_once(&self) -> bool {
        matches!(self, Self::Http { .. } | Self::Sqs { .. })
    }

    /// Length of its texts, bytes. `None`: it has control characters, for which JSON needs six bytes each.
    #[must_use]
    pub fn text_len(&self) -> Option<usize> {
        let (texts, headers, sent) = match self {
            Self::S3 {
                endpoint,
                bucket,
                key,
                headers,
            } => {
                let endpoint = endpoint.as_deref().unwrap_or_default();
                ([endpoint, bucket, key], headers.as_slice(), [].as_slice())
            }
            Self::Redis { host, key, .. } => {
                ([host.as_str(), key, ""], [].as_slice(), [].as_slice())
            }
            Self::Http {
                method,
                url,
                body_sha256,
                request_headers,
                headers,
                ..
            } => (
                [method.as_str(), url, body_sha256],
                headers.as_slice(),
                request_headers.as_slice(),
            ),
            Self::Sqs {
                url,
                action,
                arguments_sha256,
            } => (
                [url.as_str(), action, arguments_sha256],
                [].as_slice(),
                [].as_slice(),
            ),
        };
        let headers = headers
            .iter()
            .chain(sent)
            .flat_map(|(name, value)| [&name[..], value]);
        texts.into_iter().chain(headers).try_fold(0, |len, text| {
            (!text.contains(char::is_control)).then_some(len + text.len())
        })
    }
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// Memory to be mapped read-only (memfd_create(2), sealed).
    Memory {
        /// Length of the content, bytes.
        len: u64,
    },
    /// Memory whose content still arrives, to be read with pread(2) as far as its [`InputKind::Progress`] says. The descriptor only
    /// reads.
    Growing {
        /// Length of the whole content, bytes, if the store has announced it.
        len: Option<u64>,
    },
    /// A stream socket that says how much of the growing input with the same name is there (`crates/path/wire/PROTOCOL.md`, "Inputs").
    Progress,
    /// A connected stream socket.
    Socket,
    /// A stream socket with the rest of the request's body, in parts (`crates/path/wire/PROTOCOL.md`, "Inputs").
    Body,
    /// A stream socket with the messages of a WebSocket (the same place).
    WebSocket,
    /// A stream socket over which the handler invokes other functions (the same place).
    Calls,
    /// A stream socket on which the messages and connections of an initscript come (the same place).
    Script,
}

/// The memory of an input. Dropping the last reference gives it back, as soon as no worker has it any more.
pub trait InputMemory: Send + Sync + Debug {
    /// Its length, bytes.
    fn bytes(&self) -> u64;

    /// One more descriptor of it, for a worker: an open file of its own.
    ///
    /// # Errors
    /// Out of descriptors; it still arrives.
    fn input(&self, name: &str) -> io::Result<Input>;

    /// How far the transfer of an input is that was handed out before it was complete. `None`: it was complete.
    fn transfer(&self) -> Option<Transfer> {
        None
    }
}
