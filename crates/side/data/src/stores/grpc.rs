//! One unary call of an initscript to a gRPC server, as a store with one object: the reply's message. HTTP/2 is that of the crate
//! `reqwest`; here are the frame around a message and the status at the end ("gRPC over HTTP2", the protocol's description). What a
//! message means, only the script and the server know. Nothing is compressed.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::try_unfold;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use percent_encoding::percent_decode_str;
use pilot_model::BoxFuture;
use pilot_model::initscript::Endpoint;
use pilot_model::inputs::Scheme;
use pilot_model::ports::{InputFaultKind as Kind, RemoteRequest};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use reqwest::{Client, StatusCode, Url};

use super::direct::{OURS, builder, check_literal, failed};
use super::s3::chain;
use super::{Got, Object, Store, StoreError, Validator};
use crate::networks::Networks;

/// The client of all gRPC servers. Calls to one server share a connection.
#[derive(Debug)]
pub(crate) struct DirectGrpc {
    client: Client,
    networks: Networks,
}

impl DirectGrpc {
    /// # Errors
    /// The machine's certificates cannot be used.
    pub(crate) fn new(networks: Networks) -> Result<Self, String> {
        let client = builder(&networks)
            .http2_prior_knowledge()
            // What a server can send before anybody reads it, bytes.
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_header_list_size(HEADERS_LEN_MAX)
            .build()
            .map_err(|error| chain(&error))?;
        Ok(Self { client, networks })
    }

    /// A store with one object: the reply to this call.
    pub(crate) fn once(&self, call: GrpcCall) -> Arc<dyn Store> {
        Arc::new(OneReply {
            client: self.client.clone(),
            networks: self.networks.clone(),
            call,
        })
    }
}

/// A checked call.
#[derive(Debug)]
pub(crate) struct GrpcCall {
    url: Url,
    headers: HeaderMap,
    /// The message with its frame.
    body: Bytes,
}

impl GrpcCall {
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn new(endpoint: &Endpoint, request: &RemoteRequest) -> Result<Self, StoreError> {
        let wrong = |problem: &str| StoreError::new(Kind::Key, problem);
        if request.method != "POST" {
            return Err(wrong(
                "a call is POST /PACKAGE.SERVICE/METHOD, with metadata as headers, an empty line and the message",
            ));
        }
        let scheme = match endpoint.scheme() {
            Scheme::Grpcs => "https",
            _ => "http",
        };
        let port = endpoint.port_or_usual().unwrap_or_default();
        let url = format!("{scheme}://{}:{port}{}", endpoint.host(), request.key);
        let url = Url::parse(&url).map_err(|error| wrong(&format!("the target: {error}")))?;
        let mut headers = HeaderMap::new();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/grpc+proto"),
        );
        headers.insert(TE, HeaderValue::from_static("trailers"));
        for (name, value) in &request.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let name = name.map_err(|_| wrong("the name of metadata has odd characters"))?;
            let is_ours = OURS.contains(&name.as_str()) || name == CONTENT_TYPE;
            if is_ours || name.as_str().starts_with("grpc-") {
                return Err(wrong(&format!("the metadata {name} is the host's")));
            }
            let value = HeaderValue::from_str(value);
            let value = value.map_err(|_| wrong("the value of metadata has odd characters"))?;
            headers.append(name, value);
        }
        let mut body = BytesMut::with_capacity(FRAME_HEAD_LEN + request.body.len());
        body.put_u8(PLAIN);
        let len = u32::try_from(request.body.len());
        body.put_u32(len.map_err(|_| wrong("the message is too long"))?);
        body.put_slice(&request.body);
        Ok(Self {
            url,
            headers,
            body: body.freeze(),
        })
    }
}

/// A store whose object is the message of one reply.
#[derive(Debug)]
struct OneReply {
    client: Client,
    networks: Networks,
    call: GrpcCall,
}

