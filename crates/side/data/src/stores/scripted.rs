//! A server of HTTP whose answers a test writes, byte for byte. Each connection has one request.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Object, StoreError};

pub(crate) struct Scripted {
    pub(crate) address: String,
    _accepting: JoinSet<()>,
}

/// What was asked for.
pub(crate) struct Asked {
    pub(crate) path: String,
    /// With lower-case names.
    headers: HashMap<String, String>,
}

impl Asked {
    /// Empty: it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

impl Scripted {
    pub(crate) async fn start(answer: impl Fn(&Asked) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = Arc::new(answer);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                connections.spawn(async move {
                    let mut stream = BufReader::new(stream);
                    // The client may hang up at any time.
                    if let Ok(asked) = read(&mut stream).await {
                        let _ = stream.write_all(answer(&asked).as_bytes()).await;
                    }
                });
            }
        });
        Self {
            address,
            _accepting: accepting,
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Asked> {
    let mut asked = Asked {
        path: String::new(),
        headers: HashMap::new(),
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(asked);
        }
        match line.split_once(": ") {
            Some((name, value)) => {
                let name = name.to_ascii_lowercase();
                asked.headers.insert(name, value.to_owned());
            }
            None => line.split(' ').nth(1).unwrap().clone_into(&mut asked.path),
        }
    }
}

/// An answer with this length in its head, whatever the body has. `head`: lines with their ends.
pub(crate) fn answer(status: &str, head: &str, len: usize, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{head}content-length: {len}\r\n\r\n{body}")
}

/// The bytes of an object.
pub(crate) async fn text(object: Object) -> Result<String, StoreError> {
    let parts: Vec<Bytes> = object.body.try_collect().await?;
    Ok(String::from_utf8(parts.concat()).unwrap())
}
