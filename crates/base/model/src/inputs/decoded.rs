//! Decoders of inputs: what an input becomes before a worker gets it, and how the result lies in its memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What decodes an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Decoder {
    /// PNG, JPEG, GIF (its first picture) and WebP, to the values of the pixels.
    Image,
    /// An array that numpy has saved.
    Npy,
    /// The columns of a Parquet file.
    Parquet,
    /// A table in Arrow's IPC format, a file or a stream.
    Arrow,
    /// One JSON text.
    Json,
}

/// How the workers of a runtime take what was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Memory to be mapped: the values alone, and a header that goes with the call.
    Memory,
    /// A file of a known format: npy, Arrow IPC or JSON.
    File,
}

impl Decoder {
    const ALL: [Self; 5] = [
        Self::Image,
        Self::Npy,
        Self::Parquet,
        Self::Arrow,
        Self::Json,
    ];

    /// The word in `pilot.toml`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Npy => "npy",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Json => "json",
        }
    }

    /// What it gives to workers that take this form.
    #[must_use]
    pub fn form(self, taken: Form) -> Form {
        match self {
            Self::Image | Self::Npy | Self::Parquet => taken,
            // They are read in place in every language, so there is one form, which functions in several languages share.
            Self::Arrow | Self::Json => Form::File,
        }
    }
}

impl FromStr for Decoder {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.as_str() == word);
        known.ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            format!(
                "decode is \"{}\", must be one of {known}",
                word.escape_default()
            )
        })
    }
}

/// The type of one value, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// One byte, 0 or 1.
    #[serde(rename = "|b1")]
    Bool,
    /// 8 bits with a sign.
    #[serde(rename = "|i1")]
    I8,
    /// 8 bits.
    #[serde(rename = "|u1")]
    U8,
    /// 16 bits with a sign.
    #[serde(rename = "<i2")]
    I16,
    /// 16 bits.
    #[serde(rename = "<u2")]
    U16,
    /// 32 bits with a sign.
    #[serde(rename = "<i4")]
    I32,
    /// 32 bits.
    #[serde(rename = "<u4")]
    U32,
    /// 64 bits with a sign.
    #[serde(rename = "<i8")]
    I64,
    /// 64 bits.
    #[serde(rename = "<u8")]
    U64,
    /// A floating-point number of 16 bits.
    #[serde(rename = "<f2")]
    F16,
    /// A floating-point number of 32 bits.
    #[serde(rename = "<f4")]
    F32,
    /// A floating-point number of 64 bits.
    #[serde(rename = "<f8")]
    F64,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
    ];

    /// How many bytes one takes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// numpy's name for it (`array.dtype.str`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bool => "|b1",
            Self::I8 => "|i1",
            Self::U8 => "|u1",
            Self::I16 => "<i2",
            Self::U16 => "<u2",
            Self::I32 => "<i4",
            Self::U32 => "<u4",
            Self::I64 => "<i8",
            Self::U64 => "<u8",
            Self::F16 => "<f2",
            Self::F32 => "<f4",
            Self::F64 => "<f8",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An input that was decoded: the header that goes to the worker with its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoded {
    /// What decoded it.
    pub by: Decoder,
    /// What lies where.
    #[serde(flatten)]
    pub layout: Layout,
}

/// What lies where in the memory of a decoded input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One array, in C's order, which is all of the memory from `at` on.
    Array {
        /// The type of its values.
        element: Element,
        /// Its length in each dimension. None: it is one value.
        shape: Vec<u64>,
        /// Where its values begin: after the header of an npy file. 0: there is no header.
        #[serde(default, skip_serializing_if = "is_zero")]
        at: u64,
    },
    /// The columns of a table.
    Table {
        /// Each column has this many values.
        rows: u64,
        /// In the order of the table.
        columns: Vec<Column>,
    },
    /// A file in Arrow's IPC format.
    Arrow {
        /// Each column has this many values.
        rows: u64,
        /// How many there are.
        columns: u64,
    },
    /// One JSON text in UTF-8, without white space between its parts and with no name twice in an object.
    Json {},
}

/// One column of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: ColumnValues,
    /// Where one byte per row says whether it has a value; 0: it has none, and the value there is 0 or empty. `None`: all have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<u64>,
}

