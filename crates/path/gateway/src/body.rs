//! Reads a whole request body within limits: its size, the time between two pieces of it, its rate, and the memory that all bodies
//! share. Memory is reserved for bytes that have arrived, not for those that a head announces. A body that arrived together with the
//! head needs no copy, no timer and no permit. A body that arrives slowly is kept in a file (`disk`), if there is room for it.
//!
//! Used for events, which are one JSON document, and for applications, whose worker gets a request in one frame. Bodies for a
//! function's own server, and those that are inputs, are streamed instead (`upload`).

pub(crate) mod disk;

use std::collections::HashMap;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use self::disk::{BodyFiles, Disk, OnDisk};
use crate::errors::RequestError;

/// The limits of request bodies, shared by all connections.
#[derive(Debug, Clone)]
pub(crate) struct BodyReader {
    bytes_max: usize,
    patience: Duration,
    /// One permit per KiB.
    in_flight: Arc<Semaphore>,
    /// How much of the memory one function may have.
    shares: Arc<Shares>,
    /// For bodies that arrive slowly. `None`: they stay in memory.
    disk: Option<Arc<Disk>>,
}

/// The permits of each function whose bodies are in flight.
#[derive(Debug)]
struct Shares {
    permits: usize,
    /// Bounded: each one belongs to a body of more than 64 KiB. Locked for one look-up.
    functions: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    fn of(&self, function: &str) -> Arc<Semaphore> {
        let mut functions = self.functions.lock();
        if let Some(share) = functions.get(function).and_then(Weak::upgrade) {
            return share;
        }
        functions.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.permits));
        functions.insert(function.to_owned(), Arc::downgrade(&share));
        share
    }
}

/// A share of the memory for bodies: of all, and of its function. Small bodies have none.
#[derive(Debug, Default)]
struct Hold(Option<[OwnedSemaphorePermit; 2]>);

/// A large body. Its share of the memory for bodies is returned when the last reference to its bytes is dropped.
struct Held {
    bytes: Bytes,
    _share: [OwnedSemaphorePermit; 2],
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Hold {
    /// Attaches the share to these bytes.
    fn keep(self, bytes: Bytes) -> Bytes {
        match self.0 {
            Some(share) => Bytes::from_owner(Held {
                bytes,
                _share: share,
            }),
            None => bytes,
        }
    }
}

impl BodyReader {
    /// `bytes_max`: largest body. `patience`: longest wait for its next piece. `in_flight_bytes_max`: limit for all bodies of more
    /// than 64 KiB together, without those in `files`; those of one function have half of it.
    pub(crate) fn new(
        bytes_max: usize,
        patience: Duration,
        in_flight_bytes_max: usize,
        files: Option<BodyFiles>,
    ) -> Self {
        let permits = (in_flight_bytes_max / 1024).min(Semaphore::MAX_PERMITS);
        Self {
            bytes_max,
            patience,
            in_flight: Arc::new(Semaphore::new(permits)),
            shares: Arc::new(Shares {
                permits: (permits / 2).max(bytes_max.div_ceil(1024)).min(permits),
                functions: Mutex::default(),
            }),
            disk: files.map(|files| Arc::new(Disk::new(files, patience))),
        }
    }

    /// Reads a whole body for this function.
    ///
    /// # Errors
    /// [`RequestError::TooLarge`] as soon as that is known, [`RequestError::BodiesFull`], [`RequestError::Malformed`] if it is not
    /// what the head says, [`RequestError::Body`] if it stalls.
    pub(crate) async fn read<B>(&self, function: &str, body: B) -> Result<Bytes, RequestError>
    where
        B: Body<Data = Bytes, Error: Error> + Unpin,
    {
        match self.read_front(function, body).await? {
            (whole, None) => Ok(whole),
            (_, Some(_)) => Err(RequestError::TooLarge {
                limit: self.bytes_max,
            }),
        }
    }

