//! What a handler calls, and the data that it hands over.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::{BoxFuture, HandedData, InputMemory};
use pilot_wire::calls::Refusal;

use super::buffers::Slot;

/// What is called.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) function: String,
    pub(super) event: Bytes,
    pub(super) data: Option<Data>,
}

/// The data that goes along.
#[derive(Debug)]
pub(super) enum Data {
    /// A buffer, which may still be filled.
    Buffer(Arc<Slot>),
    /// An input of the caller.
    Input(Arc<dyn InputMemory>),
}

impl HandedData for Data {
    fn bytes(&self) -> u64 {
        match self {
            Self::Buffer(slot) => slot.len(),
            Self::Input(memory) => memory.bytes(),
        }
    }

    fn memory(&self) -> BoxFuture<'_, Result<Arc<dyn InputMemory>, Refusal>> {
        Box::pin(async move {
            match self {
                Self::Buffer(slot) => slot.sealed().await,
                Self::Input(memory) => Ok(Arc::clone(memory)),
            }
        })
    }
}
