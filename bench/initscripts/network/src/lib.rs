//! The image recognition of imgrec-wasm, as a module of WebAssembly: a decoder of PNG and a small network. It is the network of the
//! ONNX file of imgrec-py (`initscripts/made.py`), written out: a convolution of 16 × 16 pixels at a time, two of one pixel, each
//! followed by ReLU, and the mean over all places. The host copies both files in, and calls [`infer`].

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder};

const SIDE: usize = 224;
const PATCH: usize = 16;
/// Inputs and outputs of each layer.
const LAYERS: [(usize, usize); 3] = [(3 * PATCH * PATCH, 1024), (1024, 1254), (1254, 1000)];

/// Why there is no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// It is no PNG with 8 bits of red, green and blue.
    Image = -1,
    /// They have another length.
    Weights = -2,
}

/// Memory for as many bytes, which the host writes. It is never given back: a module serves one start.
#[unsafe(no_mangle)]
pub extern "C" fn room(len: usize) -> *mut u8 {
    Box::leak(vec![0_u8; len].into_boxed_slice()).as_mut_ptr()
}

/// The class of an image; below 0: see [`Unreadable`].
///
/// # Safety
/// Both places are those of [`room`], with the same lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infer(
    image: *const u8,
    image_len: usize,
    weights: *const u8,
    weights_len: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let (image, weights) = unsafe {
        (
            std::slice::from_raw_parts(image, image_len),
            std::slice::from_raw_parts(weights, weights_len),
        )
    };
    class(image, weights).map_or_else(|error| error as i32, |class| class as i32)
}

/// The class of an image, as [`infer`].
///
/// # Errors
/// [`Unreadable`].
pub fn class(image: &[u8], weights: &[u8]) -> Result<usize, Unreadable> {
    let mut layer = patches(image).ok_or(Unreadable::Image)?;
    let places = (SIDE / PATCH) * (SIDE / PATCH);
    if weights.len() != LAYERS.iter().map(|(from, to)| 4 * from * to).sum::<usize>() {
        return Err(Unreadable::Weights);
    }
    let mut rest = weights;
    for (from, to) in LAYERS {
        let (of_layer, others) = rest.split_at(4 * from * to);
        layer = convolved(&layer, of_layer, from, to, places);
        rest = others;
    }
    let (_, classes) = LAYERS[2];
    let mut sums = vec![0_f32; classes];
    for place in layer.chunks_exact(classes) {
        for (sum, value) in sums.iter_mut().zip(place) {
            *sum += value;
        }
    }
    let best = sums
        .iter()
        .enumerate()
        .reduce(|best, other| if other.1 > best.1 { other } else { best });
    Ok(best.map_or(0, |(class, _)| class))
}

/// The image's nearest 224 × 224 pixels, patch by patch; in a patch red, green and blue one after another, as ONNX orders them.
fn patches(image: &[u8]) -> Option<Vec<f32>> {
    let mut reader = Decoder::new(Cursor::new(image)).read_info().ok()?;
    let mut pixels = vec![0; reader.output_buffer_size()?];
    let frame = reader.next_frame(&mut pixels).ok()?;
    if (frame.color_type, frame.bit_depth) != (ColorType::Rgb, BitDepth::Eight) {
        return None;
    }
    let (width, height) = (frame.width as usize, frame.height as usize);
    let nearest = |at: usize, len: usize| (2 * at + 1) * len / (2 * SIDE);
    let mut found = Vec::with_capacity(3 * SIDE * SIDE);
    for (row, column) in product(SIDE / PATCH, SIDE / PATCH) {
        for colour in 0..3 {
            for (y, x) in product(PATCH, PATCH) {
                let line = nearest(row * PATCH + y, height);
                let pixel = nearest(column * PATCH + x, width);
                found.push(f32::from(*pixels.get(3 * (line * width + pixel) + colour)?) / 255.0);
            }
        }
    }
    Some(found)
}

fn product(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
}

/// One layer at all places, and ReLU. `weights` are `to` rows of `from` numbers.
fn convolved(layer: &[f32], weights: &[u8], from: usize, to: usize, places: usize) -> Vec<f32> {
    let mut outputs = vec![0_f32; places * to];
    let mut row = vec![0_f32; from];
    for (output, bytes) in weights.chunks_exact(4 * from).enumerate() {
        for (number, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
            *number = f32::from_le_bytes(*bytes);
        }
        for (place, inputs) in layer.chunks_exact(from).enumerate() {
            outputs[place * to + output] = dot(&row, inputs).max(0.0);
        }
    }
    outputs
}

/// Eight sums, which a compiler can keep in two registers.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0_f32; 8];
    let (eights, rest) = left.as_chunks::<8>();
    let (others, other_rest) = right.as_chunks::<8>();
    for (left, right) in eights.iter().zip(others) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += left * right;
        }
    }
    let rest: f32 = rest
        .iter()
        .zip(other_rest)
        .map(|(left, right)| left * right)
        .sum();
    sums.iter().sum::<f32>() + rest
}
