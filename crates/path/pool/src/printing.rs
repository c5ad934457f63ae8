//! The output of workers that are HTTP servers, published while it is printed: between requests too, and up to the last line after
//! the worker was told to end. Output of the other workers is part of their answers; what they print after the last one is published
//! when they end (`pools`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{Clock, EventSink, Worker};
use pilot_model::{Event, Version};
use tokio::time::{sleep, timeout};

/// What one worker prints.
#[derive(Debug)]
pub(crate) struct Printing {
    version: Arc<Version>,
    sink: Arc<dyn EventSink>,
    clock: Arc<dyn Clock>,
    /// Held while output is taken and published, so that it is published in its order.
    state: Mutex<Unpublished>,
}

#[derive(Debug, Default)]
struct Unpublished {
    /// The beginning of a line whose end was not printed yet.
    line: Vec<u8>,
    /// The last bytes published since the end of the last exchange.
    recent: Vec<u8>,
}

/// How much of the output is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upto {
    /// The last whole line.
    LastLine,
    /// The last byte.
    LastByte,
}

impl Printing {
    pub(crate) fn new(
        version: Arc<Version>,
        sink: Arc<dyn EventSink>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            version,
            sink,
            clock,
            state: Mutex::default(),
        }
    }

    /// Publishes what `worker` prints, until it prints nothing more.
    pub(crate) async fn follow(&self, worker: &dyn Worker) {
        loop {
            match timeout(SILENCE_MAX, worker.printed()).await {
                Ok(true) => {
                    if self.publish(worker, Upto::LastLine) > BURST_LEN {
                        // A flood waits, instead of filling the queues of all functions.
                        sleep(BURST_PAUSE).await;
                    }
                }
                Ok(false) => break,
                Err(_) if worker.is_alive() => {}
                Err(_) => break,
            }
        }
        self.publish(worker, Upto::LastByte);
    }

    /// Publishes everything printed so far. Returns the last bytes that were published since the last call.
    pub(crate) fn flush(&self, worker: &dyn Worker) -> Bytes {
        self.publish(worker, Upto::LastByte);
        std::mem::take(&mut self.state.lock().recent).into()
    }

    /// Returns how many bytes were published.
    fn publish(&self, worker: &dyn Worker, upto: Upto) -> usize {
        let mut state = self.state.lock();
        let Unpublished { line, recent } = &mut *state;
        line.extend_from_slice(&worker.take_output());
        let end = match upto {
            Upto::LastLine if line.len() <= LINE_LEN_MAX => {
                line.iter().rposition(|byte| *byte == b'\n')
            }
            _ => line.len().checked_sub(1),
        };
        let Some(end) = end else {
            return 0;
        };
        let rest = line.split_off(end + 1);
        let output = std::mem::replace(line, rest);
        recent.extend_from_slice(&output);
        let excess = recent.len().saturating_sub(RECENT_LEN_MAX);
        recent.drain(..excess);
        let len = output.len();
        self.sink.publish(Event::Printed {
            version: Arc::clone(&self.version),
            output: output.into(),
            at: self.clock.now(),
        });
        len
    }
}

/// A worker that was told to end, and prints nothing for this time, is not listened to any longer. Longer than the grace period of
/// a server (10 s).
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// After publishing more than this at once, the worker is not read for a while.
const BURST_LEN: usize = 64 * 1024;
const BURST_PAUSE: Duration = Duration::from_millis(100);

/// Longest line that is published as one.
const LINE_LEN_MAX: usize = 64 * 1024;

/// Lambda returns the last 4 KiB of an invocation's log.
const RECENT_LEN_MAX: usize = 4096;
