//! The rest of a large request body, on its way to an application: a task writes it to a socket pair, whose other end goes to the
//! worker with the call. The socket's buffer is the limit of what waits, so an application that does not read holds the client up.
//!
//! Each part is its length (u32, little-endian) and its bytes. Length 0 is the end of the body; a close before it means that the
//! body broke off.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::BodyExt as _;
use pilot_model::ports::{Input, InputKind, StreamedBody};
use pilot_sys::seqpacket;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use crate::task::Task;

/// A body that is being passed. Dropping it stops that.
#[derive(Debug)]
pub(crate) struct Upload {
    passed: Arc<AtomicU64>,
    _task: Task,
}

impl Upload {
    /// Begins to pass `body`. Returns the worker's end too.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn start(body: StreamedBody) -> io::Result<(Self, Input)> {
        let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
        let ours = StdUnixStream::from(ours);
        // Nothing comes from the worker. Whatever it would send fails there.
        ours.shutdown(Shutdown::Read)?;
        ours.set_nonblocking(true)?;
        let ours = UnixStream::from_std(ours)?;
        let passed = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&passed);
        let task = Task::spawn(async move {
            // An error means that the worker reads no more of it.
            let _ = pass(body, ours, &counted).await;
        });
        let input = Input {
            name: "body".to_owned(),
            kind: InputKind::Body,
            descriptor: Arc::new(theirs),
            object: None,
            decoded: None,
        };
        Ok((
            Self {
                passed,
                _task: task,
            },
            input,
        ))
    }

    /// Bytes that were passed so far.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

async fn pass(mut body: StreamedBody, mut to: UnixStream, passed: &AtomicU64) -> io::Result<()> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(io::Error::other)?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        for part in data.chunks(PART_LEN_MAX) {
            let len = u32::try_from(part.len()).map_err(io::Error::other)?;
            to.write_all(&len.to_le_bytes()).await?;
            to.write_all(part).await?;
            passed.fetch_add(u64::from(len), Ordering::Relaxed);
        }
    }
    to.write_all(&0_u32.to_le_bytes()).await
}

/// Longest part, bytes.
const PART_LEN_MAX: usize = 64 * 1024;