/// The values of a column. Positions are those of the first byte in the memory, and multiples of 8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnValues {
    /// ColumnValues of the same length.
    Fixed {
        /// Their type.
        element: Element,
        /// Their position.
        at: u64,
    },
    /// Texts or byte strings, one after the other.
    Bytes {
        /// Position of their ends, `<u8`, one per row: the value of row n begins where that of row n - 1 ends.
        ends: u64,
        /// Position of their bytes.
        at: u64,
        /// How many bytes they have in all.
        len: u64,
        /// Whether they are UTF-8.
        text: bool,
    },
}

impl Layout {
    /// Checks that the layout lies within memory of `len` bytes, so that a reader who follows it stays within the memory.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, len: u64) -> Result<(), String> {
        match self {
            Self::Array { element, shape, at } => {
                if shape.len() > DIMENSIONS_MAX {
                    return Err(format!("it has more than {DIMENSIONS_MAX} dimensions"));
                }
                let bytes = shape
                    .iter()
                    .try_fold(element.bytes(), |bytes, length| bytes.checked_mul(*length))
                    .and_then(|bytes| bytes.checked_add(*at));
                match at.is_multiple_of(ALIGNMENT) && bytes == Some(len) {
                    true => Ok(()),
                    false => Err(format!("the shape {shape:?} does not fit {len} bytes")),
                }
            }
            Self::Table { rows, columns } => {
                let check = |column: &Column| column.check(*rows, len);
                columns.iter().try_for_each(check)
            }
            Self::Arrow { .. } | Self::Json {} => Ok(()),
        }
    }

    /// In which form it is.
    #[must_use]
    pub fn form(&self) -> Form {
        match self {
            Self::Array { at: 0, .. } | Self::Table { .. } => Form::Memory,
            Self::Array { .. } | Self::Arrow { .. } | Self::Json {} => Form::File,
        }
    }

    /// The media type of the file, with what is known of it. `None`: it is no file.
    #[must_use]
    pub fn media_type(&self) -> Option<String> {
        match self {
            Self::Array { at: 0, .. } | Self::Table { .. } => None,
            Self::Array { element, shape, .. } => {
                let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
                let shape = shape.join(",");
                Some(format!(
                    "application/x-npy; dtype=\"{element}\"; shape=\"{shape}\""
                ))
            }
            Self::Arrow { rows, columns } => Some(format!(
                "application/vnd.apache.arrow.file; rows={rows}; columns={columns}"
            )),
            Self::Json {} => Some("application/json".to_owned()),
        }
    }
}

/// For serde.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(at: &u64) -> bool {
    *at == 0
}

impl Column {
    fn check(&self, rows: u64, len: u64) -> Result<(), String> {
        let fits = |at: u64, count: u64, width: u64| {
            let end = count.checked_mul(width).and_then(|it| it.checked_add(at));
            at.is_multiple_of(ALIGNMENT) && end.is_some_and(|end| end <= len)
        };
        let values_fit = match self.values {
            ColumnValues::Fixed { element, at } => fits(at, rows, element.bytes()),
            ColumnValues::Bytes {
                ends, at, len: all, ..
            } => fits(ends, rows, 8) && fits(at, all, 1),
        };
        match values_fit && self.present.is_none_or(|at| fits(at, rows, 1)) {
            true => Ok(()),
            false => Err(format!(
                "the column \"{}\" is not in the {len} bytes",
                self.name.escape_default()
            )),
        }
    }
}

/// The command of the binary that decodes one input, which it gets on its descriptor 0, a stream socket. It is for processes in sandboxes.
pub const DECODE_VERB: &str = "decode-input";

/// What the daemon tells a decoder first: a line of JSON. The input follows, until the daemon closes its direction of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeRequest {
    /// The decoder.
    pub by: Decoder,
    /// The form of the result.
    pub form: Form,
    /// The length of the input, bytes, if it is known.
    pub len: Option<u64>,
    /// The longest result, bytes.
    pub bytes_max: u64,
    /// Memory that the process may have, bytes.
    pub memory_bytes: u64,
}

/// What a decoder answers: its length (u32, little-endian, at most [`HEADER_LEN_MAX`]) and JSON. If it is [`DecodeAnswer::Done`],
/// this many bytes follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeAnswer {
    /// The result.
    Done {
        /// Its length, bytes.
        len: u64,
        /// What lies where.
        layout: Layout,
    },
    /// It cannot be decoded.
    Failed {
        /// Why.
        problem: String,
    },
}

/// The longest answer of a decoder, and so the longest header of an input, bytes.
pub const HEADER_LEN_MAX: usize = 12 << 10;

