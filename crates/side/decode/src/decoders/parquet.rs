//! The columns of a Parquet file: numbers as arrays, texts and byte strings one after the other. Tables in tables and lists are refused.
//! The integers of dates and times are those of the file.

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use pilot_model::inputs::decoded::{Column, ColumnValues, DecodeRequest, Element, Layout};

use crate::{Made, aligned, too_long};

pub(super) fn decode(request: &DecodeRequest, bytes: Vec<u8>) -> Result<Made, String> {
    let file = SerializedFileReader::new(Bytes::from(bytes)).map_err(|error| error.to_string())?;
    check_compression(file.metadata())?;
    let schema = file.metadata().file_metadata().schema_descr_ptr();
    let mut columns: Vec<Filled> = schema
        .columns()
        .iter()
        .map(|column| Filled::of(column))
        .collect::<Result<_, _>>()?;
    for group in 0..file.num_row_groups() {
        let group = file
            .get_row_group(group)
            .map_err(|error| error.to_string())?;
        for at in 0..columns.len() {
            let reader = group
                .get_column_reader(at)
                .map_err(|error| error.to_string())?;
            let others: u64 = columns.iter().map(Filled::len).sum();
            let Some(column) = columns.get_mut(at) else {
                break;
            };
            let room = request.bytes_max.saturating_sub(others - column.len());
            column.fill(reader, room, request)?;
        }
    }
    let rows = columns.first().map_or(0, |column| column.rows);
    if let Some(other) = columns.iter().find(|column| column.rows != rows) {
        return Err(format!(
            "its columns have different numbers of rows: \"{}\" has {}",
            other.name.escape_default(),
            other.rows
        ));
    }
    Ok(lay_out(rows, columns))
}

/// Whether all columns can be unpacked.
pub(super) fn check_compression(file: &ParquetMetaData) -> Result<(), String> {
    let mut chunks = file.row_groups().iter().flat_map(|group| group.columns());
    let is_other = |how| matches!(how, Compression::BROTLI(_) | Compression::LZO);
    match chunks.find(|column| is_other(column.compression())) {
        None => Ok(()),
        Some(column) => Err(format!(
            "its column \"{}\" is compressed with Brotli or LZO: write it with Zstandard, LZ4, gzip or Snappy",
            column.column_path().string().escape_default()
        )),
    }
}

/// A column that has been read.
struct Filled {
    name: String,
    kind: Kind,
    rows: u64,
    /// The values, or the bytes of texts.
    values: Vec<u8>,
    /// Of texts.
    ends: Vec<u8>,
    /// `None`: every row has a value, by the schema.
    present: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Fixed(Element),
    Bytes { text: bool },
}

