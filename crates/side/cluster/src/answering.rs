//! The answers of a connection, while the node that called takes them. An answer holds memory of the daemon, which the answers of all
//! functions share, so a node that does not take one for too long loses its connection: with windows of HTTP/2 that it never opens, it
//! would hold up the functions of everybody.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The answers of one connection that are not taken yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<PendingAnswers>>);

#[derive(Debug, Default)]
struct PendingAnswers {
    next: u64,
    /// When a part of each was last taken.
    taken: HashMap<u64, Instant>,
}

/// An answer that is being taken. Memory is given back when all of it was, or the call is gone.
#[derive(Debug)]
pub(crate) struct Answer {
    rest: Bytes,
    of: Answers,
    number: u64,
}

impl Answers {
    pub(crate) fn give(&self, answer: Bytes) -> Answer {
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.taken.insert(number, Instant::now());
        drop(waiting);
        Answer {
            rest: answer,
            of: self.clone(),
            number,
        }
    }

    /// Resolves when nothing of an answer was taken for this time.
    pub(crate) async fn too_slow(&self, silence_max: Duration) {
        loop {
            let oldest = self.0.lock().taken.values().min().copied();
            let due = oldest.unwrap_or_else(Instant::now) + silence_max;
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part_len = self.rest.len().min(PART_LEN);
        if part_len == 0 {
            return Poll::Ready(None);
        }
        // A copy: a part that waits in the connection must not hold the memory of the whole.
        let part = Bytes::copy_from_slice(&self.rest.split_to(part_len));
        let mut waiting = self.of.0.lock();
        waiting.taken.insert(self.number, Instant::now());
        drop(waiting);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.of.0.lock().taken.remove(&self.number);
    }
}

/// Bytes that are given to the connection at once.
const PART_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(3);

    #[tokio::test]
    async fn an_answer_is_given_in_parts_that_do_not_hold_the_whole() {
        let whole: Vec<u8> = (0..200_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let held = Arc::new(());
        struct Holds(
            Vec<u8>,
            #[expect(dead_code, reason = "it is counted")] Arc<()>,
        );
        impl AsRef<[u8]> for Holds {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let bytes = Bytes::from_owner(Holds(whole.clone(), Arc::clone(&held)));
        let answers = Answers::default();
        let mut answer = answers.give(bytes);
        assert_eq!(answer.size_hint().exact(), Some(200_000));
        let mut parts = Vec::new();
        while let Some(part) = answer.frame().await {
            parts.push(part.unwrap().into_data().unwrap());
        }
        assert!(parts.len() > 1 && answer.is_end_stream());
        drop(answer);
        assert_eq!(Arc::strong_count(&held), 1, "the memory is free");
        assert_eq!(parts.concat(), whole);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_is_too_slow_and_others_are_not() {
        let answers = Answers::default();
        let is_slow = || answers.too_slow(SILENCE).now_or_never().is_some();
        assert!(!is_slow());
        let mut first = answers.give(vec![0; 3 * PART_LEN].into());
        tokio::time::advance(SILENCE / 2).await;
        assert!(!is_slow());
        first.frame().await;
        tokio::time::advance(SILENCE / 2).await;
        assert!(!is_slow(), "a part was taken");
        let second = answers.give("{}".into());
        tokio::time::advance(SILENCE / 2).await;
        assert!(is_slow(), "one is enough");
        drop(first);
        assert!(!is_slow());
        drop(second);
        tokio::time::advance(SILENCE * 2).await;
        assert!(!is_slow());
    }
}