    /// Reads a whole body. If it is too large, returns the unread rest as soon as that is known.
    ///
    /// # Errors
    /// As [`BodyReader::read`], without the first.
    pub(crate) async fn read_front<B>(
        &self,
        function: &str,
        body: B,
    ) -> Result<(Bytes, Option<B>), RequestError>
    where
        B: Body<Data = Bytes, Error: Error> + Unpin,
    {
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > self.bytes_max {
            return Ok((Bytes::new(), Some(body)));
        }
        let mut source = Source {
            body,
            patience: self.patience,
            begun: None,
            received: 0,
            timer: None,
            slow: self.disk.is_some().then_some(SLOW),
        };
        let mut hold = Hold::default();
        let mut front = Front::Nothing;
        loop {
            match source.next().await? {
                Next::Piece(piece) => {
                    front = match front {
                        Front::Nothing => {
                            self.admit(piece.len(), function, &mut hold)?;
                            Front::One(piece)
                        }
                        begun => {
                            let hold = (function, &mut hold);
                            Box::pin(self.add(begun, piece, announced, hold)).await?
                        }
                    };
                    if front.len() > self.bytes_max {
                        return Ok((front.finish(hold).await?, Some(source.body)));
                    }
                    if source.body.is_end_stream() {
                        break;
                    }
                }
                Next::Slow => front = Box::pin(self.put_aside(front, &mut hold)).await,
                Next::End => break,
            }
        }
        Ok((front.finish(hold).await?, None))
    }

    /// Adds a piece to what has arrived.
    async fn add(
        &self,
        front: Front,
        piece: Bytes,
        announced: usize,
        (function, hold): (&str, &mut Hold),
    ) -> Result<Front, RequestError> {
        let len = front.len() + piece.len();
        let mut bytes = match front {
            Front::OnDisk(mut file) => {
                file.push(piece).await?;
                return Ok(Front::OnDisk(file));
            }
            Front::Nothing => {
                self.admit(len, function, hold)?;
                return Ok(Front::One(piece));
            }
            Front::One(first) => {
                self.admit(len, function, hold)?;
                let capacity = announced.min(ANNOUNCED_BYTES_MAX).max(len);
                let mut bytes = BytesMut::with_capacity(capacity);
                bytes.extend_from_slice(&first);
                bytes
            }
            Front::Several(bytes) => {
                self.admit(len, function, hold)?;
                bytes
            }
        };
        if len > bytes.capacity() {
            // The first bytes have come, so the announced rest is believed.
            bytes.reserve(announced.min(self.bytes_max).max(len) - bytes.len());
        }
        bytes.extend_from_slice(&piece);
        Ok(Front::Several(bytes))
    }

    /// Moves what has arrived of a slow body to a file, if there is room for it, and gives its memory back.
    async fn put_aside(&self, front: Front, hold: &mut Hold) -> Front {
        let Some(disk) = &self.disk else {
            return front;
        };
        let begin = match front {
            Front::One(bytes) => bytes,
            Front::Several(bytes) => bytes.freeze(),
            front @ (Front::Nothing | Front::OnDisk(_)) => return front,
        };
        match disk.take(begin).await {
            Ok(file) => {
                *hold = Hold::default();
                Front::OnDisk(file)
            }
            Err(begin) => Front::One(begin),
        }
    }

    /// Reserves the memory of a body with `len` bytes so far.
    fn admit(&self, len: usize, function: &str, hold: &mut Hold) -> Result<(), RequestError> {
        if len <= FREE_BYTES {
            return Ok(());
        }
        let held = hold.0.as_ref();
        let held = held.map_or(0, |[of_all, _]| of_all.num_permits());
        let wanted = len.div_ceil(1024);
        if wanted <= held {
            return Ok(());
        }
        let more = u32::try_from(wanted - held).map_err(|_| RequestError::BodiesFull)?;
        let take = |from: Arc<Semaphore>| {
            let permit = from.try_acquire_many_owned(more);
            permit.map_err(|_| RequestError::BodiesFull)
        };
        let share = match &hold.0 {
            Some([_, of_function]) => Arc::clone(of_function.semaphore()),
            None => self.shares.of(function),
        };
        let permits = [take(Arc::clone(&self.in_flight))?, take(share)?];
        match &mut hold.0 {
            Some(held) => {
                for (held, more) in held.iter_mut().zip(permits) {
                    held.merge(more);
                }
            }
            none => *none = Some(permits),
        }
        Ok(())
    }
}

/// What has arrived of a body.
enum Front {
    Nothing,
    /// Not copied: it may be all.
    One(Bytes),
    Several(BytesMut),
    /// It arrives slowly.
    OnDisk(OnDisk),
}

impl Front {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(bytes) => bytes.len(),
            Self::Several(bytes) => bytes.len(),
            Self::OnDisk(file) => file.len(),
        }
    }

    /// All of it, with its share of the memory.
    async fn finish(self, hold: Hold) -> Result<Bytes, RequestError> {
        match self {
            Self::Nothing => Ok(Bytes::new()),
            Self::One(bytes) => Ok(hold.keep(bytes)),
            Self::Several(bytes) => Ok(hold.keep(bytes.freeze())),
            Self::OnDisk(file) => Box::pin(file.finish()).await,
        }
    }
}

