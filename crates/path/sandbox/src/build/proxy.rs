//! The HTTP proxy of one build. It listens on the loopback of the build's sandbox and passes connections on to the hosts that the
//! build may reach: with CONNECT, or as plain HTTP with an absolute address (RFC 9110, 9.3.6; RFC 9112, 3.2.2). Names are resolved
//! here; the sandbox has no resolver.
//!
//! What comes from the sandbox is untrusted. Connections, heads and times are bounded.

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use pilot_model::ports::{BuildAddress, Unreached};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// Serves until it is dropped, which closes its connections.
#[derive(Debug)]
pub(super) struct Proxy {
    rules: Arc<Rules>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Rules {
    hosts: Vec<BuildAddress>,
    upstream: Option<UpstreamProxy>,
    /// What was not reached, at most [`UNREACHED_MAX`].
    unreached: Mutex<Vec<Unreached>>,
}

/// Another proxy, through which the daemon reaches registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpstreamProxy {
    host: String,
    port: u16,
    /// `user:password`.
    credentials: Option<String>,
}

impl UpstreamProxy {
    /// Reads `http://[user:password@]host[:port][/]`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fail = || {
            "the proxy for builds (HTTPS_PROXY in the daemon's environment) must be http://HOST:PORT"
                .to_owned()
        };
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err(fail()),
            None => text,
        };
        let rest = rest.trim_end_matches('/');
        let (credentials, address) = match rest.rsplit_once('@') {
            Some((credentials, address)) => (Some(credentials.to_owned()), address),
            None => (None, rest),
        };
        let address = BuildAddress::parse(address).ok_or_else(fail)?;
        Ok(Self {
            host: address.host,
            port: address.port.unwrap_or(80),
            credentials,
        })
    }
}

/// A request's head.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    host: String,
    port: u16,
    /// `None`: CONNECT. Otherwise the head for the server, in the form without a proxy.
    plain: Option<Vec<u8>>,
}