impl Filled {
    fn of(column: &ColumnDescriptor) -> Result<Self, String> {
        let name = column.name().to_owned();
        let refuse = |what: &str| {
            let name = name.escape_default();
            Err(format!("its column \"{name}\" {what}"))
        };
        if column.max_rep_level() > 0 || column.path().parts().len() != 1 {
            return refuse("has lists or fields: write a table of plain columns");
        }
        let converted = column.converted_type();
        let kind = match column.physical_type() {
            _ if converted == ConvertedType::DECIMAL => {
                return refuse("has decimals: write it as INT64 or DOUBLE");
            }
            Physical::BOOLEAN => Kind::Fixed(Element::Bool),
            Physical::INT32 if converted == ConvertedType::UINT_32 => Kind::Fixed(Element::U32),
            Physical::INT32 => Kind::Fixed(Element::I32),
            Physical::INT64 if converted == ConvertedType::UINT_64 => Kind::Fixed(Element::U64),
            Physical::INT64 => Kind::Fixed(Element::I64),
            Physical::FLOAT => Kind::Fixed(Element::F32),
            Physical::DOUBLE => Kind::Fixed(Element::F64),
            Physical::BYTE_ARRAY => Kind::Bytes {
                text: matches!(
                    converted,
                    ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
                ),
            },
            Physical::INT96 => return refuse("has times of 96 bits: write them as INT64"),
            Physical::FIXED_LEN_BYTE_ARRAY => {
                return refuse("has byte strings of a fixed length: write them as BYTE_ARRAY");
            }
        };
        Ok(Self {
            present: (column.max_def_level() > 0).then(Vec::new),
            name,
            kind,
            rows: 0,
            values: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// What it takes in the result.
    fn len(&self) -> u64 {
        let present = self.present.as_ref().map_or(0, Vec::len);
        aligned(self.values.len()) + aligned(self.ends.len()) + aligned(present)
    }

    /// Reads its part of a group of rows.
    fn fill(
        &mut self,
        reader: ColumnReader,
        room: u64,
        request: &DecodeRequest,
    ) -> Result<(), String> {
        let full = |column: &Self| match column.len() > room {
            true => Err(too_long(request.bytes_max + (column.len() - room), request)),
            false => Ok(()),
        };
        match reader {
            ColumnReader::BoolColumnReader(reader) => {
                self.read(reader, full, |value, into| into.push(u8::from(*value)))
            }
            ColumnReader::Int32ColumnReader(reader) => {
                self.read(reader, full, |value, into| into.extend(value.to_le_bytes()))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                self.read(reader, full, |value, into| into.extend(value.to_le_bytes()))
            }
            ColumnReader::FloatColumnReader(reader) => {
                self.read(reader, full, |value, into| into.extend(value.to_le_bytes()))
            }
            ColumnReader::DoubleColumnReader(reader) => {
                self.read(reader, full, |value, into| into.extend(value.to_le_bytes()))
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                self.read(reader, full, |value: &ByteArray, into| {
                    into.extend_from_slice(value.data());
                })
            }
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
                Err("its schema and its columns differ".to_owned())
            }
        }
    }

    fn read<T: DataType>(
        &mut self,
        mut reader: ColumnReaderImpl<T>,
        full: impl Fn(&Self) -> Result<(), String>,
        write: impl Fn(&T::T, &mut Vec<u8>),
    ) -> Result<(), String> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        loop {
            values.clear();
            levels.clear();
            let wants_levels = self.present.is_some().then_some(&mut levels);
            let read = reader.read_records(BATCH_ROWS, wants_levels, None, &mut values);
            let (rows, _, _) = read.map_err(|error| error.to_string())?;
            if rows == 0 {
                return Ok(());
            }
            let mut values = values.iter();
            for row in 0..rows {
                let is_there = levels.get(row).is_none_or(|level| *level > 0);
                let value = if is_there { values.next() } else { None };
                self.push(value, &write)?;
            }
            self.rows += rows as u64;
            full(self)?;
        }
    }

    fn push<T>(
        &mut self,
        value: Option<&T>,
        write: &impl Fn(&T, &mut Vec<u8>),
    ) -> Result<(), String> {
        let begun = self.values.len();
        if let Some(value) = value {
            write(value, &mut self.values);
        }
        match self.kind {
            Kind::Fixed(element) => {
                let end = begun + usize::try_from(element.bytes()).unwrap_or(0);
                self.values.resize(end, 0);
            }
            Kind::Bytes { text } => {
                let new = self.values.get(begun..).unwrap_or_default();
                if text && std::str::from_utf8(new).is_err() {
                    let name = self.name.escape_default();
                    return Err(format!("a text of its column \"{name}\" is not UTF-8"));
                }
                let end = self.values.len() as u64;
                self.ends.extend(end.to_le_bytes());
            }
        }
        if let Some(present) = &mut self.present {
            present.push(u8::from(value.is_some()));
        } else if value.is_none() {
            return Err("a value is missing in a column that must have all".to_owned());
        }
        Ok(())
    }
}

/// Puts the columns one after the other.
fn lay_out(rows: u64, filled: Vec<Filled>) -> Made {
    let (mut parts, mut columns, mut end) = (Vec::new(), Vec::new(), 0);
    let mut put = |bytes: Vec<u8>| {
        let at = end;
        end += aligned(bytes.len());
        parts.push(bytes);
        at
    };
    for column in filled {
        let len = column.values.len() as u64;
        let at = put(column.values);
        let values = match column.kind {
            Kind::Fixed(element) => ColumnValues::Fixed { element, at },
            Kind::Bytes { text } => ColumnValues::Bytes {
                ends: put(column.ends),
                at,
                len,
                text,
            },
        };
        let present = column.present.filter(|present| present.contains(&0));
        columns.push(Column {
            name: column.name,
            values,
            present: present.map(&mut put),
        });
    }
    Made {
        layout: Layout::Table { rows, columns },
        parts,
    }
}

/// Rows that are read at once.
const BATCH_ROWS: usize = 8192;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::basic::{GzipLevel, ZstdLevel};
    use parquet::data_type::{ByteArrayType, DoubleType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use pilot_model::inputs::{Decoder, Form};

    use super::*;

    fn request(bytes_max: u64) -> DecodeRequest {
        DecodeRequest {
            by: Decoder::Parquet,
            form: Form::Memory,
            len: None,
            bytes_max,
            memory_bytes: 1 << 30,
        }
    }

    /// Two groups of rows, each with the numbers 1 and 2, a price for the first alone, and two cities.
    fn file(schema: &str) -> Vec<u8> {
        packed(schema, Compression::UNCOMPRESSED)
    }

    fn packed(schema: &str, how: Compression) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = WriterProperties::builder().set_compression(how).build();
        let properties = Arc::new(properties);
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, properties).unwrap();
        for _ in 0..2 {
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let numbers = column.typed::<Int64Type>();
            numbers.write_batch(&[1, 2], None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let prices = column.typed::<DoubleType>();
            prices.write_batch(&[0.5], Some(&[1, 0]), None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let cities = [ByteArray::from("Köln"), ByteArray::from("Rom")];
            let levels = Some([1, 1].as_slice());
            column
                .typed::<ByteArrayType>()
                .write_batch(&cities, levels, None)
                .unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
        file
    }

    const SCHEMA: &str =
        "message m { required int64 n; optional double price; optional binary city (UTF8); }";

    fn memory(made: &Made) -> Vec<u8> {
        let mut memory = Vec::new();
        for part in &made.parts {
            memory.resize(memory.len().next_multiple_of(8), 0);
            memory.extend(part);
        }
        memory
    }

    #[test]
    fn a_file_may_be_compressed() {
        let plain = memory(&decode(&request(1 << 20), file(SCHEMA)).unwrap());
        for how in [
            Compression::SNAPPY,
            Compression::GZIP(GzipLevel::default()),
            Compression::ZSTD(ZstdLevel::default()),
            Compression::LZ4_RAW,
            Compression::LZ4,
        ] {
            let made = decode(&request(1 << 20), packed(SCHEMA, how)).unwrap();
            assert_eq!(memory(&made), plain, "{how}");
        }
    }

    #[test]
    fn columns_lie_one_after_the_other_with_what_is_missing() {
        let made = decode(&request(1 << 20), file(SCHEMA)).unwrap();
        let memory = memory(&made);
        assert_eq!(memory.len() as u64, made.len());
        made.layout.check(made.len()).unwrap();
        let Layout::Table { rows: 4, columns } = &made.layout else {
            panic!("{:?}", made.layout);
        };
        let numbers = |at: u64| -> Vec<[u8; 8]> {
            let at = usize::try_from(at).unwrap();
            let numbers = memory[at..at + 32].chunks(8);
            numbers.map(|number| number.try_into().unwrap()).collect()
        };
        let ColumnValues::Fixed {
            element: Element::I64,
            at,
        } = columns[0].values
        else {
            panic!("{columns:?}");
        };
        assert_eq!(numbers(at), [1, 2, 1, 2].map(i64::to_le_bytes));
        assert_eq!(columns[0].present, None);
        let ColumnValues::Fixed {
            element: Element::F64,
            at,
        } = columns[1].values
        else {
            panic!("{columns:?}");
        };
        assert_eq!(numbers(at), [0.5, 0.0, 0.5, 0.0].map(f64::to_le_bytes));
        let present = usize::try_from(columns[1].present.unwrap()).unwrap();
        assert_eq!(memory[present..present + 4], [1, 0, 1, 0]);
        let ColumnValues::Bytes {
            ends,
            at,
            len: 16,
            text: true,
        } = columns[2].values
        else {
            panic!("{columns:?}");
        };
        assert_eq!(numbers(ends), [5_u64, 8, 13, 16].map(u64::to_le_bytes));
        let at = usize::try_from(at).unwrap();
        assert_eq!(&memory[at..at + 16], "KölnRomKölnRom".as_bytes());
        assert_eq!(columns[2].present, None, "all have one");
    }

    #[test]
    fn what_is_no_plain_table_is_refused_in_words() {
        let decimals = SCHEMA.replace("int64 n;", "int64 n (DECIMAL(18,2));");
        let whole = file(SCHEMA);
        let cut = whole[..whole.len() - 9].to_vec();
        for (bytes, bytes_max, said) in [
            (b"plain text".to_vec(), 1 << 20, ""),
            (cut, 1 << 20, ""),
            (file(&decimals), 1 << 20, "its column \"n\" has decimals"),
            (whole, 100, "see data.input_mb"),
        ] {
            let found = decode(&request(bytes_max), bytes).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }

    /// Any damage is an error, or a table that fits. The library panics at some, which is an answer of the process, too.
    #[test]
    fn a_damaged_file_is_an_error_or_a_table_that_fits() {
        std::panic::set_hook(Box::new(|_| {}));
        let whole = file(SCHEMA);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let made = std::panic::catch_unwind(|| decode(&request(1 << 20), bytes));
            if let Ok(Ok(made)) = made {
                made.layout.check(made.len()).unwrap();
            }
        }
        let _ = std::panic::take_hook();
    }
}
