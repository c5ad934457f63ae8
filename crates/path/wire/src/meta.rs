//! The JSON metas of frames.

use std::net::IpAddr;

use pilot_model::InvocationHead;
use pilot_model::inputs::Decoded;
use pilot_model::ports::{Input, InputKind, StoreObject, StoreRead};
use serde::{Deserialize, Serialize};

use crate::FrameKind;

/// For `INVOKE` and `HTTP`, which the daemon sends.
#[derive(Debug, Serialize)]
struct InvokeMeta<'a> {
    id: &'a str,
    arn: &'a str,
    version: String,
    deadline_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_context: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_state: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<InputMeta<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed_inputs: Vec<FailedInputMeta<'a>>,
    // The request of an HTTP frame. Not a flattened struct: serde would write all fields through a slower path.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root_path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<&'a [(String, String)]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<(IpAddr, u16)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct InputMeta<'a> {
    name: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreMeta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decoded: Option<&'a Decoded>,
}

/// What clients of a store call an input.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum StoreMeta<'a> {
    S3 {
        #[serde(skip_serializing_if = "Option::is_none")]
        endpoint: Option<&'a str>,
        bucket: &'a str,
        key: &'a str,
        headers: &'a [(String, String)],
        asked_ns: u64,
    },
    Redis {
        host: &'a str,
        port: u16,
        database: i64,
        key: &'a str,
        asked_ns: u64,
    },
    Http {
        method: &'a str,
        url: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        body_sha256: &'a str,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        request_headers: &'a [(String, String)],
        status: u16,
        headers: &'a [(String, String)],
        asked_ns: u64,
    },
    Sqs {
        url: &'a str,
        action: &'a str,
        arguments_sha256: &'a str,
        asked_ns: u64,
    },
}

#[derive(Debug, Serialize)]
struct FailedInputMeta<'a> {
    name: &'a str,
    problem: &'a str,
}

/// The kind and the meta of the frame that begins an invocation. The meta names the inputs in the order of their descriptors, or
/// with their `paths`.
#[must_use]
pub fn of_invocation(
    head: &InvocationHead,
    inputs: &[Input],
    paths: &[String],
) -> (FrameKind, Vec<u8>) {
    let mut paths = paths.iter().map(String::as_str);
    let mut objects_room = OBJECTS_LEN_MAX;
    let http = head.http.as_ref();
    let kind = match http {
        None => FrameKind::Invoke,
        Some(_) => FrameKind::Http,
    };
    // Enough room for an ordinary one, to avoid a second allocation.
    let room = http.map_or(256, |http| {
        let headers = http.headers.iter();
        let headers: usize = headers
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum();
        384 + http.path.len() + http.query.len() + headers
    });
    let meta = InvokeMeta {
        id: head.id.as_str(),
        arn: &head.arn,
        version: head.version.to_string(),
        deadline_ms: head.deadline_unix_ms,
        client_context: head.client_context.as_deref(),
        trace: head.trace.as_deref(),
        trace_state: head.trace_state.as_deref(),
        inputs: inputs
            .iter()
            .map(|input| InputMeta::new(input, paths.next(), &mut objects_room))
            .collect(),
        failed_inputs: head
            .failed_inputs
            .iter()
            .map(|failed| FailedInputMeta {
                name: &failed.name,
                problem: &failed.problem,
            })
            .collect(),
        method: http.map(|http| http.method.as_str()),
        path: http.map(|http| http.path.as_str()),
        query: http.map(|http| http.query.as_str()),
        root_path: http.map(|http| http.root_path.as_str()),
        headers: http.map(|http| http.headers.as_slice()),
        client: http.map(|http| (http.client.ip(), http.client.port())),
        scheme: http.map(|http| http.scheme),
    };
    let mut json = Vec::with_capacity(room);
    serde_json::to_writer(&mut json, &meta)
        .expect("strings and numbers are always JSON, and a Vec takes every write");
    (kind, json)
}

impl<'a> InputMeta<'a> {
    /// `objects_room`: what is left of [`OBJECTS_LEN_MAX`].
    fn new(input: &'a Input, path: Option<&'a str>, objects_room: &mut usize) -> Self {
        let (kind, len) = match input.kind {
            InputKind::Memory { len } => ("memory", Some(len)),
            InputKind::Growing { len } => ("growing", len),
            InputKind::Progress => ("progress", None),
            InputKind::Socket => ("socket", None),
            InputKind::Body => ("body", None),
            InputKind::WebSocket => ("websocket", None),
            InputKind::Calls => ("calls", None),
            InputKind::Script => ("script", None),
        };
        // Without it, the worker's clients ask the store.
        let store = input.object.as_deref().and_then(|read| {
            *objects_room = objects_room.checked_sub(read.object.text_len()?)?;
            Some(StoreMeta::new(read))
        });
        Self {
            name: &input.name,
            kind,
            len,
            path,
            store,
            decoded: input.decoded.as_deref(),
        }
    }
}

impl<'a> StoreMeta<'a> {
    pub(crate) fn new(read: &'a StoreRead) -> Self {
        let asked_ns = read.asked.0;
        match &read.object {
            StoreObject::S3 {
                endpoint,
                bucket,
                key,
                headers,
            } => Self::S3 {
                endpoint: endpoint.as_deref(),
                bucket,
                key,
                headers,
                asked_ns,
            },
            StoreObject::Redis {
                host,
                port,
                database,
                key,
            } => Self::Redis {
                host,
                port: *port,
                database: *database,
                key,
                asked_ns,
            },
            StoreObject::Http {
                method,
                url,
                body_sha256,
                request_headers,
                status,
                headers,
            } => Self::Http {
                method,
                url,
                body_sha256,
                request_headers,
                status: *status,
                headers,
                asked_ns,
            },
            StoreObject::Sqs {
                url,
                action,
                arguments_sha256,
            } => Self::Sqs {
                url,
                action,
                arguments_sha256,
                asked_ns,
            },
        }
    }
}

/// Bytes of text of all objects of stores in one meta: escaped, they leave room for the headers of a request.
pub(crate) const OBJECTS_LEN_MAX: usize = 48 * 1024;

/// For `READY`. Nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ReadyMeta {
    /// The child's first instruction.
    pub forked_ns: u64,
    /// Isolated.
    pub sandboxed_ns: u64,
    /// Initialised.
    pub initialised_ns: u64,
    /// Maximum number of descriptors in one frame. Absent: none.
    #[serde(default)]
    pub inputs_max: u32,
    /// How much of each response the worker sends before it waits for `WINDOW`, bytes. It then knows `CANCEL`, too. Absent: it knows
    /// neither.
    #[serde(default)]
    pub window: u32,
}

/// For `RESULT`, `ERROR` and `END`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct DoneMeta {
    /// The handler was called.
    pub started_ns: u64,
    /// The handler returned.
    pub finished_ns: u64,
    /// The worker ends after this frame.
    #[serde(default)]
    pub last: bool,
}

/// For `HEAD`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HeadMeta {
    /// 100-599.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// An event function has set status and headers: they belong to a streamed payload.
    #[serde(default)]
    pub prelude: bool,
    /// The application was called.
    pub started_ns: u64,
    /// The response is complete with this frame: no `CHUNK`, no `END`.
    #[serde(default)]
    pub finished_ns: Option<u64>,
}