/// Where arrays begin, bytes.
pub const ALIGNMENT: u64 = 8;
/// As many as numpy 1 has.
pub const DIMENSIONS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[u64]) -> Layout {
        Layout::Array {
            element: Element::F32,
            shape: shape.to_vec(),
            at: 0,
        }
    }

    #[test]
    fn an_array_has_exactly_its_memory() {
        array(&[2, 3]).check(24).unwrap();
        array(&[]).check(4).unwrap();
        array(&[7, 0]).check(0).unwrap();
        for (shape, len) in [
            (&[2, 3][..], 23),
            (&[2, 3], 25),
            (&[u64::MAX, 2], 0),
            (&[1; 33], 4),
        ] {
            assert!(array(shape).check(len).is_err(), "{shape:?}");
        }
        let of_file = |at| Layout::Array {
            element: Element::F32,
            shape: vec![2, 3],
            at,
        };
        of_file(64).check(88).unwrap();
        for (at, len) in [(64, 24), (4, 28), (u64::MAX - 7, 16)] {
            assert!(of_file(at).check(len).is_err(), "{at}");
        }
    }

    #[test]
    fn a_file_says_its_media_type_and_memory_has_none() {
        let of_file = Layout::Array {
            element: Element::F32,
            shape: vec![2, 3],
            at: 128,
        };
        let table = Layout::Arrow {
            rows: 7,
            columns: 2,
        };
        for (layout, said) in [
            (of_file, "application/x-npy; dtype=\"<f4\"; shape=\"2,3\""),
            (
                table,
                "application/vnd.apache.arrow.file; rows=7; columns=2",
            ),
            (Layout::Json {}, "application/json"),
        ] {
            assert_eq!(layout.media_type().as_deref(), Some(said));
            assert_eq!(layout.form(), Form::File);
        }
        assert_eq!(array(&[2]).media_type(), None);
        assert_eq!(array(&[2]).form(), Form::Memory);
    }

    #[test]
    fn no_column_leaves_the_memory() {
        let table = |values, present| Layout::Table {
            rows: 3,
            columns: vec![Column {
                name: "price".to_owned(),
                values,
                present,
            }],
        };
        let fixed = |at| ColumnValues::Fixed {
            element: Element::I64,
            at,
        };
        let bytes = |ends, at, len| ColumnValues::Bytes {
            ends,
            at,
            len,
            text: true,
        };
        table(fixed(8), Some(32)).check(35).unwrap();
        table(bytes(0, 24, 5), None).check(29).unwrap();
        for layout in [
            table(fixed(8), Some(32)),
            table(fixed(16), None),
            table(fixed(4), None),
            table(fixed(u64::MAX - 7), None),
            table(bytes(0, 24, 11), None),
            table(bytes(16, 0, 5), None),
        ] {
            assert!(layout.check(34).is_err(), "{layout:?}");
        }
    }

    #[test]
    fn an_unknown_decoder_names_the_known_ones() {
        assert_eq!("npy".parse(), Ok(Decoder::Npy));
        let found = "jpeg".parse::<Decoder>().unwrap_err();
        assert!(
            found.contains("must be one of image, npy, parquet, arrow, json"),
            "{found}"
        );
    }

    #[test]
    fn what_every_language_reads_in_place_has_one_form() {
        for decoder in Decoder::ALL {
            let is_one = matches!(decoder, Decoder::Json | Decoder::Arrow);
            assert_eq!(decoder.form(Form::File), Form::File);
            assert_eq!(decoder.form(Form::Memory) == Form::File, is_one);
        }
    }

    #[test]
    fn the_header_is_what_the_protocol_says() {
        let decoded = Decoded {
            by: Decoder::Image,
            layout: Layout::Array {
                element: Element::U8,
                shape: vec![2, 3],
                at: 0,
            },
        };
        let json = r#"{"by":"image","array":{"element":"|u1","shape":[2,3]}}"#;
        assert_eq!(serde_json::to_string(&decoded).unwrap(), json);
        let of_file = Decoded {
            by: Decoder::Json,
            layout: Layout::Json {},
        };
        let json = r#"{"by":"json","json":{}}"#;
        assert_eq!(serde_json::to_string(&of_file).unwrap(), json);
        assert_eq!(serde_json::from_str::<Decoded>(json).unwrap(), of_file);
        for element in Element::ALL {
            let json = serde_json::to_string(&element).unwrap();
            assert_eq!(json, format!("\"{element}\""));
        }
    }
}