/// What comes next of a body.
enum Next {
    Piece(Bytes),
    End,
    /// More than [`FREE_BYTES`] have arrived, and after [`SLOW`] it is not complete. Comes once.
    Slow,
}

/// The pieces of a body. Its timer is created at the first wait for a piece.
struct Source<B> {
    body: B,
    patience: Duration,
    /// When it first had to be waited for.
    begun: Option<Instant>,
    received: u64,
    timer: Option<Pin<Box<Sleep>>>,
    /// Time after which it is slow. `None`: that does not matter, or is known.
    slow: Option<Duration>,
}

impl<B> Source<B>
where
    B: Body<Data = Bytes, Error: Error> + Unpin,
{
    /// What comes next. Trailers are skipped.
    async fn next(&mut self) -> Result<Next, RequestError> {
        let next = poll_fn(|cx| self.poll_next(cx)).await;
        self.timer = None;
        match &next {
            Ok(Next::Piece(piece)) => self.received += piece.len() as u64,
            Ok(Next::Slow) => self.slow = None,
            Ok(Next::End) | Err(_) => {}
        }
        next
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Next, RequestError>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(Ok(Next::End)),
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Ok(Next::Piece(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(malformed(&error)));
                }
                Poll::Pending => break,
            }
        }
        let patience = self.patience;
        let slow = self.slow.filter(|_| self.received > FREE_BYTES as u64);
        let timer = self.timer.get_or_insert_with(|| {
            let now = Instant::now();
            let begun = *self.begun.get_or_insert(now);
            let slowest = Duration::from_secs(self.received / BYTES_PER_S_MIN);
            let due = match slow {
                Some(slow) => begun + slow,
                None => (now + patience).min(begun + patience + slowest),
            };
            Box::pin(tokio::time::sleep_until(due))
        });
        std::task::ready!(timer.as_mut().poll(cx));
        Poll::Ready(match slow {
            Some(_) => Ok(Next::Slow),
            None => Err(RequestError::Body {
                problem: format!(
                    "no data for {} s, or less than {BYTES_PER_S_MIN} bytes per second",
                    patience.as_secs_f32()
                ),
            }),
        })
    }
}

/// The error of a body that hyper could not read: a malformed chunk, or an end before the announced length. If the connection
/// failed, nobody reads the response.
pub(crate) fn malformed(error: &dyn Error) -> RequestError {
    let cause = error.source().map(|cause| format!(": {cause}"));
    RequestError::Malformed {
        problem: format!(
            "the request's body is malformed: {error}{}",
            cause.unwrap_or_default()
        ),
    }
}

/// Bodies up to this size need no permit, because the connection limit bounds them.
const FREE_BYTES: usize = 64 * 1024;

/// How much of an announced length is allocated before the bytes arrive.
const ANNOUNCED_BYTES_MAX: usize = 256 * 1024;

/// A body that is not complete so long after it first had to be waited for is slow.
const SLOW: Duration = Duration::from_millis(250);