impl Store for OneReply {
    /// A call may have changed something.
    fn retries(&self) -> u32 {
        0
    }

    fn get<'a>(
        &'a self,
        _: &'a str,
        _: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let GrpcCall { url, headers, body } = &self.call;
            check_literal(&self.networks, url)?;
            let request = self.client.post(url.clone()).headers(headers.clone());
            let sent = request.body(body.clone()).send().await;
            let response = sent.map_err(failed)?;
            let kind = response.headers().get(CONTENT_TYPE);
            let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            if response.status() != StatusCode::OK || !is_grpc {
                let problem = format!("it is not a gRPC server: it answers {}", response.status());
                return Err(StoreError::new(Kind::Broken, &problem));
            }
            // An error may have no message, and its status in the head.
            if response.headers().contains_key(STATUS) {
                check_status(response.headers())?;
            }
            let body = http::Response::from(response).into_body();
            let mut reply = Reply {
                body: body.boxed_unsync(),
                part: Bytes::new(),
                left: 0,
            };
            reply.begin().await?;
            Ok(Got::Object(Object {
                len: Some(u64::from(reply.left)),
                validator: None,
                headers: Vec::new(),
                body: try_unfold(reply, async |mut reply| {
                    let part = reply.next().await?;
                    Ok(part.map(|part| (part, reply)))
                })
                .boxed(),
            }))
        })
    }
}

/// A reply that is being read: one message, and then the status.
struct Reply {
    body: UnsyncBoxBody<Bytes, reqwest::Error>,
    /// What has come of the message.
    part: Bytes,
    /// Bytes of the message that were not given yet.
    left: u32,
}

impl Reply {
    /// Reads the head of the message's frame.
    async fn begin(&mut self) -> Result<(), StoreError> {
        let mut read = BytesMut::new();
        while read.len() < FRAME_HEAD_LEN {
            match self.data().await? {
                Some(data) => read.extend_from_slice(&data),
                None => return Err(broken("the server's reply has no message")),
            }
        }
        let rest = read.split_off(FRAME_HEAD_LEN);
        let [flags, len @ ..]: [u8; FRAME_HEAD_LEN] = read
            .as_ref()
            .try_into()
            .map_err(|_| broken("the server's reply has no message"))?;
        if flags != PLAIN {
            return Err(broken("the server compresses its reply, unasked"));
        }
        self.left = u32::from_be_bytes(len);
        self.part = rest.freeze();
        Ok(())
    }

    /// The next part of the message. `None`: it is complete, and the status is that of a success.
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            let part = std::mem::take(&mut self.part);
            if !part.is_empty() {
                let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
                let left = self.left.checked_sub(len);
                self.left =
                    left.ok_or_else(|| broken("the server's reply has more than one message"))?;
                return Ok(Some(part));
            }
            match self.data().await? {
                Some(data) => self.part = data,
                None if self.left > 0 => {
                    return Err(broken("the server's reply ends within its message"));
                }
                None => return Ok(None),
            }
        }
    }

    /// The next bytes. `None`: they were followed by the status of a success.
    async fn data(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            let Some(frame) = self.body.frame().await else {
                return Err(broken("the server's reply has no status"));
            };
            match frame.map_err(failed)?.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        check_status(&trailers)?;
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// Whether a call succeeded, by its status and message.
fn check_status(headers: &HeaderMap) -> Result<(), StoreError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let status = text(STATUS).unwrap_or_default();
    let kind = match status {
        "0" => return Ok(()),
        "5" => Kind::NotFound,
        "7" | "16" => Kind::Denied,
        "4" | "8" | "14" => Kind::Unavailable,
        _ => Kind::Broken,
    };
    let said = percent_decode_str(text("grpc-message").unwrap_or_default()).decode_utf8_lossy();
    let problem = format!("the server answers with status {status}: {said}");
    Err(StoreError::new(kind, &problem))
}

fn broken(problem: &str) -> StoreError {
    StoreError::new(Kind::Broken, problem)
}

