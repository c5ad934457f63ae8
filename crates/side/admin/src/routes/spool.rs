//! An upload on its way to the disk, so that memory does not grow with its size.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::ControlPlane;
use pilot_model::size::Size;
use tokio::io::AsyncWriteExt;

use super::pace::Pace;
use crate::blocking;
use crate::error::Failure;
use crate::shares::Share;

/// An upload that is written to a file without a name.
#[derive(Debug)]
pub(crate) struct Spool {
    file: tokio::fs::File,
    /// Of what all uploads together may have of the disk, in bytes.
    share: Share,
    pace: Pace,
    /// What arrives, for messages.
    name: &'static str,
    bytes: u64,
    bytes_max: u64,
}

impl Spool {
    /// For an upload of at most `bytes_max`, which messages call `name`.
    pub(crate) async fn new(
        control: Arc<dyn ControlPlane>,
        share: Share,
        bytes_max: u64,
        name: &'static str,
    ) -> Result<Self, Failure> {
        let file = blocking(move || control.spool()).await;
        let file = file.map_err(|error| disk(&error))?;
        Ok(Self {
            file: tokio::fs::File::from_std(file),
            share,
            pace: Pace::new(),
            name,
            bytes: 0,
            bytes_max,
        })
    }

    /// The next part, if it comes in time.
    pub(super) async fn next<T>(&self, part: impl Future<Output = T>) -> Result<T, Failure> {
        self.pace.next(part).await
    }

    /// Writes the next bytes. Once it is over its limit, it only counts, because many clients read the response only after they
    /// have sent everything; it fails as soon as that is too much as well.
    pub(super) async fn add(&mut self, chunk: Bytes) -> Result<(), Failure> {
        self.bytes += chunk.len() as u64;
        self.pace.came(chunk.len());
        if self.bytes <= self.bytes_max {
            if !self.share.grow(self.bytes) {
                return Err(busy(self.share.owner()));
            }
            return self
                .file
                .write_all(&chunk)
                .await
                .map_err(|error| disk(&error));
        }
        if self.bytes > self.bytes_max + DISCARDED_BYTES_MAX {
            return Err(self.too_large());
        }
        Ok(())
    }

    /// The whole file, at its beginning, and its share.
    pub(super) async fn finish(mut self) -> Result<(File, Share), Failure> {
        if self.bytes > self.bytes_max {
            return Err(self.too_large());
        }
        let flushed = async {
            self.file.flush().await?;
            let mut file = self.file.into_std().await;
            file.seek(SeekFrom::Start(0))?;
            Ok((file, self.share))
        };
        flushed.await.map_err(|error: io::Error| disk(&error))
    }

    fn too_large(&self) -> Failure {
        Failure::new(
            "too_large",
            format!(
                "the part '{}' is larger than the limit of {}; leave out what the function does not need, or have its packages \
                 installed from requirements.txt",
                self.name,
                Size(self.bytes_max)
            ),
        )
    }
}

fn busy(owner: &str) -> Failure {
    Failure::new(
        "busy",
        format!("too many uploads arrive or wait at the same time, also of {owner}: try again"),
    )
}

fn disk(error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "disk_full",
        _ => "internal",
    };
    Failure::new(
        code,
        format!("the upload could not be written to the data directory: {error}"),
    )
}

const DISCARDED_BYTES_MAX: u64 = 512 << 20;
