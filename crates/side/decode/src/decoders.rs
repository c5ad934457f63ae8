//! The formats. Each takes the bytes of a store, and fails with a text for the developer of the function.

mod image;
mod npy;
mod parquet;

use pilot_model::inputs::Decoder;
use pilot_model::inputs::decoded::DecodeRequest;

use crate::Made;

/// # Errors
/// Why it cannot be decoded.
pub(crate) fn decode(request: &DecodeRequest, bytes: Vec<u8>) -> Result<Made, String> {
    match request.by {
        Decoder::Image => image::decode(request, bytes),
        Decoder::Npy => npy::decode(bytes),
        Decoder::Parquet => parquet::decode(request, bytes),
    }
}