const STATUS: &str = "grpc-status";
/// A flag, and the length of the message.
const FRAME_HEAD_LEN: usize = 5;
/// The flag of a message that is not compressed.
const PLAIN: u8 = 0;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const HEADERS_LEN_MAX: u32 = 16 << 10;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// What is read of a reply with these bytes, in parts of `size`, and this status.
    async fn read(
        bytes: &[u8],
        size: usize,
        status: Option<&'static str>,
    ) -> Result<Vec<u8>, Kind> {
        let parts = bytes.chunks(size).map(Bytes::copy_from_slice);
        let mut frames: Vec<Result<Frame<Bytes>, Infallible>> =
            parts.map(|part| Ok(Frame::data(part))).collect();
        if let Some(status) = status {
            let mut trailers = HeaderMap::new();
            trailers.insert(STATUS, HeaderValue::from_static(status));
            trailers.insert(
                "grpc-message",
                HeaderValue::from_static("no%20such%0Athing"),
            );
            frames.push(Ok(Frame::trailers(trailers)));
        }
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let mut reply = Reply {
            body: body.map_err(|never| match never {}).boxed_unsync(),
            part: Bytes::new(),
            left: 0,
        };
        let kind = |error: StoreError| error.kind;
        reply.begin().await.map_err(kind)?;
        let mut message = Vec::new();
        while let Some(part) = reply.next().await.map_err(kind)? {
            message.extend_from_slice(&part);
        }
        Ok(message)
    }

    #[tokio::test]
    async fn a_reply_is_one_message_and_a_status() {
        let reply = b"\0\0\0\0\x05hello";
        for size in [1, 4, 5, 6, 100] {
            assert_eq!(read(reply, size, Some("0")).await.unwrap(), b"hello");
        }
        assert_eq!(read(b"\0\0\0\0\0", 9, Some("0")).await.unwrap(), b"");
        for (bytes, status, kind) in [
            (&reply[..], None, Kind::Broken),
            (reply, Some("5"), Kind::NotFound),
            (reply, Some("16"), Kind::Denied),
            (reply, Some(""), Kind::Broken),
            (b"", Some("0"), Kind::Broken),
            (b"", Some("14"), Kind::Unavailable),
            (b"\0\0\0", Some("0"), Kind::Broken),
            (b"\x01\0\0\0\x05hello", Some("0"), Kind::Broken),
            (b"\0\0\0\0\x06hello", Some("0"), Kind::Broken),
            (b"\0\0\0\0\x04hello", Some("0"), Kind::Broken),
            (b"\0\0\0\0\x05hello\0\0\0\0\0", Some("0"), Kind::Broken),
        ] {
            assert_eq!(
                read(bytes, 3, status).await,
                Err(kind),
                "{bytes:?} {status:?}"
            );
        }
    }

    #[test]
    fn a_call_has_the_hosts_headers_alone() {
        let endpoint: Endpoint = "grpc://127.0.0.1:50051".parse().unwrap();
        let call = |method: &str, header: &str| {
            let request = RemoteRequest {
                method: method.to_owned(),
                key: "/echo.Echo/Say".to_owned(),
                headers: vec![(header.to_owned(), "x".to_owned())],
                body: Bytes::from_static(b"hi"),
            };
            GrpcCall::new(&endpoint, &request)
        };
        let found = call("POST", "authorization").unwrap();
        assert_eq!(found.url.as_str(), "http://127.0.0.1:50051/echo.Echo/Say");
        assert_eq!(&found.body[..], b"\0\0\0\0\x02hi");
        for (method, header) in [
            ("GET", "a"),
            ("POST", "te"),
            ("POST", "host"),
            ("POST", "Content-Type"),
            ("POST", "grpc-encoding"),
            ("POST", "a b"),
        ] {
            assert!(call(method, header).is_err(), "{method} {header}");
        }
    }
}
