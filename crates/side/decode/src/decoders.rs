//! The formats. Each takes the bytes of a store, and fails with a text for the developer of the function.

mod arrow;
mod image;
mod json;
mod npy;
mod parquet;

use pilot_model::inputs::decoded::DecodeRequest;
use pilot_model::inputs::{Decoder, Form};

use crate::Made;

/// # Errors
/// Why it cannot be decoded.
pub(crate) fn decode(request: &DecodeRequest, bytes: Vec<u8>) -> Result<Made, String> {
    match (request.by, request.form) {
        (Decoder::Image, Form::Memory) => image::decode(request, bytes),
        (Decoder::Image, Form::File) => image::decode(request, bytes).and_then(npy::as_file),
        (Decoder::Npy, Form::Memory) => npy::decode(bytes),
        (Decoder::Npy, Form::File) => npy::decode(bytes).and_then(npy::as_file),
        (Decoder::Parquet, Form::Memory) => parquet::decode(request, bytes),
        (Decoder::Parquet, Form::File) => arrow::of_parquet(request, bytes),
        (Decoder::Arrow, Form::File) => arrow::decode(request, bytes),
        (Decoder::Json, Form::File) => json::decode(request, bytes),
        (Decoder::Arrow | Decoder::Json, Form::Memory) => Err("it has no such form".to_owned()),
    }
}