impl Proxy {
    /// `listener` is a non-blocking socket that listens in the sandbox.
    pub(super) fn start(
        listener: OwnedFd,
        hosts: Vec<BuildAddress>,
        upstream: Option<UpstreamProxy>,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(StdTcpListener::from(listener))?;
        let rules = Arc::new(Rules {
            hosts,
            upstream,
            unreached: Mutex::default(),
        });
        let shared = Arc::clone(&rules);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.len() >= CONNECTIONS_MAX {
                    connections.join_next().await;
                }
                tokio::select! {
                    accepted = listener.accept() => {
                        match accepted {
                            Ok((client, _)) => {
                                let rules = Arc::clone(&shared);
                                connections.spawn(async move { rules.serve(client).await });
                            }
                            Err(error) => {
                                tracing::debug!(%error, "a connection of a build was not accepted");
                                tokio::time::sleep(ACCEPT_PAUSE).await;
                            }
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { rules, task })
    }

    pub(super) fn unreached(&self) -> Vec<Unreached> {
        self.rules.unreached.lock().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Rules {
    /// Serves one connection. Its errors are the client's, or have been noted.
    async fn serve(&self, mut client: TcpStream) {
        let read = timeout(HEAD_TIME_MAX, read_head(&mut client)).await;
        let Ok(Ok((head, rest))) = read else { return };
        let Some(head) = parse(&head) else {
            let _ = answer(&mut client, "400 Bad Request", "not a request to a proxy").await;
            return;
        };
        let address = format!("{}:{}", head.host, head.port);
        if !self
            .hosts
            .iter()
            .any(|allowed| allowed.covers(&head.host, head.port))
        {
            self.note(address, None);
            let text = "builds may not connect to this host; the daemon's [build] hosts lists more";
            let _ = answer(&mut client, "403 Forbidden", text).await;
            return;
        }
        let connected = timeout(CONNECT_TIME_MAX, self.connect(&head)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let mut server = match connected {
            Ok(server) => server,
            Err(error) => {
                let text = error.to_string();
                self.note(address, Some(text.clone()));
                let _ = answer(&mut client, "502 Bad Gateway", &text).await;
                return;
            }
        };
        let begun = match &head.plain {
            None => client.write_all(CONNECTED).await,
            Some(plain) => server.write_all(plain).await,
        };
        if begun.is_ok() && server.write_all(&rest).await.is_ok() {
            let _ = copy_bidirectional(&mut client, &mut server).await;
        }
    }

    async fn connect(&self, head: &Head) -> io::Result<TcpStream> {
        let Some(upstream) = &self.upstream else {
            return TcpStream::connect((head.host.as_str(), head.port)).await;
        };
        let mut server = TcpStream::connect((upstream.host.as_str(), upstream.port)).await?;
        let mut request = format!(
            "CONNECT {0}:{1} HTTP/1.1\r\nHost: {0}:{1}\r\n",
            head.host, head.port
        );
        if let Some(credentials) = &upstream.credentials {
            request.push_str("Proxy-Authorization: Basic ");
            request.push_str(&STANDARD.encode(credentials));
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        server.write_all(request.as_bytes()).await?;
        let (answer, rest) = read_head(&mut server).await?;
        let status = answer.split(|byte| *byte == b' ').nth(1);
        if status != Some(b"200") || !rest.is_empty() {
            return Err(io::Error::other(format!(
                "the proxy {}:{} refused the connection",
                upstream.host, upstream.port
            )));
        }
        Ok(server)
    }

    fn note(&self, address: String, problem: Option<String>) {
        let mut unreached = self.unreached.lock();
        let known = unreached.iter().any(|one| one.address == address);
        if !known && unreached.len() < UNREACHED_MAX {
            unreached.push(Unreached { address, problem });
        }
    }
}

/// Reads up to the empty line; returns the head with it, and what came behind it.
async fn read_head(stream: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            let rest = bytes.split_off(at + 4);
            return Ok((bytes, rest));
        }
        if bytes.len() >= HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

async fn answer(client: &mut TcpStream, status: &str, text: &str) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    client.write_all(answer.as_bytes()).await
}

/// `None`: not a request to a proxy.
fn parse(head: &[u8]) -> Option<Head> {
    let text = std::str::from_utf8(head).ok()?;
    let (line, fields) = text.split_once("\r\n")?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") {
        return None;
    }
    if method == "CONNECT" {
        let address = BuildAddress::parse(target)?;
        return Some(Head {
            port: address.port?,
            host: address.host,
            plain: None,
        });
    }
    let rest = target.strip_prefix("http://")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    let address = BuildAddress::parse(authority)?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    // One request per connection, so that the next one is judged again.
    let mut plain = format!("{method} {slash}{path} {version}\r\nConnection: close\r\n");
    for field in fields.split("\r\n").filter(|field| !field.is_empty()) {
        let name = field
            .split(':')
            .next()
            .unwrap_or(field)
            .to_ascii_lowercase();
        if !matches!(name.as_str(), "connection" | "keep-alive") && !name.starts_with("proxy-") {
            plain.push_str(field);
            plain.push_str("\r\n");
        }
    }
    plain.push_str("\r\n");
    Some(Head {
        port: address.port.unwrap_or(80),
        host: address.host,
        plain: Some(plain.into_bytes()),
    })
}

const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// Connections of one build at the same time. uv opens up to 50.
const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause after an error of accept(2), which may be one of the whole process: too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Hosts that are noted for the error message.
const UNREACHED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_host_and_is_passed_on_without_the_proxys_fields() {
        let head = parse(b"CONNECT index.example:443 HTTP/1.1\r\nHost: other\r\n\r\n").unwrap();
        assert_eq!(
            (head.host.as_str(), head.port, head.plain),
            ("index.example", 443, None)
        );
        let head = parse(
            b"GET http://u:p@index.example:3141/simple/?x HTTP/1.1\r\nHost: index.example\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n",
        )
        .unwrap();
        assert_eq!((head.host.as_str(), head.port), ("index.example", 3141));
        assert_eq!(
            head.plain.unwrap(),
            b"GET /simple/?x HTTP/1.1\r\nConnection: close\r\nHost: index.example\r\nAccept: */*\r\n\r\n"
        );
        for bad in [
            &b"GET /x HTTP/1.1\r\n\r\n"[..],
            b"CONNECT index.example HTTP/1.1\r\n\r\n",
            b"CONNECT a b HTTP/1.1\r\n\r\n",
            b"GET ftp://x/ HTTP/1.1\r\n\r\n",
            b"\xff\r\n\r\n",
            b"",
        ] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn another_proxy_is_read_or_refused() {
        let proxy = UpstreamProxy::parse("http://me:secret@proxy.example:3128/").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 3128));
        assert_eq!(proxy.credentials.as_deref(), Some("me:secret"));
        assert!(UpstreamProxy::parse("socks5://proxy.example").is_err());
    }

    /// A proxy with these hosts, and its address.
    async fn proxy(hosts: Vec<BuildAddress>) -> (Proxy, std::net::SocketAddr) {
        let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (Proxy::start(listener.into(), hosts, None).unwrap(), address)
    }

    async fn said(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn only_the_listed_hosts_are_reached() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let (head, _) = read_head(&mut stream).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\nhello")
                .await
                .unwrap();
            String::from_utf8(head).unwrap()
        });
        let allowed = BuildAddress::parse(&format!("127.0.0.1:{port}")).unwrap();
        let gone = BuildAddress::parse("127.0.0.1:1").unwrap();
        let (proxy, address) = proxy(vec![allowed, gone]).await;
        let request = format!("GET http://127.0.0.1:{port}/x HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(said(address, &request).await.ends_with("hello"));
        assert!(served.await.unwrap().starts_with("GET /x HTTP/1.1\r\n"));
        let refused = said(address, "CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n").await;
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
        let failed = said(address, "CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").await;
        assert!(failed.starts_with("HTTP/1.1 502 "), "{failed}");
        let unreached = proxy.unreached();
        assert_eq!(unreached[0].address, "127.0.0.1:22");
        assert_eq!(unreached[0].problem, None);
        assert!(unreached[1].problem.as_deref().unwrap().contains("refused"));
    }
}
