//! A server that speaks as much of HTTP, S3 and Redis as the stores ask for.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

type Objects = Arc<Mutex<HashMap<String, Vec<u8>>>>;
type Connection = BufReader<TcpStream>;

pub(super) struct Server {
    pub(super) address: String,
    objects: Objects,
    _connections: JoinSet<()>,
}

#[derive(Clone, Copy)]
enum Speaks {
    Http,
    Redis,
}

impl Server {
    pub(super) async fn http() -> Self {
        Self::start(Speaks::Http).await
    }

    pub(super) async fn redis() -> Self {
        Self::start(Speaks::Redis).await
    }

    async fn start(speaks: Speaks) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let objects = Objects::default();
        let served = Arc::clone(&objects);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (objects, stream) = (Arc::clone(&served), BufReader::new(stream));
                connections.spawn(async move {
                    // The client may hang up at any time.
                    let _ = match speaks {
                        Speaks::Http => http(stream, &objects).await,
                        Speaks::Redis => redis(stream, &objects).await,
                    };
                });
            }
        });
        Self {
            address,
            objects,
            _connections: accepting,
        }
    }

    pub(super) fn putting(&self) -> impl Fn(&str, Vec<u8>) + use<> {
        let objects = Arc::clone(&self.objects);
        move |key, body| {
            objects.lock().insert(key.to_owned(), body);
        }
    }
}

async fn http(mut stream: Connection, objects: &Objects) -> std::io::Result<()> {
    loop {
        let (mut path, mut known, mut is_head) = (String::new(), None, false);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            is_head |= line.starts_with("HEAD ");
            if let Some(rest) = line.strip_prefix("GET ").or(line.strip_prefix("HEAD ")) {
                rest.split(' ').next().unwrap().clone_into(&mut path);
            }
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("if-none-match")
            {
                known = Some(value.to_owned());
            }
        }
        let key = path.strip_prefix("/photos/").unwrap_or_default();
        let key = percent_decode_str(key).decode_utf8().unwrap().into_owned();
        let found = objects.lock().get(&key).cloned();
        let (status, tag, body) = match (key.as_str(), found) {
            ("fault/silent", _) => return std::future::pending().await,
            ("fault/truncated", _) => {
                let half = "HTTP/1.1 200 OK\r\netag: \"x\"\r\ncontent-length: 10\r\n\r\nhalf!";
                return stream.write_all(half.as_bytes()).await;
            }
            ("fault/cut", _) => {
                let half = "HTTP/1.1 200 OK\r\netag: \"x\"\r\ntransfer-encoding: chunked\r\n\r\na\r\nhalf!";
                return stream.write_all(half.as_bytes()).await;
            }
            ("fault/changed", _) => {
                let other = "HTTP/1.1 200 OK\r\netag: \"x\"\r\ncontent-length: 9\r\nx-amz-checksum-crc32: y/Q5Jg==\r\n\r\n123456780";
                stream.write_all(other.as_bytes()).await?;
                continue;
            }
            ("fault/denied", _) => ("403 Forbidden", String::new(), error("AccessDenied")),
            (_, None) => ("404 Not Found", String::new(), error("NoSuchKey")),
            (_, Some(body)) => {
                let sum = body.iter().fold(body.len(), |sum, byte| {
                    sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
                });
                let tag = format!("\"{sum:x}\"");
                match known.as_deref() == Some(tag.as_str()) {
                    true => ("304 Not Modified", tag, Vec::new()),
                    false => ("200 OK", tag, body),
                }
            }
        };
        let tag = match tag.as_str() {
            "" => String::new(),
            tag => format!("etag: {tag}\r\n"),
        };
        // This one is described anew when it has been read.
        let is_anew = key == "described" && (is_head || known.is_some());
        let second = if is_anew { 38 } else { 37 };
        let head = format!(
            "HTTP/1.1 {status}\r\n{tag}date: Sun, 06 Nov 1994 08:49:50 GMT\r\n\
             last-modified: Sun, 06 Nov 1994 08:49:{second} GMT\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        if !is_head {
            stream.write_all(&body).await?;
        }
    }
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes()
}

async fn redis(mut stream: Connection, objects: &Objects) -> std::io::Result<()> {
    loop {
        let words = command(&mut stream).await?;
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let value = objects.lock().get(word(1)).cloned();
        let bulk =
            |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let number = |at: usize| word(at).parse::<usize>().unwrap();
        let answer = match (word(0).to_ascii_uppercase().as_str(), word(1)) {
            ("STRLEN", "fault/silent") => return std::future::pending().await,
            ("TYPE", "fault/denied") => b"-NOPERM this user has no permissions\r\n".to_vec(),
            ("TYPE", "fault/truncated" | "fault/silent") => b"+string\r\n".to_vec(),
            ("STRLEN", "fault/truncated") => b":10\r\n".to_vec(),
            ("GETRANGE", "fault/truncated") => bulk(b"half!"),
            ("TYPE", _) => match value {
                Some(_) => b"+string\r\n".to_vec(),
                None => b"+none\r\n".to_vec(),
            },
            ("STRLEN", _) => format!(":{}\r\n", value.map_or(0, |value| value.len())).into_bytes(),
            ("GETRANGE", _) => bulk(&value.unwrap()[number(2)..=number(3)]),
            ("EXEC", _) => b"*0\r\n".to_vec(),
            // Its memory is used up, so that it queues nothing.
            ("PING", _) => b"-OOM command not allowed\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        };
        stream.write_all(&answer).await?;
    }
}

/// `*2\r\n$4\r\nTYPE\r\n$1\r\nk\r\n`
async fn command(stream: &mut Connection) -> std::io::Result<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..length(stream).await? {
        let mut word = vec![0; length(stream).await? + 2];
        stream.read_exact(&mut word).await?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).unwrap());
    }
    Ok(words)
}

async fn length(stream: &mut Connection) -> std::io::Result<usize> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line[1..].trim_end().parse().unwrap())
}
