//! What a handler calls, and the data that it hands over.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::{BoxFuture, HandedData, InputMemory, There};
use pilot_wire::calls::Refusal;

use super::buffers::{Slot, all_of};

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

    fn there(&self, at: u64) -> BoxFuture<'_, Result<There, Refusal>> {
        Box::pin(async move {
            match self {
                Self::Buffer(slot) => slot.there(at).await,
                Self::Input(memory) => all_of(memory.as_ref()),
            }
        })
    }
}
