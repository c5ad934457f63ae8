//! Reads what a worker has announced. Memory for it is reserved as its bytes arrive: one that announces much and sends nothing takes none
//! from others.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, timeout};

use crate::FunctionBudget;

/// So much is reserved before the first byte has arrived; later, as much as has arrived. Bytes.
const FIRST_LEN: usize = 4 << 10;

/// Reads `len` bytes, whose memory is reserved until the last reference to them is dropped. The worker has `time_max` to send them; the
/// time in which there is no memory does not count.
///
/// # Errors
/// Those of the socket, and `TimedOut`.
pub async fn read_reserved(
    from: &mut (impl AsyncRead + Unpin),
    len: usize,
    memory: &FunctionBudget,
    time_max: Duration,
) -> io::Result<Bytes> {
    let mut reserved = memory.nothing();
    let mut bytes = Vec::new();
    let mut time_left = time_max;
    while bytes.len() < len {
        let arrived = bytes.len();
        let next = (arrived * 2).max(FIRST_LEN).min(len);
        reserved.grow_arriving_to(next).await;
        bytes.reserve_exact(next - arrived);
        bytes.resize(next, 0);
        let began = Instant::now();
        let read = from.read_exact(&mut bytes[arrived..]);
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "what was announced does not come");
        timeout(time_left, read).await.map_err(late)??;
        time_left = time_left.saturating_sub(began.elapsed());
    }
    Ok(reserved.keep(bytes.into()))
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::MemoryBudget;

    const KIB: usize = 1 << 10;
    const TIME_MAX: Duration = Duration::from_secs(5);

    type Reading = JoinHandle<io::Result<Bytes>>;

    fn reads(memory: &MemoryBudget, function: &str, len: usize) -> (DuplexStream, Reading) {
        let (worker, mut ours) = duplex(1 << 20);
        let memory = memory.of(&function.parse().unwrap());
        let read = async move { read_reserved(&mut ours, len, &memory, TIME_MAX).await };
        (worker, tokio::spawn(read))
    }

    /// All that can go on without time has gone on.
    async fn settled() {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_reserved_as_bytes_arrive_and_for_a_limited_time() {
        let memory = MemoryBudget::new(64 * KIB, 64 * KIB);
        let (mut silent, task) = reads(&memory, "hostile", 64 * KIB);
        settled().await;
        assert_eq!(memory.held(), FIRST_LEN);
        // Another one finds room for what it sends.
        let (mut worker, other) = reads(&memory, "other", 60 * KIB);
        worker.write_all(&vec![7; 60 * KIB]).await.unwrap();
        let whole = other.await.unwrap().unwrap();
        assert_eq!((&whole[..], memory.held()), (&[7; 60 * KIB][..], 64 * KIB));
        drop(whole);
        silent.write_all(&[0; 20 * KIB]).await.unwrap();
        settled().await;
        assert!(
            (20 * KIB..=40 * KIB).contains(&memory.held()),
            "{}",
            memory.held()
        );
        let began = Instant::now();
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), began.elapsed()),
            (io::ErrorKind::TimedOut, TIME_MAX)
        );
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_a_part_each_do_not_wait_for_each_other_for_ever() {
        let memory = MemoryBudget::new(256 * KIB, 128 * KIB);
        let mut waiting = Vec::new();
        for function in ["a", "b", "c", "a", "b", "c", "a", "b"] {
            let (mut worker, task) = reads(&memory, function, 100 * KIB);
            worker.write_all(&vec![1; 60 * KIB]).await.unwrap();
            waiting.push((worker, task));
        }
        settled().await;
        for (worker, _) in &mut waiting {
            worker.write_all(&vec![1; 40 * KIB]).await.unwrap();
        }
        let mut most = 0;
        while !waiting.is_empty() {
            settled().await;
            most = most.max(memory.held());
            let at = waiting.iter().position(|(_, task)| task.is_finished());
            let (_, task) = waiting.swap_remove(at.expect("they wait for each other"));
            assert_eq!(task.await.unwrap().unwrap().len(), 100 * KIB);
        }
        // One is beyond the limits at a time.
        assert!(most <= 356 * KIB, "{most}");
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_more_than_its_share_does_not_keep_others_from_their_turn() {
        let memory = MemoryBudget::new(1 << 20, 128 * KIB);
        let mut kept = Vec::new();
        for function in ["a", "b"] {
            let (mut part, waits) = reads(&memory, function, 100 * KIB);
            part.write_all(&[1; 20 * KIB]).await.unwrap();
            settled().await;
            let (mut whole, task) = reads(&memory, function, 100 * KIB);
            whole.write_all(&[1; 100 * KIB]).await.unwrap();
            settled().await;
            assert!(task.is_finished(), "{function} waits");
            // The rest waits until the other one is given back.
            part.write_all(&[1; 80 * KIB]).await.unwrap();
            settled().await;
            assert!(!waits.is_finished());
            kept.push((task.await.unwrap().unwrap(), part, waits));
        }
        for (bytes, _part, waits) in kept {
            drop(bytes);
            assert_eq!(waits.await.unwrap().unwrap().len(), 100 * KIB);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_without_memory_does_not_count_and_who_gives_up_takes_none() {
        let memory = MemoryBudget::new(64 * KIB, 64 * KIB);
        let all = memory.of(&"other".parse().unwrap()).reserve(64 * KIB).await;
        let (mut worker, mut task) = reads(&memory, "f", 8 * KIB);
        worker.write_all(&[1; 8 * KIB]).await.unwrap();
        tokio::time::sleep(TIME_MAX * 3).await;
        assert!(matches!(futures_util::poll!(&mut task), Poll::Pending));
        drop(all);
        drop(task.await.unwrap().unwrap());
        let (worker, task) = reads(&memory, "f", 64 * KIB);
        settled().await;
        drop(worker);
        assert_eq!(
            task.await.unwrap().unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(memory.held(), 0);
    }
}
