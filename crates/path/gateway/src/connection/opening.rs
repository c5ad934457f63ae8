//! The beginning of a connection: the TLS handshake, if the listener has TLS, and which version of HTTP follows. It is limited in time,
//! as a request's head is. A listener for plain HTTP/1 has no such beginning.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pilot_model::Seldom;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::client_stream::TLS_HANDSHAKE;
use super::line::{Scheme, Usage};
use super::stream::Stream;
use crate::gate::Gate;
use crate::listener::Transport;

/// A connection whose protocol is known.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stream: Stream,
    /// Bytes that were read to find out.
    pub(super) ahead: Bytes,
    pub(super) scheme: Scheme,
    pub(super) is_http2: bool,
}

/// Opens a connection on a listener with TLS, or with both versions of HTTP. `None`: it cannot be used.
pub(super) async fn open(
    gate: &Gate,
    stream: Stream,
    peer: SocketAddr,
    usage: &Usage,
) -> Option<Opened> {
    let opening = async {
        match (&gate.door.transport, stream) {
            (Transport::Tls(config), Stream::Tcp(stream)) => {
                shake_hands(config, stream, peer).await
            }
            (Transport::PlainWithHttp2, stream) => choose(stream).await,
            (_, stream) => Ok(plain(stream, Bytes::new(), false)),
        }
    };
    let limit = match gate.door.transport {
        Transport::Tls(_) => gate.config.head_time_max,
        // The first byte may come late: some clients open a connection before they need it.
        Transport::PlainWithHttp2 | Transport::Plain => gate.config.header_timeout,
    };
    match tokio::time::timeout(limit, opening).await {
        Ok(Ok(opened)) => Some(opened),
        Ok(Err(error)) => {
            tracing::debug!(%error, "connection ended before its first request");
            None
        }
        Err(_) => {
            usage.was_too_slow();
            None
        }
    }
}

fn plain(stream: Stream, ahead: Bytes, is_http2: bool) -> Opened {
    Opened {
        stream,
        ahead,
        scheme: Scheme::Http,
        is_http2,
    }
}

async fn shake_hands(
    config: &Arc<ServerConfig>,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> io::Result<Opened> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first[0].is_ascii_alphabetic() {
        if let Some(left_out) = MISTAKEN.admit(Instant::now()) {
            tracing::info!(
                client = %peer.ip(), left_out,
                "a client spoke plain HTTP to an address with TLS: it must use https://"
            );
        }
        close(&mut stream, USE_TLS).await;
        return Err(io::Error::other("plain HTTP on a listener with TLS"));
    }
    if first[0] != TLS_HANDSHAKE {
        return Err(io::Error::other("neither TLS nor HTTP"));
    }
    let acceptor = TlsAcceptor::from(config.clone());
    let stream = acceptor
        .accept_with(stream, |session| {
            session.set_buffer_limit(Some(TLS_BUFFER_BYTES_MAX));
        })
        .await?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(Transport::ALPN[0]);
    Ok(Opened {
        stream: Stream::Tls(Box::new(stream)),
        ahead: Bytes::new(),
        scheme: Scheme::Https,
        is_http2,
    })
}

/// Says the last words, and closes. What the client sends is discarded for a moment, because otherwise the kernel would answer it with
/// RST, and the client might lose the words. Its errors are the client's.
async fn close(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), last_words: &[u8]) {
    let closing = async {
        stream.write_all(last_words).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        let mut left = DISCARDED_BYTES_MAX;
        while left > 0 {
            match stream.read(&mut scratch).await? {
                0 => break,
                len => left = left.saturating_sub(len),
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(CLOSING_TIME, closing).await;
}

/// Reads until the client has sent the beginning of HTTP/2, or something else.
async fn choose(mut stream: Stream) -> io::Result<Opened> {
    let mut ahead = BytesMut::with_capacity(PREFACE.len());
    let mut scratch = [0; PREFACE.len()];
    loop {
        let wanted = PREFACE.len() - ahead.len();
        let read = stream.read(&mut scratch[..wanted]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        ahead.extend_from_slice(&scratch[..read]);
        if !PREFACE.starts_with(&ahead) {
            if is_neither(&ahead) {
                close(&mut stream, b"").await;
                return Err(io::Error::other("neither HTTP/2 nor HTTP/1"));
            }
            return Ok(plain(stream, ahead.freeze(), false));
        }
        if ahead.len() == PREFACE.len() {
            return Ok(plain(stream, ahead.freeze(), true));
        }
    }
}

/// Whether the third word of a connection is not a version of HTTP/1. Such a connection is closed without a response, which a client of
/// HTTP/2 with a wrong preface could not read (RFC 9113 §3.4).
fn is_neither(ahead: &[u8]) -> bool {
    let mut words = ahead.splitn(3, |byte| *byte == b' ');
    let third = words.nth(2).unwrap_or_default();
    let len = third.len().min(VERSION.len());
    third[..len] != VERSION[..len]
}

/// Says in the log that a client spoke TLS to a listener without it.
pub(super) fn tell_of_tls(peer: SocketAddr) {
    if let Some(left_out) = MISTAKEN.admit(Instant::now()) {
        tracing::info!(
            client = %peer.ip(), left_out,
            "a client spoke TLS to an address without it: it must use http://, or the address needs a certificate \
             (tls_certificate and tls_key in pilotd.toml)"
        );
    }
}

/// Clients that use the wrong scheme and are logged per interval.
static MISTAKEN: Seldom = Seldom::new(5);

/// How much of a response waits, encrypted, for a client that does not read.
const TLS_BUFFER_BYTES_MAX: usize = 32 * 1024;

/// The beginning of a connection of HTTP/2 (RFC 9113 §3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The third word of a request of HTTP/1, without its last digit.
const VERSION: &[u8] = b"HTTP/1.";

/// The answer to plain HTTP, in the form of the control API.
const USE_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 85\r\n\r\n\
    {\"code\":\"tls\",\"message\":\"this address speaks TLS: use https:// instead of http://\"}\r\n";
const CLOSING_TIME: Duration = Duration::from_millis(500);
const DISCARDED_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_preface_is_told_from_a_request_of_http1() {
        for (ahead, neither) in [
            ("INVALID CONNECTION PREFA", true),
            ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nhost: x", false),
            ("GET /a HTTP/1", false),
            ("GET /a ", false),
            ("GET /a-path-longer-than-a", false),
            ("G", false),
        ] {
            assert_eq!(is_neither(ahead.as_bytes()), neither, "{ahead}");
        }
    }

    #[test]
    fn the_hint_to_use_tls_is_a_complete_response_in_the_control_apis_form() {
        let text = std::str::from_utf8(USE_TLS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with(&format!("content-length: {}", body.len())),
            "{} {head}",
            body.len()
        );
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["code"], "tls");
    }
}
