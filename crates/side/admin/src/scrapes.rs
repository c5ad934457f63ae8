//! Makes the metrics' text, once for all who ask at the same time. It costs milliseconds and locks that invocations need, too, and
//! whoever can reach the address for functions may ask for it as often as he likes.
//!
//! A text is never older than the request: one that was begun earlier may lack what has happened since.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::blocking;

/// The last text. Locked while one is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scrapes(Arc<Mutex<Option<Scrape>>>);

#[derive(Debug)]
struct Scrape {
    begun: Instant,
    ended: Instant,
    text: Bytes,
}

impl Scrapes {
    /// The text that `make` makes, or another request's, if that one was begun after this was called.
    pub(crate) async fn text(&self, make: impl FnOnce() -> String + Send + 'static) -> Bytes {
        let asked = Instant::now();
        // Owned, so that it is kept until the text is made, also if the client hangs up.
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some(last) = &*last {
            if last.begun >= asked {
                return last.text.clone();
            }
            // At most half of one CPU.
            let pause = (last.ended - last.begun).min(PAUSE_MAX);
            sleep_until(last.ended + pause).await;
        }
        blocking(move || {
            let begun = Instant::now();
            let text = Bytes::from(make());
            let ended = Instant::now();
            *last = Some(Scrape {
                begun,
                ended,
                text: text.clone(),
            });
            text
        })
        .await
    }
}

const PAUSE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn who_asks_while_one_is_made_shares_the_next() {
        let scrapes = Scrapes::default();
        let made = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let (scrapes, made) = (scrapes.clone(), Arc::clone(&made));
            async move {
                let make = move || {
                    let number = made.fetch_add(1, Ordering::Relaxed) + 1;
                    std::thread::sleep(Duration::from_millis(50));
                    number.to_string()
                };
                scrapes.text(make).await
            }
        };
        let first = tokio::spawn(ask());
        while made.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let others = join_all((0..100).map(|_| ask())).await;
        assert_eq!(first.await.unwrap(), "1");
        assert!(others.iter().all(|text| text == "2"), "{others:?}");
        assert_eq!(ask().await, "3", "nothing is kept for later");
    }
}
