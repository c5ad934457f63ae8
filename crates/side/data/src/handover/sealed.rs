//! Memory that a worker has filled, and what it counts until nobody has it any more.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::{Input, InputKind};
use pilot_protocols::Reserved;
use pilot_sys::memfd;

use crate::memory::close;

/// What it counts: in the share of the function that fills it, and in the total.
#[derive(Debug)]
pub(crate) struct Charged {
    pub(crate) _share: Reserved,
    pub(crate) _total: Reserved,
}

/// The memory. When it is dropped, it counts on until no worker has it.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// A file description that only reads. `None` only while it is dropped, like the next.
    file: Option<OwnedFd>,
    charged: Option<Charged>,
    len: u64,
    held: Arc<HeldSealed>,
}

impl Sealed {
    pub(crate) fn new(file: OwnedFd, len: u64, charged: Charged, held: &Arc<HeldSealed>) -> Self {
        Self {
            file: Some(file),
            charged: Some(charged),
            len,
            held: Arc::clone(held),
        }
    }

    /// Its length, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// A descriptor for a worker: an open file of its own.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn input(&self, name: &str) -> io::Result<Input> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(Input {
            name: name.to_owned(),
            kind: InputKind::Memory { len: self.len },
            descriptor: Arc::new(memfd::reopen(file.as_fd())?),
            object: None,
            decoded: None,
        })
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        let (Some(file), Some(charged)) = (self.file.take(), self.charged.take()) else {
            return;
        };
        if memfd::is_used_elsewhere(file.as_fd()) {
            self.held.add(file, charged);
        } else {
            close(file, charged);
        }
    }
}

/// Memory that nobody hands over any more, but that a worker still has.
#[derive(Debug, Default)]
pub(crate) struct HeldSealed {
    files: Mutex<Vec<(OwnedFd, Charged)>>,
}

impl HeldSealed {
    fn add(self: &Arc<Self>, file: OwnedFd, charged: Charged) {
        let mut files = self.files.lock();
        files.push((file, charged));
        let is_first = files.len() == 1;
        drop(files);
        if is_first && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(Arc::clone(self).release());
        }
    }

    /// Gives back what is released, until nothing is held.
    async fn release(self: Arc<Self>) {
        let mut pause = PAUSE_MIN;
        loop {
            tokio::time::sleep(pause).await;
            let mut files = self.files.lock();
            let before = files.len();
            for (file, charged) in
                files.extract_if(.., |(file, _)| !memfd::is_used_elsewhere(file.as_fd()))
            {
                close(file, charged);
            }
            if files.is_empty() {
                return;
            }
            pause = if files.len() < before {
                PAUSE_MIN
            } else {
                (pause * 2).min(PAUSE_MAX)
            };
        }
    }
}

/// A worker lets go of its inputs soon after its answer.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
