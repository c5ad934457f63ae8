//! The answers to connections for which there is no room: 503 without reading the request.
//!
//! The client may be sending its request. If the socket were closed with unread bytes, the kernel would answer them with a reset, and
//! the client might lose the response. So what it sends is discarded for a moment, from so many connections at the same time. Those of
//! one client take no more than its share. Beyond that, the response is sent and the connection closed at once.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv, send};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::connection::stream::Stream;
use crate::peers::Client;

/// The refusals of one listener that run.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    running: JoinSet<Client>,
    by_client: HashMap<Client, usize>,
}

impl Refusals {
    /// Answers, and closes.
    pub(crate) fn refuse(&mut self, stream: Stream, client: Client) {
        let of_client = self.by_client.get(&client).copied().unwrap_or(0);
        if self.running.len() >= RUNNING_MAX || of_client >= CLIENT_MAX {
            return refuse_at_once(&stream);
        }
        self.by_client.insert(client, of_client + 1);
        self.running.spawn(async move {
            // It ends well or is given up. Either way, the connection is closed.
            let _ = tokio::time::timeout(TIME_MAX, refuse(stream)).await;
            client
        });
    }

    /// Resolves when one has ended. Never, if none runs.
    pub(crate) async fn ended(&mut self) {
        let Some(ended) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        // They neither panic nor are aborted, so each gives back its client's place.
        if let Ok(client) = ended
            && let Some(count) = self.by_client.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

async fn refuse(mut stream: Stream) -> io::Result<()> {
    stream.write_all(RESPONSE).await?;
    stream.shutdown().await?;
    let mut scratch = [0; 1024];
    let mut left = DISCARDED_MAX;
    while left > 0 {
        match stream.read(&mut scratch).await? {
            0 => break,
            len => left = left.saturating_sub(len),
        }
    }
    Ok(())
}

/// Discards what has arrived, and answers, without waiting for either. A new connection has room for the response.
fn refuse_at_once(stream: &Stream) {
    let socket = stream.descriptor().as_raw_fd();
    let mut scratch = [0; 4096];
    for _ in 0..DISCARDED_MAX / scratch.len() {
        match recv(socket, &mut scratch, MsgFlags::MSG_DONTWAIT) {
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
    }
    // Fails only if the client is gone.
    let _ = send(
        socket,
        RESPONSE,
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
    );
}

const RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: application/json\r\ncontent-length: 86\r\n\r\n\
    {\"Type\":\"Service\",\"Message\":\"too many open connections: try again, or reuse your own\"}";
/// How many run at the same time.
const RUNNING_MAX: usize = 64;
/// How many of them are of one client.
const CLIENT_MAX: usize = 16;
const TIME_MAX: Duration = Duration::from_millis(500);
const DISCARDED_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_refusal_is_a_complete_response() {
        let text = std::str::from_utf8(RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with(&format!("content-length: {}", body.len())),
            "{} {head}",
            body.len()
        );
        assert!(head.contains("retry-after: 1"));
    }

    #[tokio::test]
    async fn every_client_is_told_also_when_many_are_at_the_same_time() {
        use std::io::Write as _;
        let mut refusals = Refusals::default();
        let mut clients = Vec::new();
        for number in 0..3 * CLIENT_MAX {
            let (mut client, server) = UnixStream::pair().unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                .unwrap();
            server.set_nonblocking(true).unwrap();
            let server = Stream::Unix(tokio::net::UnixStream::from_std(server).unwrap());
            let user = if number == 0 { 2 } else { 1 };
            refusals.refuse(server, Client::User(user));
            clients.push(client);
        }
        assert_eq!(refusals.running.len(), CLIENT_MAX + 1);
        while !refusals.running.is_empty() {
            refusals.ended().await;
        }
        assert!(refusals.by_client.is_empty());
        for mut client in clients {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, RESPONSE);
        }
    }
}
