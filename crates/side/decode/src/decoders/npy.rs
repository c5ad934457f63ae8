//! Arrays that numpy has saved (`numpy.save`; numpy's NEP 1): a header, and the values. The result is in C's order and
//! little-endian, in whatever order the file is.

use pilot_model::inputs::decoded::{DIMENSIONS_MAX, Element, Layout};

use crate::Made;

/// What the header says.
#[derive(Debug, PartialEq)]
struct Head {
    element: Element,
    is_big_endian: bool,
    is_fortran: bool,
    shape: Vec<u64>,
}

pub(super) fn decode(mut bytes: Vec<u8>) -> Result<Made, String> {
    let (head, at) = head(&bytes)?;
    let count = head
        .shape
        .iter()
        .try_fold(1_u64, |count, length| count.checked_mul(*length));
    let len = count.and_then(|count| count.checked_mul(head.element.bytes()));
    let there = (bytes.len() - at) as u64;
    if len != Some(there) {
        return Err(format!(
            "it has {there} bytes of values, and its shape {:?} does not have as many",
            head.shape
        ));
    }
    bytes.drain(..at);
    let width = usize::try_from(head.element.bytes()).unwrap_or(1);
    if head.is_big_endian && width > 1 {
        bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    if head.is_fortran && head.shape.len() > 1 {
        bytes = in_order(&bytes, &head.shape, width)?;
    }
    if head.element == Element::Bool && bytes.iter().any(|byte| *byte > 1) {
        return Err("one of its truth values is neither 0 nor 1".to_owned());
    }
    Ok(Made {
        layout: Layout::Array {
            element: head.element,
            shape: head.shape,
            at: 0,
        },
        parts: vec![bytes],
    })
}

/// The file that numpy would save of an array.
pub(super) fn as_file(made: Made) -> Result<Made, String> {
    let Layout::Array { element, shape, .. } = made.layout else {
        return Err("it is not an array".to_owned());
    };
    // A tuple of one has a comma.
    let lengths: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let mut head = format!(
        "{{'descr': '{element}', 'fortran_order': False, 'shape': ({}), }}",
        match shape.as_slice() {
            [_] => lengths.trim_end(),
            _ => lengths.trim_end_matches(", "),
        }
    )
    .into_bytes();
    // The last character is a line feed (NEP 1).
    let len = (FILE_HEAD_LEN + head.len() + 1).next_multiple_of(FILE_ALIGNMENT);
    head.resize(len - FILE_HEAD_LEN - 1, b' ');
    head.push(b'\n');
    let head_len = u16::try_from(head.len()).map_err(|error| error.to_string())?;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(head_len.to_le_bytes());
    file.extend(head);
    let at = file.len() as u64;
    Ok(Made {
        layout: Layout::Array { element, shape, at },
        parts: std::iter::once(file).chain(made.parts).collect(),
    })
}

/// Reads the header. Returns the position of the values, too.
fn head(bytes: &[u8]) -> Result<(Head, usize), String> {
    let not_npy = || "it is not a file of numpy.save".to_owned();
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or_else(not_npy)?;
    let (len, begin) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, _, a, b, c, d, ..] => {
            let len = u32::from_le_bytes([*a, *b, *c, *d]);
            (usize::try_from(len).map_err(|_| not_npy())?, 12)
        }
        [] | [1..=3, ..] => return Err(not_npy()),
        [version, ..] => return Err(format!("its format has the unknown version {version}")),
    };
    let end = begin + len.min(HEADER_LEN_MAX + 1);
    if len > HEADER_LEN_MAX {
        return Err(format!("its header has {len} bytes"));
    }
    let text = bytes
        .get(begin..end)
        .and_then(|text| std::str::from_utf8(text).ok())
        .ok_or_else(not_npy)?;
    let head = Dict(text).read().map_err(|problem| {
        let shown: String = text.trim().chars().take(120).collect();
        format!("{problem}: {}", shown.escape_default())
    })?;
    Ok((head, end))
}

/// The text of a header: a literal of a Python dict with the keys `descr`, `fortran_order` and `shape`.
struct Dict<'a>(&'a str);

