//! The pace of an upload: a client that stops, or sends too little, is cut off.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::Failure;

/// The pace of one upload.
#[derive(Debug)]
pub(super) struct Pace {
    begun: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            bytes: 0,
        }
    }

    /// These bytes have come.
    pub(super) fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// The next part.
    ///
    /// # Errors
    /// `too_slow`.
    pub(super) async fn next<T>(&self, part: impl Future<Output = T>) -> Result<T, Failure> {
        let slowest = Duration::from_secs(self.bytes / BYTES_PER_S_MIN);
        let due = (Instant::now() + PATIENCE).min(self.begun + PATIENCE + slowest);
        timeout_at(due, part).await.map_err(|_| {
            Failure::new(
                "too_slow",
                format!(
                    "the upload is too slow: no data for {} s, or less than {BYTES_PER_S_MIN} bytes per second",
                    PATIENCE.as_secs()
                ),
            )
        })
    }
}

/// Longest wait for a part.
const PATIENCE: Duration = Duration::from_secs(30);
/// The lowest rate, in addition to the patience.
const BYTES_PER_S_MIN: u64 = 4096;
