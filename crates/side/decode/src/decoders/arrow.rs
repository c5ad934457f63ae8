//! Tables as files in Arrow's IPC format, which readers of every language map or read in place. They are made of Parquet, or of
//! Arrow's file and stream formats. All of the input is read and checked here, and parts that are compressed are not compressed in
//! the result.

use std::io::{self, Cursor, Write};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Schema};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use pilot_model::inputs::decoded::{DecodeRequest, Layout};

use super::parquet as parquet_columns;
use crate::{Made, too_long};

/// A table of Parquet. The types are those of its own schema, so no column is a dictionary, which may not change in a file.
pub(super) fn of_parquet(request: &DecodeRequest, bytes: Vec<u8>) -> Result<Made, String> {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder =
        ParquetRecordBatchReaderBuilder::try_new_with_options(Bytes::from(bytes), options)
            .map_err(|error| error.to_string())?;
    parquet_columns::check_compression(builder.metadata())?;
    let reader = builder.with_batch_size(BATCH_ROWS).build();
    let batches = reader.map_err(|error| error.to_string())?;
    let schema = batches.schema();
    written(request, &schema, batches)
}

/// A file or a stream of Arrow.
pub(super) fn decode(request: &DecodeRequest, bytes: Vec<u8>) -> Result<Made, String> {
    let is_file = bytes.starts_with(FILE_MAGIC);
    if is_file {
        check_footer(&bytes)?;
    }
    let input = Cursor::new(bytes);
    if is_file {
        let batches = FileReader::try_new(input, None).map_err(|error| error.to_string())?;
        let schema = batches.schema();
        written(request, &schema, batches)
    } else {
        let batches = StreamReader::try_new(input, None).map_err(|error| error.to_string())?;
        let schema = batches.schema();
        written(request, &schema, batches)
    }
}

/// The library takes memory for a footer as long as the file says.
fn check_footer(bytes: &[u8]) -> Result<(), String> {
    let Some((rest, [a, b, c, d])) = bytes
        .strip_suffix(FILE_MAGIC)
        .and_then(|rest| rest.split_last_chunk::<4>())
    else {
        return Err("it has no footer: its end is missing".to_owned());
    };
    let len = i32::from_le_bytes([*a, *b, *c, *d]);
    match usize::try_from(len) {
        Ok(footer) if footer <= rest.len() => Ok(()),
        _ => Err(format!(
            "its footer would have {len} bytes, and there are {} before its length",
            rest.len()
        )),
    }
}

fn written(
    request: &DecodeRequest,
    schema: &Schema,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
) -> Result<Made, String> {
    let mut file = Limited {
        bytes: Vec::new(),
        bytes_max: request.bytes_max,
        wanted: None,
    };
    let mut rows = 0_u64;
    let end = FileWriter::try_new(&mut file, schema).and_then(|mut writer| {
        for batch in batches {
            let batch = batch?;
            // Columns of nulls have any length without a byte.
            rows = rows.saturating_add(batch.num_rows() as u64);
            writer.write(&batch)?;
        }
        writer.finish()
    });
    match (file.wanted, end) {
        (Some(wanted), _) => Err(too_long(wanted, request)),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(())) => Ok(Made {
            layout: Layout::Arrow {
                rows,
                columns: schema.fields().len() as u64,
            },
            parts: vec![file.bytes],
        }),
    }
}

/// A file in memory that does not become too long.
struct Limited {
    bytes: Vec<u8>,
    bytes_max: u64,
    /// How long it would have become.
    wanted: Option<u64>,
}

impl Write for Limited {
    fn write(&mut self, some: &[u8]) -> io::Result<usize> {
        let len = self.bytes.len() as u64 + some.len() as u64;
        if len > self.bytes_max {
            self.wanted = Some(len);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.try_reserve(some.len())?;
        self.bytes.extend_from_slice(some);
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a file begins. A stream begins with a length.
const FILE_MAGIC: &[u8] = b"ARROW1";
/// Rows of one part of the file.
const BATCH_ROWS: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, Int32Array, StringArray};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
    use parquet::arrow::ArrowWriter;
    use pilot_model::inputs::{Decoder, Form};

    use super::*;

    fn request(by: Decoder, bytes_max: u64) -> DecodeRequest {
        DecodeRequest {
            by,
            form: Form::File,
            len: None,
            bytes_max,
            memory_bytes: 1 << 30,
        }
    }

    fn table() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let prices: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.5), None, Some(-1.0)]));
        let cities: ArrayRef = Arc::new(StringArray::from(vec![Some("Köln"), Some(""), None]));
        RecordBatch::try_from_iter([("n", numbers), ("price", prices), ("city", cities)]).unwrap()
    }

    fn file(options: IpcWriteOptions) -> Vec<u8> {
        let table = table();
        let mut file = Vec::new();
        let mut writer =
            FileWriter::try_new_with_options(&mut file, &table.schema(), options).unwrap();
        writer.write(&table).unwrap();
        writer.finish().unwrap();
        drop(writer);
        file
    }

    fn stream() -> Vec<u8> {
        let table = table();
        let mut writer = StreamWriter::try_new(Vec::new(), &table.schema()).unwrap();
        writer.write(&table).unwrap();
        writer.into_inner().unwrap()
    }

    fn parquet() -> Vec<u8> {
        let table = table();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, table.schema(), None).unwrap();
        writer.write(&table).unwrap();
        writer.close().unwrap();
        file
    }

    #[test]
    fn every_way_of_storing_a_table_becomes_the_same_file() {
        let compressed = |how| {
            let options = IpcWriteOptions::default().try_with_compression(Some(how));
            file(options.unwrap())
        };
        for (by, bytes) in [
            (Decoder::Arrow, file(IpcWriteOptions::default())),
            (Decoder::Arrow, compressed(CompressionType::LZ4_FRAME)),
            (Decoder::Arrow, compressed(CompressionType::ZSTD)),
            (Decoder::Arrow, stream()),
            (Decoder::Parquet, parquet()),
        ] {
            let request = request(by, 1 << 20);
            let made = match by {
                Decoder::Parquet => of_parquet(&request, bytes),
                _ => decode(&request, bytes),
            }
            .unwrap();
            let (rows, columns) = (3, 3);
            assert_eq!(made.layout, Layout::Arrow { rows, columns });
            let mut reader = FileReader::try_new(Cursor::new(made.parts[0].clone()), None).unwrap();
            assert_eq!(reader.next().unwrap().unwrap(), table());
            assert!(reader.next().is_none());
        }
    }

    fn with_footer_len(file: &[u8], len: i32) -> Vec<u8> {
        let mut bytes = file[..file.len() - 10].to_vec();
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(FILE_MAGIC);
        bytes
    }

    #[test]
    fn what_is_no_table_or_too_large_is_refused_in_words() {
        let whole = file(IpcWriteOptions::default());
        let cut = whole[..whole.len() - 9].to_vec();
        for (bytes, bytes_max, said) in [
            (b"plain text".to_vec(), 1 << 20, ""),
            (Vec::new(), 1 << 20, ""),
            (cut, 1 << 20, "footer"),
            (
                with_footer_len(&whole, i32::MAX),
                1 << 20,
                "its footer would have 2147483647 bytes",
            ),
            (
                with_footer_len(&whole, -1),
                1 << 20,
                "its footer would have -1 bytes",
            ),
            (whole, 100, "see data.input_mb"),
        ] {
            let found = decode(&request(Decoder::Arrow, bytes_max), bytes).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
        let found = of_parquet(&request(Decoder::Parquet, 100), parquet()).unwrap_err();
        assert!(found.contains("see data.input_mb"), "{found}");
    }
}