impl<'a> Dict<'a> {
    fn read(&mut self) -> Result<Head, String> {
        let (mut kind, mut is_fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.takes('}') {
            let key = self.string()?;
            self.expect(':')?;
            match key {
                "descr" if self.0.trim_start().starts_with('[') => {
                    return Err("its values have fields: save one array per field".to_owned());
                }
                "descr" => kind = Some(element(self.string()?)?),
                "fortran_order" => is_fortran = Some(self.truth()?),
                "shape" => shape = Some(self.shape()?),
                _ => return Err("its header cannot be read".to_owned()),
            }
            if !self.takes(',') {
                self.expect('}')?;
                break;
            }
        }
        match (kind, is_fortran, shape) {
            (Some((element, is_big_endian)), Some(is_fortran), Some(shape)) => Ok(Head {
                element,
                is_big_endian,
                is_fortran,
                shape,
            }),
            _ => Err("its header is not complete".to_owned()),
        }
    }

    fn takes(&mut self, wanted: char) -> bool {
        match self.0.trim_start().strip_prefix(wanted) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        match self.takes(wanted) {
            true => Ok(()),
            false => Err("its header cannot be read".to_owned()),
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|char| "'\"".contains(*char));
        let inside = quote.and_then(|quote| text.strip_prefix(quote)?.split_once(quote));
        let (inside, rest) = inside.ok_or("its header cannot be read")?;
        self.0 = rest;
        Ok(inside)
    }

    fn truth(&mut self) -> Result<bool, String> {
        let text = self.0.trim_start();
        for (word, truth) in [("True", true), ("False", false)] {
            if let Some(rest) = text.strip_prefix(word) {
                self.0 = rest;
                return Ok(truth);
            }
        }
        Err("its header cannot be read".to_owned())
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.takes(')') {
            let text = self.0.trim_start();
            let digits = text.len()
                - text
                    .trim_start_matches(|char: char| char.is_ascii_digit())
                    .len();
            let (number, rest) = text.split_at(digits);
            // Python 2 wrote long numbers with an L.
            self.0 = rest.strip_prefix('L').unwrap_or(rest);
            shape.push(number.parse().map_err(|_| "its shape cannot be read")?);
            if shape.len() > DIMENSIONS_MAX {
                return Err(format!("it has more than {DIMENSIONS_MAX} dimensions"));
            }
            if !self.takes(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

/// The type of the values, and whether they are big-endian.
fn element(descr: &str) -> Result<(Element, bool), String> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or(("", ""));
    let is_big_endian = match order {
        "<" | "|" => false,
        ">" => true,
        "=" => cfg!(target_endian = "big"),
        _ => return Err(unknown(descr)),
    };
    let known = Element::ALL
        .into_iter()
        .find(|element| element.as_str().get(1..) == Some(kind));
    let element = known.ok_or_else(|| unknown(descr))?;
    Ok((element, is_big_endian))
}

fn unknown(descr: &str) -> String {
    format!(
        "its values have the type \"{}\": save truth values, integers, or floating-point numbers of up to 64 bits",
        descr.escape_default()
    )
}

/// From Fortran's order, in which the first index changes fastest, to C's.
fn in_order(bytes: &[u8], shape: &[u64], width: usize) -> Result<Vec<u8>, String> {
    let shape: Vec<usize> = shape
        .iter()
        .map(|length| usize::try_from(*length))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    // The length of each dimension, and the bytes from one of its indices to the next. One of length 1 has one index.
    let mut dimensions = Vec::with_capacity(shape.len());
    let mut step = width;
    for length in shape {
        if length != 1 {
            dimensions.push((length, step));
        }
        step = step.saturating_mul(length);
    }
    let mut made = Vec::new();
    made.try_reserve_exact(bytes.len())
        .map_err(|_| "there is no memory to put its values in order".to_owned())?;
    let mut index = vec![0; dimensions.len()];
    let mut from = 0;
    while made.len() < bytes.len() {
        let value = bytes.get(from..from + width).ok_or("its shape is wrong")?;
        made.extend_from_slice(value);
        // The next index in C's order: the last dimension changes fastest.
        for (at, (length, step)) in index.iter_mut().zip(&dimensions).rev() {
            *at += 1;
            from += step;
            if *at < *length {
                break;
            }
            from -= step * length;
            *at = 0;
        }
    }
    Ok(made)
}

/// numpy's own headers have some hundred bytes.
const HEADER_LEN_MAX: usize = 64 << 10;
/// What a file of version 1 has before its header.
const FILE_HEAD_LEN: usize = 10;
/// Where values of files begin.
const FILE_ALIGNMENT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn file(head: &str, values: &[u8]) -> Vec<u8> {
        let len = u16::try_from(head.len()).unwrap().to_le_bytes();
        [
            b"\x93NUMPY\x01\x00",
            len.as_slice(),
            head.as_bytes(),
            values,
        ]
        .concat()
    }

    fn of(descr: &str, order: &str, shape: &str, values: &[u8]) -> Result<Made, String> {
        let head =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}   \n");
        decode(file(&head, values))
    }

    #[test]
    fn an_array_keeps_its_values_in_whatever_order_they_are_saved() {
        let array = |element, shape: &[u64]| Layout::Array {
            element,
            shape: shape.to_vec(),
            at: 0,
        };
        let made = of(
            "<u2",
            "False",
            "(2, 3)",
            &[0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0],
        )
        .unwrap();
        let c = vec![0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0];
        assert_eq!(made.layout, array(Element::U16, &[2, 3]));
        assert_eq!(made.parts, std::slice::from_ref(&c));
        let made = of(
            ">u2",
            "False",
            "(2, 3)",
            &[0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5],
        )
        .unwrap();
        assert_eq!(made.parts, std::slice::from_ref(&c));
        let made = of(
            "<u2",
            "True",
            "(2, 3)",
            &[0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0],
        )
        .unwrap();
        assert_eq!(made.parts, [c]);
        // numpy.save(numpy.asfortranarray(numpy.arange(24).reshape(2, 3, 4))).
        let fortran = [
            0, 12, 4, 16, 8, 20, 1, 13, 5, 17, 9, 21, 2, 14, 6, 18, 10, 22, 3, 15, 7, 19, 11, 23,
        ];
        let made = of("|i1", "True", "(2, 3, 4)", &fortran).unwrap();
        assert_eq!(made.parts, [(0..24).collect::<Vec<u8>>()]);
        let made = of("|i1", "True", "(1, 2, 1, 3, 4, 1)", &fortran).unwrap();
        assert_eq!(made.parts, [(0..24).collect::<Vec<u8>>()]);
        assert_eq!(made.layout, array(Element::I8, &[1, 2, 1, 3, 4, 1]));
        let made = of("|b1", "False", "()", &[1]).unwrap();
        assert_eq!(made.layout, array(Element::Bool, &[]));
        let made = of("<f8", "True", "(0L, 5L)", &[]).unwrap();
        assert_eq!(made.layout, array(Element::F64, &[0, 5]));
        let made = of("<f4", "False", "(1,)", &[0; 4]).unwrap();
        assert_eq!(made.layout, array(Element::F32, &[1]));
    }

    #[test]
    fn a_file_of_an_array_is_one_that_is_read_as_the_same_array() {
        for (descr, shape, values) in [
            ("<u2", vec![2, 3], &[0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0][..]),
            ("|u1", vec![3], &[1, 2, 3]),
            ("|b1", vec![], &[1]),
            ("<f8", vec![0, 5], &[]),
            ("|i1", vec![1; 32], &[7]),
        ] {
            let lengths: String = shape.iter().map(|length| format!("{length}, ")).collect();
            let made = of(descr, "False", &format!("({lengths})"), values).unwrap();
            let Layout::Array { element, shape, .. } = made.layout.clone() else {
                panic!("{:?}", made.layout);
            };
            let saved = as_file(made).unwrap();
            let at = saved.parts[0].len();
            let layout = Layout::Array {
                element,
                shape,
                at: at as u64,
            };
            assert_eq!((saved.layout.clone(), at % 64), (layout, 0));
            saved.layout.check(saved.len()).unwrap();
            let again = decode(saved.parts.concat()).unwrap();
            assert_eq!(again.parts, [values]);
            assert_eq!(as_file(again).unwrap().parts, saved.parts);
        }
    }

    #[test]
    fn what_is_no_array_is_refused_in_words() {
        for (made, said) in [
            (decode(b"plain".to_vec()), "not a file of numpy.save"),
            (decode(b"\x93NUMPY".to_vec()), "not a file of numpy.save"),
            (
                decode(b"\x93NUMPY\x01\x00\xff".to_vec()),
                "not a file of numpy.save",
            ),
            (decode(b"\x93NUMPY\x09\x00xx".to_vec()), "unknown version 9"),
            (
                decode(b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec()),
                "its header has",
            ),
            (
                of("<u2", "False", "(2, 3)", &[0; 11]),
                "it has 11 bytes of values",
            ),
            (
                of("<u8", "False", "(4294967296, 4294967296)", &[]),
                "does not have as many",
            ),
            (
                of("|O", "False", "(1,)", &[]),
                "its values have the type \"|O\"",
            ),
            (
                of("<c16", "False", "(1,)", &[0; 16]),
                "its values have the type",
            ),
            (of("", "False", "(1,)", &[]), "its values have the type"),
            (of("|b1", "False", "(1,)", &[2]), "neither 0 nor 1"),
            (of("|u1", "Perhaps", "(1,)", &[2]), "cannot be read"),
            (
                of("|u1", "False", "(-1,)", &[2]),
                "its shape cannot be read",
            ),
            (
                of("|u1", "False", &format!("({})", "1,".repeat(33)), &[2]),
                "32 dimensions",
            ),
            (
                decode(file(
                    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}",
                    &[0; 8],
                )),
                "its values have fields",
            ),
            (decode(file("{'descr': '<f8'}", &[0; 8])), "not complete"),
        ] {
            let found = made.unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }
}
