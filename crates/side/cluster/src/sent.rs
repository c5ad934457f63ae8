//! The body of a call that is sent: its event, and then its data, which is read from memory as it is filled. It notes when all of it was
//! given to the connection: until then, the other node cannot have run the call.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pilot_model::calls::{Reason, Refusal};
use pilot_model::ports::{HandedData, There};
use tokio::sync::mpsc;

/// The body of a call.
#[derive(Debug)]
pub(crate) struct SentBody {
    event: Bytes,
    parts: mpsc::Receiver<Bytes>,
    /// Bytes of the data that are not given yet.
    left: u64,
    is_given: Arc<AtomicBool>,
}

/// The data was given up, or is not as long as was said.
#[derive(Debug)]
pub(crate) struct GivenUp;

impl std::fmt::Display for GivenUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the data of the call was given up")
    }
}

impl std::error::Error for GivenUp {}

impl SentBody {
    /// The body, where its data goes, and whether all of it was given to the connection.
    pub(crate) fn new(event: Bytes, data_len: u64) -> (Self, mpsc::Sender<Bytes>, Arc<AtomicBool>) {
        let (sender, parts) = mpsc::channel(PARTS_MAX);
        let is_given = Arc::new(AtomicBool::new(event.is_empty() && data_len == 0));
        let body = Self {
            event,
            parts,
            left: data_len,
            is_given: Arc::clone(&is_given),
        };
        (body, sender, is_given)
    }

    fn note(&self) {
        if self.event.is_empty() && self.left == 0 {
            self.is_given.store(true, Ordering::Release);
        }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        if !self.event.is_empty() {
            let event = std::mem::take(&mut self.event);
            self.note();
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let Some(part) = std::task::ready!(self.parts.poll_recv(cx)) else {
            return Poll::Ready(Some(Err(GivenUp)));
        };
        let Some(left) = self.left.checked_sub(part.len() as u64) else {
            return Poll::Ready(Some(Err(GivenUp)));
        };
        self.left = left;
        self.note();
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.event.is_empty() && self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.event.len() as u64 + self.left)
    }
}

/// Gives the data to the body as it is there. Returns when all was given, or nobody takes it any more.
///
/// # Errors
/// The data was given up, or cannot be read.
pub(crate) async fn feed(data: &dyn HandedData, parts: mpsc::Sender<Bytes>) -> Result<(), Refusal> {
    let unavailable = |error: io::Error| {
        let problem = format!("the data cannot be read: {error}");
        Refusal::new(Reason::Unavailable, problem)
    };
    let len = data.bytes();
    let mut at = 0;
    loop {
        let There { file, len: until } = data.there(at).await?;
        if until > len || (until <= at && until != len) {
            return Err(unavailable(io::ErrorKind::InvalidData.into()));
        }
        // Reading memory that lies on the disk may wait.
        let to = parts.clone();
        let reading = tokio::task::spawn_blocking(move || read(&file, at..until, &to));
        let read = reading.await.map_err(io::Error::other);
        let is_taken = read.and_then(|read| read).map_err(unavailable)?;
        if until == len || !is_taken {
            return Ok(());
        }
        at = until;
    }
}

/// Whether somebody takes it.
fn read(file: &Arc<OwnedFd>, range: Range<u64>, parts: &mpsc::Sender<Bytes>) -> io::Result<bool> {
    let file = File::from(file.try_clone()?);
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let mut part = vec![0; left.min(PART_LEN)];
        file.read_exact_at(&mut part, at)?;
        at += part.len() as u64;
        if parts.blocking_send(part.into()).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Bytes that are read at once.
const PART_LEN: usize = 256 << 10;
/// Parts that wait for the connection.
const PARTS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use pilot_model::ports::BoxFuture;

    use super::*;

    #[tokio::test]
    async fn all_is_given_with_the_last_byte_and_not_before() {
        let (mut body, parts, is_given) = SentBody::new("{}".into(), 3);
        assert_eq!(body.size_hint().exact(), Some(5));
        body.frame().await.unwrap().unwrap();
        parts.send("ab".into()).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(!is_given.load(Ordering::Acquire) && !body.is_end_stream());
        parts.send("c".into()).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(is_given.load(Ordering::Acquire) && body.is_end_stream());
        assert!(body.frame().await.is_none());
        let (mut body, _, is_given) = SentBody::new("{}".into(), 0);
        body.frame().await.unwrap().unwrap();
        assert!(is_given.load(Ordering::Acquire) && body.frame().await.is_none());
    }

    #[tokio::test]
    async fn data_that_ends_early_or_is_too_long_breaks_the_body() {
        for parts_sent in [vec![], vec!["abcd"], vec!["ab", "cd"]] {
            let (mut body, parts, is_given) = SentBody::new(Bytes::new(), 3);
            for part in parts_sent {
                parts.send(part.into()).await.unwrap();
            }
            drop(parts);
            let ended = loop {
                match body.frame().await {
                    Some(Ok(_)) => {}
                    other => break other,
                }
            };
            assert!(matches!(ended, Some(Err(GivenUp))));
            assert!(!is_given.load(Ordering::Acquire));
        }
    }

    /// Data of which more is there each time.
    #[derive(Debug)]
    struct Growing {
        file: Arc<OwnedFd>,
        bytes: u64,
        there: Vec<u64>,
    }

    impl HandedData for Growing {
        fn bytes(&self) -> u64 {
            self.bytes
        }

        fn there(&self, at: u64) -> BoxFuture<'_, Result<There, Refusal>> {
            let next = self.there.iter().find(|there| **there > at);
            let there = next.map(|len| There {
                file: Arc::clone(&self.file),
                len: *len,
            });
            let refusal = Refusal::new(Reason::Invalid, "given up");
            Box::pin(async move { there.ok_or(refusal) })
        }
    }

    #[tokio::test]
    async fn data_is_given_as_it_is_there() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        let file = Arc::new(OwnedFd::from(file));
        for (there, end) in [
            (vec![4, 9, 10], Ok("0123456789")),
            (vec![10], Ok("0123456789")),
            (vec![4], Err(Reason::Invalid)),
            (vec![4, 11], Err(Reason::Unavailable)),
        ] {
            let data = Growing {
                file: Arc::clone(&file),
                bytes: 10,
                there,
            };
            let (sender, mut parts) = mpsc::channel(PARTS_MAX);
            let fed = feed(&data, sender).await;
            let mut given = Vec::new();
            while let Some(part) = parts.recv().await {
                given.extend_from_slice(&part);
            }
            match end {
                Ok(all) => assert_eq!((fed, &given[..]), (Ok(()), all.as_bytes())),
                Err(reason) => assert_eq!(
                    (fed.unwrap_err().reason, &given[..]),
                    (reason, &b"0123"[..])
                ),
            }
        }
    }
}
