//! An upload on its way to the disk, so that memory does not grow with its size.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

use bytes::Bytes;
use pilot_model::ports::ControlPlane;
use pilot_model::size::Size;
use tokio::io::AsyncWriteExt;

use crate::error::Failure;

/// An upload that is written to a file without a name.
#[derive(Debug)]
pub(super) struct Spool {
    file: tokio::fs::File,
    /// What arrives, for messages.
    name: &'static str,
    bytes: u64,
    bytes_max: u64,
}

impl Spool {
    pub(super) fn new(
        control: &dyn ControlPlane,
        name: &'static str,
        bytes_max: u64,
    ) -> Result<Self, Failure> {
        let file = control.spool().map_err(|error| disk(&error))?;
        Ok(Self {
            file: tokio::fs::File::from_std(file),
            name,
            bytes: 0,
            bytes_max,
        })
    }

    /// Writes the next bytes. Once it is over its limit, it only counts, because many clients read the response only after they
    /// have sent everything; it fails as soon as that is too much as well.
    pub(super) async fn add(&mut self, chunk: Bytes) -> Result<(), Failure> {
        self.bytes += chunk.len() as u64;
        if self.bytes <= self.bytes_max {
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

    /// The whole file, at its beginning.
    pub(super) async fn finish(mut self) -> Result<File, Failure> {
        if self.bytes > self.bytes_max {
            return Err(self.too_large());
        }
        let flushed = async {
            self.file.flush().await?;
            let mut file = self.file.into_std().await;
            file.seek(SeekFrom::Start(0))?;
            Ok(file)
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

fn disk(error: &io::Error) -> Failure {
    Failure::new(
        "internal",
        format!("the upload could not be written to the data directory: {error}"),
    )
}

const DISCARDED_BYTES_MAX: u64 = 512 << 20;
