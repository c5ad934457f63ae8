//! The body of a call that is sent: its event, and then its data, which is read from memory as it is filled. It notes when all of it was
//! given to the connection: until then, the other node cannot have run the call.
//!
//! The other node says how much it takes (RFC 9113, section 5.2), and may take nothing. So no thread waits for it, parts that wait for it
//! have a limit for all calls together, and a call of which nothing is taken for some time is given up.

use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pilot_model::calls::{Reason, Refusal};
use pilot_model::ports::HandedData;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// The body of a call.
#[derive(Debug)]
pub(crate) struct SentBody {
    event: Bytes,
    /// Dropped when the event was given.
    event_waits: Option<oneshot::Sender<()>>,
    parts: mpsc::Receiver<Bytes>,
    /// Bytes of the data that are not given yet.
    left: u64,
    is_given: Arc<AtomicBool>,
    ahead: Ahead,
}

/// Where the data of a call goes.
#[derive(Debug)]
pub(crate) struct Feeder {
    parts: mpsc::Sender<Bytes>,
    /// Ends when the event was given to the connection.
    event_given: oneshot::Receiver<()>,
    is_given: Arc<AtomicBool>,
    ahead: Ahead,
}

/// What waits to be sent to a node, of all calls.
#[derive(Debug, Clone)]
pub(crate) struct Ahead(Arc<WaitingCalls>);

#[derive(Debug)]
struct WaitingCalls {
    /// One for each long part. A call can always have a short one.
    parts: Arc<Semaphore>,
    /// When something of a call was last taken.
    moved: Mutex<Instant>,
}

impl Default for Ahead {
    fn default() -> Self {
        Self(Arc::new(WaitingCalls {
            parts: Arc::new(Semaphore::new(AHEAD_MAX)),
            moved: Mutex::new(Instant::now()),
        }))
    }
}

impl Ahead {
    fn moves(&self) {
        *self.0.moved.lock() = Instant::now();
    }

    /// Waits for something that the node does. As long as it takes parts of other calls, it is only slow.
    async fn taken<T>(
        &self,
        step: impl Future<Output = T>,
        silence_max: Duration,
    ) -> Result<T, Refusal> {
        let began = Instant::now();
        let since = || began.max(*self.0.moved.lock());
        let mut step = std::pin::pin!(step);
        loop {
            let from = since();
            if let Ok(done) = timeout_at(from + silence_max, &mut step).await {
                return Ok(done);
            }
            if since() == from {
                let silence_s = silence_max.as_secs_f64();
                let problem = format!("it has taken nothing of the call for {silence_s} s");
                return Err(Refusal::new(Reason::Unavailable, problem));
            }
        }
    }
}

/// A part, which waits until the connection has sent it.
struct WaitingPart {
    bytes: Vec<u8>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for WaitingPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
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
    /// The body, and where its data goes.
    pub(crate) fn new(event: Bytes, data_len: u64, ahead: &Ahead) -> (Self, Feeder) {
        let (sender, parts) = mpsc::channel(PARTS_MAX);
        let (event_waits, event_given) = oneshot::channel();
        let is_given = Arc::new(AtomicBool::new(event.is_empty() && data_len == 0));
        let body = Self {
            event_waits: (!event.is_empty()).then_some(event_waits),
            event,
            parts,
            left: data_len,
            is_given: Arc::clone(&is_given),
            ahead: ahead.clone(),
        };
        let feeder = Feeder {
            parts: sender,
            event_given,
            is_given,
            ahead: ahead.clone(),
        };
        (body, feeder)
    }

    fn note(&self) {
        self.ahead.moves();
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
            self.event_waits = None;
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

impl Feeder {
    /// Whether all of the body was given to the connection.
    pub(crate) fn is_given(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_given)
    }

    /// Gives the data to the body as it is there. Returns when all was taken, or nobody takes it any more. `silence_max`: for how long the
    /// other node may take nothing.
    ///
    /// # Errors
    /// The data was given up, or cannot be read; the other node takes nothing.
    pub(crate) async fn feed(
        self,
        data: Option<&dyn HandedData>,
        silence_max: Duration,
    ) -> Result<(), Refusal> {
        let Self {
            parts,
            event_given,
            ahead,
            ..
        } = self;
        // An error says that the event was given, or that the body is gone.
        let _ = ahead.taken(event_given, silence_max).await?;
        let Some(data) = data else { return Ok(()) };
        let len = data.bytes();
        let (mut at, mut there) = (0, data.there(0).await?);
        loop {
            if there.len > len || (there.len <= at && there.len != len) {
                return Err(unreadable(io::ErrorKind::InvalidData.into()));
            }
            while at < there.len {
                let long = Arc::clone(&ahead.0.parts).try_acquire_owned().ok();
                // Without a permit, a call has one part at a time.
                let (places, most) = match long {
                    Some(_) => (1, PART_LEN),
                    None => (PARTS_MAX, SHORT_PART_LEN),
                };
                let place = ahead.taken(parts.reserve_many(places), silence_max);
                let Some(place) = place.await?.ok().and_then(|mut places| places.next()) else {
                    return Ok(());
                };
                let next = there.len.min(at + most);
                let file = Arc::clone(&there.file);
                // Reading memory that lies on the disk may wait.
                let reading = tokio::task::spawn_blocking(move || read(&file, at..next));
                let read = reading
                    .await
                    .map_err(io::Error::other)
                    .and_then(|read| read);
                place.send(Bytes::from_owner(WaitingPart {
                    bytes: read.map_err(unreadable)?,
                    _permit: long,
                }));
                at = next;
            }
            if at == len {
                break;
            }
            there = data.there(at).await?;
        }
        // An error says that the body is gone.
        let all = ahead.taken(parts.reserve_many(PARTS_MAX), silence_max);
        all.await.map(drop)
    }
}

fn unreadable(error: io::Error) -> Refusal {
    let problem = format!("the data cannot be read: {error}");
    Refusal::new(Reason::Unavailable, problem)
}

fn read(file: &OwnedFd, range: Range<u64>) -> io::Result<Vec<u8>> {
    let file = File::from(file.try_clone()?);
    let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut part = vec![0; len];
    file.read_exact_at(&mut part, range.start)?;
    Ok(part)
}

/// Bytes that are read at once.
const PART_LEN: u64 = 256 << 10;
/// Parts of a call that wait for the connection.
const PARTS_MAX: usize = 4;
/// Parts of this length that wait for a node.
const AHEAD_MAX: usize = 64;
/// Bytes of a part if so many wait already.
const SHORT_PART_LEN: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use pilot_model::ports::{BoxFuture, There};