/// The lowest rate of a body, in addition to its patience.
const BYTES_PER_S_MIN: u64 = 1024;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{Full, StreamBody};
    use proptest::prelude::*;

    use super::*;

    fn reader(bytes_max: usize) -> BodyReader {
        BodyReader::new(bytes_max, Duration::from_millis(5), 1024 * 1024, None)
    }

    fn pieces(pieces: Vec<Vec<u8>>) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let frames = pieces
            .into_iter()
            .map(|piece| Ok(http_body::Frame::data(Bytes::from(piece))));
        StreamBody::new(futures_util::stream::iter(frames))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn a_body_in_one_piece_is_not_copied() {
        let bytes = Bytes::from_static(b"{\"a\": 1}");
        let whole = block_on(reader(100).read("f", Full::new(bytes.clone()))).unwrap();
        assert_eq!(whole.as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn a_body_that_announces_too_much_is_refused_unread() {
        let result = block_on(reader(10).read("f", Full::new(Bytes::from_static(b"eleven bytes"))));
        assert!(matches!(result, Err(RequestError::TooLarge { limit: 10 })));
    }

    #[test]
    fn a_body_that_does_not_come_times_out() {
        let never = StreamBody::new(futures_util::stream::pending::<Result<_, Infallible>>());
        let result = block_on(reader(10).read("f", never));
        assert!(matches!(result, Err(RequestError::Body { .. })));
    }

    #[test]
    fn bodies_share_their_memory_and_give_it_back() {
        block_on(async {
            let reader = reader(1024 * 1024);
            let large = || Full::new(Bytes::from(vec![0; 600 * 1024]));
            let first = reader.read("f", large()).await.unwrap();
            let second = reader.read("f", large());
            assert!(matches!(second.await, Err(RequestError::BodiesFull)));
            drop(first);
            assert_eq!(reader.in_flight.available_permits(), 1024);
        });
    }

    /// A body that announces `len` bytes and sends these pieces, each after a second. Then it sends nothing.
    struct Slow {
        len: u64,
        pieces: Vec<Bytes>,
        wait: Pin<Box<Sleep>>,
    }

    impl Slow {
        fn new(len: u64, pieces: Vec<Bytes>) -> Self {
            let wait = Box::pin(tokio::time::sleep(Duration::from_secs(1)));
            Self { len, pieces, wait }
        }
    }

    impl Body for Slow {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
            std::task::ready!(self.wait.as_mut().poll(cx));
            let next = Instant::now() + Duration::from_secs(1);
            self.wait.as_mut().reset(next);
            match self.pieces.pop() {
                Some(piece) => Poll::Ready(Some(Ok(http_body::Frame::data(piece)))),
                None => Poll::Pending,
            }
        }

        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(self.len)
        }
    }

    #[test]
    fn the_bodies_of_one_function_leave_half_of_the_memory_to_others() {
        const LEN: usize = 100 * 1024;
        let reader = BodyReader::new(LEN, Duration::from_secs(30), 4 * LEN, None);
        let read = |function: &'static str| {
            block_on(reader.read(function, Full::new(Bytes::from(vec![0; LEN]))))
        };
        let mut kept: Vec<Bytes> = Vec::new();
        for function in ["a", "a", "b", "b"] {
            kept.push(read(function).unwrap());
            if kept.len() == 2 {
                assert!(matches!(read("a"), Err(RequestError::BodiesFull)));
            }
        }
        assert!(matches!(read("c"), Err(RequestError::BodiesFull)));
        // What one gives back, another one gets.
        drop(kept.pop());
        assert!(matches!(read("a"), Err(RequestError::BodiesFull)));
        kept.push(read("c").unwrap());
        drop(kept);
        assert!(read("d").is_ok());
        let known = reader.shares.functions.lock().len();
        assert_eq!(known, 1, "functions without bodies are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn an_announced_body_reserves_nothing_before_it_comes() {
        let reader = BodyReader::new(1 << 20, Duration::from_secs(30), 1 << 20, None);
        let permits = reader.in_flight.available_permits();
        let declared = (0..42).map(|_| {
            let reader = reader.clone();
            async move {
                let body = Slow::new(1 << 20, vec![Bytes::from_static(b"x"); 3]);
                reader.read("f", body).await
            }
        });
        let trickling = futures_util::future::join_all(declared);
        let honest = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(reader.in_flight.available_permits(), permits);
            reader
                .read("f", Full::new(Bytes::from(vec![0; 900 * 1024])))
                .await
        };
        let (trickled, honest) = tokio::join!(trickling, honest);
        assert!(honest.is_ok());
        for result in trickled {
            assert!(matches!(result, Err(RequestError::Body { .. })));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_cut_off_and_a_slow_one_is_not() {
        let patience = Duration::from_secs(5);
        let reader = BodyReader::new(1 << 20, patience, 1 << 20, None);
        let begun = Instant::now();
        let trickle = Slow::new(1 << 20, vec![Bytes::from_static(b"x"); 1000]);
        let result = reader.read("f", trickle).await;
        assert!(matches!(result, Err(RequestError::Body { .. })));
        assert!(begun.elapsed() < 2 * patience, "{:?}", begun.elapsed());
        let enough = Bytes::from(vec![0; 1100]);
        let slow = Slow::new(20 * 1100, vec![enough; 20]);
        let begun = Instant::now();
        // All of it comes; then it does not end, because this body never does.
        let result = reader.read("f", slow).await;
        assert!(matches!(result, Err(RequestError::Body { .. })));
        assert!(begun.elapsed() > Duration::from_secs(20));
    }

    const KIB: usize = 1024;

    /// A reader of bodies up to 1 MiB, with so much room for slow ones on the disk, and with `has_room`.
    fn reader_with_disk(kib: usize, has_room: fn() -> bool) -> BodyReader {
        let files = BodyFiles {
            dir: std::env::temp_dir(),
            bytes_max: kib * KIB,
            has_room: Arc::new(has_room),
        };
        BodyReader::new(1 << 20, Duration::from_secs(30), 1 << 20, Some(files))
    }

    /// So many pieces of 40 KiB, one each second; each has its number in all its bytes.
    fn slow_pieces(count: u8) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let frames = futures_util::stream::unfold(0, move |at| async move {
            if at == count {
                return None;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            let piece = Bytes::from(vec![at; 40 * KIB]);
            Some((Ok(http_body::Frame::data(piece)), at + 1))
        });
        StreamBody::new(Box::pin(frames))
    }

    fn all_of(count: u8) -> Vec<u8> {
        (0..count).flat_map(|at| vec![at; 40 * KIB]).collect()
    }

    fn disk_free(reader: &BodyReader) -> usize {
        reader.disk.as_ref().unwrap().free_kib()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_lies_on_the_disk_and_holds_no_memory() {
        let reader = reader_with_disk(2048, || true);
        let whole = reader.read("f", slow_pieces(20)).await.unwrap();
        assert_eq!(reader.in_flight.available_permits(), KIB);
        assert_eq!(disk_free(&reader), 2048 - 800);
        assert!(whole == all_of(20));
        let part = whole.slice(5..10);
        drop(whole);
        assert_eq!(disk_free(&reader), 2048 - 800);
        drop(part);
        assert_eq!(disk_free(&reader), 2048);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_that_is_too_large_is_returned_with_its_rest() {
        let reader = reader_with_disk(2048, || true);
        let (front, rest) = reader.read_front("f", slow_pieces(30)).await.unwrap();
        assert!(front == all_of(26), "{} bytes", front.len());
        let rest = http_body_util::BodyExt::collect(rest.unwrap()).await;
        assert!([front, rest.unwrap().to_bytes()].concat() == all_of(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_stays_in_memory_if_the_disk_has_no_room() {
        for reader in [
            reader_with_disk(2048, || false),
            reader_with_disk(64, || true),
        ] {
            let free = disk_free(&reader);
            let whole = reader.read("f", slow_pieces(20)).await.unwrap();
            assert!(whole == all_of(20));
            assert_eq!(reader.in_flight.available_permits(), KIB - 800);
            assert_eq!(disk_free(&reader), free);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_have_a_limit_on_the_disk() {
        let reader = reader_with_disk(400, || true);
        let result = reader.read("f", slow_pieces(20)).await;
        assert!(matches!(result, Err(RequestError::BodiesFull)));
        assert_eq!(disk_free(&reader), 400);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fast_body_is_not_written() {
        let reader = reader_with_disk(2048, || panic!("asked for room"));
        let sent = vec![vec![7; 40 * KIB]; 20];
        let whole = reader.read("f", pieces(sent.clone())).await.unwrap();
        assert!(whole == sent.concat());
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_body_or_are_over_the_limit(
            sent in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..8),
        ) {
            let all: Vec<u8> = sent.concat();
            match block_on(reader(60).read("f", pieces(sent))) {
                Ok(whole) => prop_assert_eq!(whole, all),
                Err(RequestError::TooLarge { .. }) => prop_assert!(all.len() > 60),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
