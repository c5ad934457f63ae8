//! Images: an array of height × width × channels, or of height × width if there is one channel. The values are those of the file, so
//! neither its colour profile nor its orientation (EXIF) is applied.

use std::io::Cursor;

use image::error::ImageError;
use image::{ColorType, ImageDecoder, ImageFormat, ImageReader, Limits};
use pilot_model::inputs::decoded::{DecodeRequest, Element, Layout};

use crate::{Made, too_long};

pub(super) fn decode(request: &DecodeRequest, bytes: Vec<u8>) -> Result<Made, String> {
    let memory = request.memory_bytes.saturating_sub(bytes.len() as u64);
    let in_words = |error: ImageError| match error {
        ImageError::Limits(_) => too_much(memory),
        error => error.to_string(),
    };
    let is_cut = is_cut_jpeg(&bytes);
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| error.to_string())?;
    if reader.format().is_none() {
        return Err("it is no PNG, JPEG, GIF or WebP".to_owned());
    }
    if reader.format() == Some(ImageFormat::Jpeg) && is_cut {
        return Err("it is not complete: its end is missing".to_owned());
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(memory);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(in_words)?;
    let (width, height) = decoder.dimensions();
    let (element, channels) = kind(decoder.color_type())?;
    let len = decoder.total_bytes();
    if len > request.bytes_max {
        return Err(too_long(len, request));
    }
    // The limits above are of what the decoder itself takes.
    if len > memory {
        return Err(too_much(memory));
    }
    let mut pixels = Vec::new();
    let room = usize::try_from(len).map_err(|error| error.to_string())?;
    pixels
        .try_reserve_exact(room)
        .map_err(|_| "there is no memory for its pixels".to_owned())?;
    pixels.resize(room, 0);
    decoder.read_image(&mut pixels).map_err(in_words)?;
    if cfg!(target_endian = "big") && element.bytes() == 2 {
        pixels.chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    let mut shape = vec![u64::from(height), u64::from(width)];
    if channels > 1 {
        shape.push(channels);
    }
    Ok(Made {
        layout: Layout::Array {
            element,
            shape,
            at: 0,
        },
        parts: vec![pixels],
    })
}

fn too_much(memory: u64) -> String {
    format!(
        "it needs more memory than the {memory} bytes that a decoder has left for it: see data.decoder_memory_mb in pilotd.toml"
    )
}

/// Whether a JPEG has no end. The decoder would fill the rest with grey. What follows the end does not count: cameras append films
/// and other pictures. No byte of a scan looks like a marker (ITU-T T.81, sections B.1.1.4 and 5), and a segment has a length.
fn is_cut_jpeg(bytes: &[u8]) -> bool {
    // Behind the marker of the beginning.
    let mut rest = bytes.get(2..).unwrap_or_default();
    while let Some(at) = rest
        .windows(2)
        .position(|two| two[0] == 0xff && !matches!(two[1], 0 | 0xff | 0x01 | 0xd0..=0xd7))
    {
        if rest.get(at + 1) == Some(&END_OF_IMAGE) {
            return false;
        }
        let segment = rest.get(at + 2..).unwrap_or_default();
        let len = match segment {
            [high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return true,
        };
        rest = segment.get(len..).unwrap_or_default();
    }
    true
}

const END_OF_IMAGE: u8 = 0xd9;

/// The type of a value, and how many a pixel has.
fn kind(color: ColorType) -> Result<(Element, u64), String> {
    Ok(match color {
        ColorType::L8 => (Element::U8, 1),
        ColorType::La8 => (Element::U8, 2),
        ColorType::Rgb8 => (Element::U8, 3),
        ColorType::Rgba8 => (Element::U8, 4),
        ColorType::L16 => (Element::U16, 1),
        ColorType::La16 => (Element::U16, 2),
        ColorType::Rgb16 => (Element::U16, 3),
        ColorType::Rgba16 => (Element::U16, 4),
        ColorType::Rgb32F => (Element::F32, 3),
        ColorType::Rgba32F => (Element::F32, 4),
        other => return Err(format!("its pixels are of an unknown kind, {other:?}")),
    })
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, RgbImage};
    use pilot_model::inputs::{Decoder, Form};

    use super::*;

    fn request(bytes_max: u64, memory_bytes: u64) -> DecodeRequest {
        DecodeRequest {
            by: Decoder::Image,
            form: Form::Memory,
            len: None,
            bytes_max,
            memory_bytes,
        }
    }

    fn of_16() -> DynamicImage {
        let pixels = RgbImage::from_fn(5, 3, |x, y| {
            let [x, y] = [x, y].map(|it| u8::try_from(it).unwrap());
            image::Rgb([x, y, 7])
        });
        DynamicImage::ImageRgb8(pixels)
    }

    fn saved(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        image.write_to(&mut file, format).unwrap();
        file.into_inner()
    }

    #[test]
    fn the_pixels_are_those_that_were_saved() {
        let image = of_16();
        let grey = DynamicImage::ImageLuma16(image.to_luma16());
        for (image, format, element, shape) in [
            (&image, ImageFormat::Png, Element::U8, vec![3, 5, 3]),
            (&image, ImageFormat::WebP, Element::U8, vec![3, 5, 3]),
            (&grey, ImageFormat::Png, Element::U16, vec![3, 5]),
        ] {
            let made = decode(&request(1 << 20, 1 << 30), saved(image, format)).unwrap();
            let at = 0;
            assert_eq!(made.layout, Layout::Array { element, shape, at });
            assert_eq!(made.parts, [image.as_bytes()], "{format:?}");
            made.layout.check(made.len()).unwrap();
        }
        // These lose something.
        for (format, shape) in [
            (ImageFormat::Jpeg, vec![3, 5, 3]),
            (ImageFormat::Gif, vec![3, 5, 4]),
        ] {
            let made = decode(&request(1 << 20, 1 << 30), saved(&image, format)).unwrap();
            let (element, at) = (Element::U8, 0);
            assert_eq!(made.layout, Layout::Array { element, shape, at });
            made.layout.check(made.len()).unwrap();
        }
    }

    #[test]
    fn what_is_no_image_or_too_large_is_refused_in_words() {
        let png = saved(&of_16(), ImageFormat::Png);
        let cut = png[..png.len() / 2].to_vec();
        let jpeg = saved(&of_16(), ImageFormat::Jpeg);
        let cut_jpeg = jpeg[..jpeg.len() - 3].to_vec();
        for (bytes, bytes_max, said) in [
            (
                b"plain text".to_vec(),
                1 << 20,
                "it is no PNG, JPEG, GIF or WebP",
            ),
            (cut, 1 << 20, ""),
            (cut_jpeg, 1 << 20, "it is not complete"),
            (png, 44, "the result would have 45 bytes"),
        ] {
            let found = decode(&request(bytes_max, 1 << 30), bytes).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }

    /// As cameras append films and other pictures.
    #[test]
    fn what_follows_a_jpeg_does_not_count() {
        let whole = saved(&of_16(), ImageFormat::Jpeg);
        for more in [
            &b"\xff\xda and more"[..],
            &whole[..whole.len() - 3],
            b"\xff\xd9",
        ] {
            let appended = [&whole, more].concat();
            decode(&request(1 << 20, 1 << 30), appended).unwrap();
        }
        for len in 3..whole.len() {
            assert!(is_cut_jpeg(&whole[..len - 1]), "{len}");
        }
        assert!(!is_cut_jpeg(&whole));
    }

    /// 20 KB that claim to be an image of 1.6 GB.
    #[test]
    fn a_bomb_is_refused_by_its_head() {
        let mut png = saved(&of_16(), ImageFormat::Png);
        // Width and height, and the checksum of their chunk (PNG specification, section 11.2.1).
        png[16..20].copy_from_slice(&23_000_u32.to_be_bytes());
        png[20..24].copy_from_slice(&23_000_u32.to_be_bytes());
        let sum = crc(&png[12..29]);
        png[29..33].copy_from_slice(&sum.to_be_bytes());
        let found = decode(&request(u64::MAX, 64 << 20), png.clone()).unwrap_err();
        assert!(found.contains("data.decoder_memory_mb"), "{found}");
        let found = decode(&request(1 << 20, u64::MAX), png).unwrap_err();
        assert!(found.contains("data.input_mb"), "{found}");
    }

    fn crc(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1));
        let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
        !bytes.iter().fold(u32::MAX, byte)
    }
}