    use super::*;

    const SILENCE: Duration = Duration::from_secs(3);

    fn new(event: &'static str, data_len: u64) -> (SentBody, Feeder) {
        SentBody::new(event.into(), data_len, &Ahead::default())
    }

    #[tokio::test]
    async fn all_is_given_with_the_last_byte_and_not_before() {
        let (mut body, feeder) = new("{}", 3);
        assert_eq!(body.size_hint().exact(), Some(5));
        body.frame().await.unwrap().unwrap();
        feeder.parts.send("ab".into()).await.unwrap();
        body.frame().await.unwrap().unwrap();
        let is_given = feeder.is_given();
        assert!(!is_given.load(Ordering::Acquire) && !body.is_end_stream());
        feeder.parts.send("c".into()).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(is_given.load(Ordering::Acquire) && body.is_end_stream());
        assert!(body.frame().await.is_none());
        let (mut body, feeder) = new("{}", 0);
        body.frame().await.unwrap().unwrap();
        assert!(feeder.is_given().load(Ordering::Acquire) && body.frame().await.is_none());
    }

    #[tokio::test]
    async fn data_that_ends_early_or_is_too_long_breaks_the_body() {
        for parts_sent in [vec![], vec!["abcd"], vec!["ab", "cd"]] {
            let (mut body, feeder) = new("", 3);
            let is_given = feeder.is_given();
            for part in parts_sent {
                feeder.parts.send(part.into()).await.unwrap();
            }
            drop(feeder);
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

    /// A file with this many bytes.
    fn growing(bytes: u64) -> Growing {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        Growing {
            file: Arc::new(OwnedFd::from(file)),
            bytes,
            there: vec![bytes],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_takes_nothing_is_given_up_and_one_that_takes_others_is_slow() {
        let data = growing(8 * PART_LEN);
        for (event, data) in [("{}", None), ("", Some(&data as &dyn HandedData))] {
            let (body, feeder) = new(event, data.map_or(0, HandedData::bytes));
            let refusal = feeder.feed(data, SILENCE).await.unwrap_err();
            assert!(refusal.problem.contains("taken nothing"), "{refusal:?}");
            drop(body);
        }
        let ahead = Ahead::default();
        let (mut body, feeder) = SentBody::new("{}".into(), 0, &ahead);
        let feeding = tokio::spawn(async move { feeder.feed(None, SILENCE).await });
        for _ in 0..10 {
            tokio::time::sleep(SILENCE / 2).await;
            ahead.moves();
        }
        assert!(!feeding.is_finished());
        body.frame().await.unwrap().unwrap();
        feeding.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_waits_for_a_node_has_a_limit_for_all_calls() {
        let ahead = Ahead::default();
        let mut held = Vec::new();
        for _ in 0..100 {
            let (body, feeder) = SentBody::new(Bytes::new(), 8 * PART_LEN, &ahead);
            let data = growing(8 * PART_LEN);
            let feeding = tokio::spawn(async move { feeder.feed(Some(&data), SILENCE).await });
            held.push((body, feeding));
        }
        let waiting =
            |held: &[(SentBody, _)]| held.iter().map(|(body, _)| body.parts.len()).sum::<usize>();
        // Each has a short one, or long ones.
        while ahead.0.parts.available_permits() > 0
            || held.iter().any(|(body, _)| body.parts.is_empty())
        {
            tokio::task::yield_now().await;
        }
        assert!(waiting(&held) <= AHEAD_MAX + held.len());
        // Every call comes to its end.
        for (mut body, feeding) in held {
            let mut taken = 0;
            while let Some(part) = body.frame().await {
                taken += part.unwrap().into_data().unwrap().len() as u64;
            }
            assert_eq!(taken, 8 * PART_LEN);
            feeding.await.unwrap().unwrap();
        }
        assert_eq!(ahead.0.parts.available_permits(), AHEAD_MAX);
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
            let (mut body, feeder) = new("", 10);
            let take = async {
                let mut given = Vec::new();
                while let Some(part) = body.parts.recv().await {
                    given.extend_from_slice(&part);
                }
                given
            };
            let (fed, given) = tokio::join!(feeder.feed(Some(&data), SILENCE), take);
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
