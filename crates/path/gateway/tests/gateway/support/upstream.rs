//! A function's own server: a listener on loopback with a handler from the test, and the hyper client that a worker uses.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pilot_model::ports::{PassedRequest, PassedResponse, StreamedBody, WorkerFault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Listens, and gives each connection to `serve`.
pub(crate) async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream));
        }
    });
    addr
}

/// One exchange with the server at `addr`, over its own connection.
pub(crate) async fn pass(
    addr: SocketAddr,
    request: PassedRequest,
) -> Result<PassedResponse, WorkerFault> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| fault(&error))?;
    Ok(response.map(|body| StreamedBody::new(body.map_err(Into::into))))
}

pub(crate) fn fault(error: &dyn std::error::Error) -> WorkerFault {
    WorkerFault::Protocol {
        problem: error.to_string(),
        output: Bytes::new(),
    }
}

/// Reads a request's head.
pub(crate) async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Answers the first request of every connection with these bytes, and closes.
pub(crate) async fn saying(bytes: &'static str) -> SocketAddr {
    listen(async move |mut stream: TcpStream| {
        head(&mut stream).await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
    })
    .await
}

/// What a server got on one connection, byte by byte, and read as strictly as RFC 9112 allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Strict {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: String,
}

/// A server that answers the first request of each connection, and then waits for its end. `told` gets the request; or why it is not
/// exactly one request that everybody would read in the same way. A request that breaks off is none.
pub(crate) async fn strict(
    told: impl Fn(Result<Strict, String>) + Clone + Send + Sync + 'static,
) -> SocketAddr {
    listen(move |mut stream: TcpStream| {
        let told = told.clone();
        async move {
            let head = head(&mut stream).await;
            let read = match framing(&head) {
                Ok(framing) => body(&mut stream, framing).await,
                Err(problem) => Err(problem),
            };
            let mut line = head.split("\r\n").next().unwrap_or_default().split(' ');
            match read {
                Ok(None) => return,
                Ok(Some(body)) => told(Ok(Strict {
                    method: line.next().unwrap_or_default().to_owned(),
                    target: line.next().unwrap_or_default().to_owned(),
                    body,
                })),
                Err(problem) => told(Err(problem)),
            }
            stream.write_all(ANSWER).await.unwrap();
            let mut rest = Vec::new();
            // The client of the other side closes after the answer.
            let _ = stream.read_to_end(&mut rest).await;
            if !rest.is_empty() {
                let rest = String::from_utf8_lossy(&rest);
                told(Err(format!("after the request: {rest:?}")));
            }
        }
    })
    .await
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

/// How the end of a body is found.
enum Framing {
    Length(usize),
    Chunks,
}

/// The framing, if the head is beyond doubt.
fn framing(head: &str) -> Result<Framing, String> {
    let doubt = |what: &str| Err(format!("{what}: {head:?}"));
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let token = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    match words[..] {
        [method, target, "HTTP/1.1"] if token(method) && target.starts_with('/') => {}
        _ => return doubt("the request line"),
    }
    let (mut lengths, mut codings, mut hosts) = (Vec::new(), Vec::new(), 0);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return doubt("a line without a colon");
        };
        if !token(name) || value.bytes().any(|byte| byte < 0x20 && byte != b'\t') {
            return doubt("a header");
        }
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value.trim()),
            "transfer-encoding" => codings.push(value.trim()),
            "host" => hosts += 1,
            _ => {}
        }
    }
    if hosts != 1 {
        return doubt("not one host");
    }
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(Framing::Length(0)),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => length
            .parse()
            .map(Framing::Length)
            .or_else(|_| doubt("the length")),
        ([], ["chunked"]) => Ok(Framing::Chunks),
        _ => doubt("the framing"),
    }
}

/// `None`: the body breaks off.
async fn body(stream: &mut TcpStream, framing: Framing) -> Result<Option<String>, String> {
    let mut body = Vec::new();
    match framing {
        Framing::Length(len) => {
            body.resize(len, 0);
            if stream.read_exact(&mut body).await.is_err() {
                return Ok(None);
            }
        }
        Framing::Chunks => loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => line.push(byte),
                    Err(_) => return Ok(None),
                }
            }
            let digits = std::str::from_utf8(&line[..line.len() - 2]).unwrap_or_default();
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(len) = usize::from_str_radix(digits, 16).ok().filter(|_| plain) else {
                return Err(format!("a chunk size: {line:?}"));
            };
            let mut chunk = vec![0; len + 2];
            if len == 0 {
                // Trailers up to an empty line.
                let mut trailers = Vec::new();
                while !(trailers == b"\r\n" || trailers.ends_with(b"\r\n\r\n")) {
                    match stream.read_u8().await {
                        Ok(byte) => trailers.push(byte),
                        Err(_) => return Ok(None),
                    }
                }
                break;
            }
            if stream.read_exact(&mut chunk).await.is_err() {
                return Ok(None);
            }
            if !chunk.ends_with(b"\r\n") {
                return Err("a chunk without its line end".to_owned());
            }
            body.extend_from_slice(&chunk[..len]);
        },
    }
    String::from_utf8(body)
        .map(Some)
        .map_err(|error| error.to_string())
}

/// A whole response.
pub(crate) fn response(body: impl Into<Bytes>) -> PassedResponse {
    Response::new(StreamedBody::new(
        Full::new(body.into()).map_err(|never| match never {}),
    ))
}
