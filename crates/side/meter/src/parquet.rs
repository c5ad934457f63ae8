//! Records and traces as Parquet. Both ways pass through the CSV form, a piece at a time: what a Parquet file says, and what is malformed
//! in it, is decided in `trace::columns` alone, so the same rows cost the same in both forms.
//!
//! A file is written in groups of [`GROUP_ROWS`] rows and read page by page. Only the columns that some trace knows are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, LogicalType, TimeUnit, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnDescriptor;

use crate::trace::Columns;

mod arrow;

/// Whether a file begins as a Parquet file does. It is at its beginning afterwards.
///
/// # Errors
/// It cannot be read.
pub fn is_parquet(file: &mut File) -> io::Result<bool> {
    let mut magic = Vec::new();
    Read::take(&mut *file, 4).read_to_end(&mut magic)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(magic == b"PAR1")
}

/// Writes records (`pilot cost export`, CSV with a header) as a Parquet file, and returns how many there were.
///
/// # Errors
/// The records cannot be read, are not such records, or the file cannot be written.
pub fn write(records: impl Read, file: impl Write + Send) -> io::Result<u64> {
    let mut records = BufReader::new(records);
    let mut line = String::new();
    take_line(&mut records, &mut line)?;
    let names: Vec<String> = line.trim_end().split(',').map(str::to_owned).collect();
    let plain = |name: &String| {
        let of_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        !name.is_empty() && name.bytes().all(of_name)
    };
    if !names.iter().all(plain) {
        return Err(invalid("the records have no header".to_owned()));
    }
    let fields = names.iter().map(|name| {
        let kind = if TEXTS.contains(&name.as_str()) {
            format!("required binary {name} (UTF8);")
        } else {
            format!("optional int64 {name};")
        };
        kind + " "
    });
    let schema = format!("message usage {{ {}}}", fields.collect::<String>());
    let schema = parse_message_type(&schema).map_err(other)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).map_err(other)?;
    let mut columns: Vec<Column> = names.iter().map(|name| Column::of(name)).collect();
    let mut rows = 0;
    loop {
        let length = take_line(&mut records, &mut line)?;
        if length > 0 {
            rows += 1;
            push(&mut columns, &names, line.trim_end(), rows)?;
        }
        if (length == 0 && rows % GROUP_ROWS > 0) || (length > 0 && rows % GROUP_ROWS == 0) {
            let mut group = writer.next_row_group().map_err(other)?;
            for column in &mut columns {
                let mut chunk = group.next_column().map_err(other)?.ok_or_else(|| {
                    invalid("the file has fewer columns than its schema".to_owned())
                })?;
                column.write(chunk.untyped())?;
                chunk.close().map_err(other)?;
            }
            group.close().map_err(other)?;
        }
        if length == 0 {
            writer.close().map_err(other)?;
            return Ok(rows);
        }
    }
}

/// Adds a row to the columns.
fn push(columns: &mut [Column], names: &[String], row: &str, number: u64) -> io::Result<()> {
    let mut fields = row.split(',');
    for (column, name) in columns.iter_mut().zip(names) {
        let field = fields.next().unwrap_or_default();
        column
            .push(field)
            .map_err(|problem| invalid(format!("record {number}: {name} = '{field}' {problem}")))?;
    }
    match fields.next() {
        None => Ok(()),
        Some(_) => Err(invalid(format!(
            "record {number} has more than {} fields",
            names.len()
        ))),
    }
}

/// The values of a column in one group of rows.
enum Column {
    Text(Vec<ByteArray>),
    /// The values, and for each row whether there is one.
    Number(Vec<i64>, Vec<i16>),
}

impl Column {
    fn of(name: &str) -> Self {
        if TEXTS.contains(&name) {
            Self::Text(Vec::new())
        } else {
            Self::Number(Vec::new(), Vec::new())
        }
    }

    fn push(&mut self, field: &str) -> Result<(), &'static str> {
        match self {
            Self::Text(values) => values.push(ByteArray::from(field)),
            Self::Number(_, there) if field.is_empty() => there.push(0),
            Self::Number(values, there) => {
                values.push(field.parse().map_err(|_| "is not a number")?);
                there.push(1);
            }
        }
        Ok(())
    }

    /// Writes what has come together, and begins anew.
    fn write(&mut self, writer: &mut ColumnWriter<'_>) -> io::Result<()> {
        match (&mut *self, writer) {
            (Self::Text(values), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                writer.write_batch(values, None, None).map_err(other)?;
                values.clear();
            }
            (Self::Number(values, there), ColumnWriter::Int64ColumnWriter(writer)) => {
                writer
                    .write_batch(values, Some(there), None)
                    .map_err(other)?;
                values.clear();
                there.clear();
            }
            _ => return Err(invalid("a column is not of its schema's type".to_owned())),
        }
        Ok(())
    }
}

/// A line, or nothing at the end.
fn take_line(records: &mut impl BufRead, line: &mut String) -> io::Result<usize> {
    line.clear();
    Read::take(records, LINE_BYTES_MAX).read_line(line)
}

/// The rows of a Parquet file as CSV: a header with those of its columns that some trace has, and then the rows.
pub struct Rows {
    file: SerializedFileReader<File>,
    /// The columns that are read: their places, their names, and what their numbers mean.
    columns: Vec<(usize, String, Meaning)>,
    group: usize,
    readers: Vec<Values>,
    piece: Vec<u8>,
    at: usize,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows")
            .field("columns", &self.columns)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Rows {
    /// Opens a Parquet file.
    ///
    /// # Errors
    /// It is damaged, or a column that is needed has a type that is no number and no text.
    pub fn open(file: File) -> io::Result<Self> {
        guarded(|| Self::open_unguarded(file))
    }

    fn open_unguarded(file: File) -> io::Result<Self> {
        let file = SerializedFileReader::new(file).map_err(other)?;
        for column in file
            .metadata()
            .row_groups()
            .iter()
            .flat_map(|group| group.columns())
        {
            let begin = column
                .dictionary_page_offset()
                .unwrap_or(column.data_page_offset());
            if begin < 0 || column.compressed_size() < 0 {
                let name = column.column_path().string();
                return Err(invalid(format!(
                    "it is damaged: the place of column {name} is negative"
                )));
            }
            if let Compression::BROTLI(_) | Compression::LZO = column.compression() {
                let name = column.column_path().string();
                return Err(invalid(format!(
                    "column {name} is compressed with Brotli or LZO: write it with Zstandard, LZ4, gzip or Snappy"
                )));
            }
        }
        let metadata = file.metadata().file_metadata();
        let schema = metadata.schema_descr_ptr();
        let top_level = || {
            let columns = schema.columns().iter().enumerate();
            let is_plain = |name: &str| !name.contains([',', '"', '\n', '\r']);
            columns.filter(move |(_, column)| {
                column.path().parts().len() == 1 && is_plain(column.name())
            })
        };
        let names: Vec<&str> = top_level().map(|(_, column)| column.name()).collect();
        let read = Columns::read_of(&names);
        let pairs = metadata.key_value_metadata().into_iter().flatten();
        let durations: Vec<String> = pairs
            .filter(|pair| pair.key == "ARROW:schema")
            .flat_map(|pair| arrow::durations(pair.value.as_deref().unwrap_or_default()))
            .collect();
        let mut columns: Vec<(usize, String, Meaning)> = Vec::new();
        for (at, column) in top_level() {
            let name = column.name();
            if !read.contains(&name) {
                continue;
            }
            if columns.iter().any(|(_, other, _)| other == name) {
                return Err(invalid(format!("it has several columns {name}")));
            }
            if column.max_rep_level() > 0 {
                return Err(invalid(format!("column {name} has lists")));
            }
            if durations.iter().any(|duration| duration == name) {
                return Err(Meaning::refused(name, "DURATION"));
            }
            columns.push((at, name.to_owned(), Meaning::of(column)?));
        }
        let header: Vec<&str> = columns.iter().map(|(_, name, _)| name.as_str()).collect();
        let mut piece = header.join(",").into_bytes();
        piece.push(b'\n');
        Ok(Self {
            file,
            columns,
            group: 0,
            readers: Vec::new(),
            piece,
            at: 0,
        })
    }

    /// Makes the next piece. Returns whether there is one.
    fn next_piece(&mut self) -> io::Result<bool> {
        self.piece.clear();
        self.at = 0;
        if self.columns.is_empty() {
            return Ok(false);
        }
        loop {
            let mut rows = None;
            for values in &mut self.readers {
                let read = values.fill(BATCH_ROWS)?;
                if *rows.get_or_insert(read) != read {
                    return Err(invalid(format!(
                        "its columns have different numbers of rows in row group {}",
                        self.group
                    )));
                }
            }
            if let Some(rows @ 1..) = rows {
                self.write_rows(rows);
                return Ok(true);
            }
            if self.group >= self.file.num_row_groups() {
                return Ok(false);
            }
            let group = self.file.get_row_group(self.group).map_err(other)?;
            self.group += 1;
            self.readers = self
                .columns
                .iter()
                .map(|(at, name, meaning)| {
                    let reader = group.get_column_reader(*at).map_err(other)?;
                    Values::of(reader, name, *meaning)
                })
                .collect::<io::Result<_>>()?;
        }
    }

    fn write_rows(&mut self, rows: usize) {
        for row in 0..rows {
            for (at, values) in self.readers.iter().enumerate() {
                if at > 0 {
                    self.piece.push(b',');
                }
                self.piece.extend_from_slice(values.field(row));
            }
            self.piece.push(b'\n');
        }
    }
}

impl Read for Rows {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.piece.len() && !guarded(|| self.next_piece())? {
            return Ok(0);
        }
        let length = self.piece.get(self.at..).unwrap_or_default().read(room)?;
        self.at += length;
        Ok(length)
    }
}

/// What the whole numbers of a column mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Itself,
    /// There is no sign.
    Unsigned,
    /// So many decimal places.
    Decimal(u32),
    /// A date in so many nanoseconds, which is read in so many.
    Date {
        from_ns: u64,
        to_ns: u64,
    },
}

impl Meaning {
    /// # Errors
    /// The column has a type that is no number of its unit.
    fn of(column: &ColumnDescriptor) -> io::Result<Self> {
        let name = column.name();
        let date = |from_ns| match Columns::unit_of_dates(name) {
            Some(to_ns) => Ok(Self::Date { from_ns, to_ns }),
            None => Err(Self::refused(name, "TIMESTAMP")),
        };
        match (column.logical_type_ref(), column.converted_type()) {
            (Some(LogicalType::Timestamp(of)), _) => match of.unit {
                TimeUnit::MILLIS => date(1_000_000),
                TimeUnit::MICROS => date(1_000),
                TimeUnit::NANOS => date(1),
            },
            (None, ConvertedType::TIMESTAMP_MILLIS) => date(1_000_000),
            (None, ConvertedType::TIMESTAMP_MICROS) => date(1_000),
            (Some(LogicalType::Time(_)), _)
            | (None, ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => {
                Err(Self::refused(name, "TIME"))
            }
            (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => {
                Err(Self::refused(name, "DATE"))
            }
            (Some(LogicalType::Decimal(_)), _) | (None, ConvertedType::DECIMAL) => {
                match (column.physical_type(), u32::try_from(column.type_scale())) {
                    (Type::INT32 | Type::INT64, Ok(scale @ 0..=18)) => Ok(Self::Decimal(scale)),
                    _ => Err(Self::refused(name, "DECIMAL")),
                }
            }
            (Some(LogicalType::Integer(of)), _) if !of.is_signed => Ok(Self::Unsigned),
            (
                None,
                ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64,
            ) => Ok(Self::Unsigned),
            _ => Ok(Self::Itself),
        }
    }

    fn refused(name: &str, kind: &str) -> io::Error {
        invalid(format!(
            "column {name} has the type {kind}: write it as INT64 or DOUBLE, in the unit of the trace"
        ))
    }

    /// Writes a number. `unsigned`: the same bits without a sign.
    fn write(self, value: i64, unsigned: u64, text: &mut Vec<u8>) {
        let (units, unit) = match self {
            Self::Itself => {
                // Writing to a vector cannot fail.
                let _ = write!(text, "{value}");
                return;
            }
            Self::Unsigned => (i128::from(unsigned), 1),
            Self::Decimal(scale) => (i128::from(value), 10_u128.pow(scale)),
            Self::Date { from_ns, to_ns } => {
                (i128::from(value) * i128::from(from_ns), u128::from(to_ns))
            }
        };
        let sign = if units < 0 { "-" } else { "" };
        let (whole, part) = (units.unsigned_abs() / unit, units.unsigned_abs() % unit);
        // Units are powers of ten.
        let _ = write!(text, "{sign}{whole}");
        if part > 0 {
            let places = usize::try_from(unit.ilog10()).unwrap_or(0);
            let _ = write!(text, ".{part:0places$}");
        }
    }
}

/// A column of a row group, and the text of some of its rows.
struct Values {
    reader: Typed,
    meaning: Meaning,
    text: Vec<u8>,
    /// Where the field of each row ends.
    ends: Vec<usize>,
}

enum Typed {
    Int32(Batch<parquet::data_type::Int32Type>),
    Int64(Batch<parquet::data_type::Int64Type>),
    Float(Batch<parquet::data_type::FloatType>),
    Double(Batch<parquet::data_type::DoubleType>),
    Text(Batch<parquet::data_type::ByteArrayType>),
}

struct Batch<T: DataType> {
    reader: ColumnReaderImpl<T>,
    values: Vec<T::T>,
    levels: Vec<i16>,
}

impl Values {
    fn of(reader: ColumnReader, name: &str, meaning: Meaning) -> io::Result<Self> {
        let reader = match reader {
            ColumnReader::Int32ColumnReader(reader) => Typed::Int32(Batch::of(reader)),
            ColumnReader::Int64ColumnReader(reader) => Typed::Int64(Batch::of(reader)),
            ColumnReader::FloatColumnReader(reader) => Typed::Float(Batch::of(reader)),
            ColumnReader::DoubleColumnReader(reader) => Typed::Double(Batch::of(reader)),
            ColumnReader::ByteArrayColumnReader(reader) => Typed::Text(Batch::of(reader)),
            _ => {
                return Err(invalid(format!(
                    "column {name} has a type that is neither a number nor a text: write it as INT64, DOUBLE or a string"
                )));
            }
        };
        Ok(Self {
            reader,
            meaning,
            text: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// Reads up to so many rows, and returns how many.
    fn fill(&mut self, rows_max: usize) -> io::Result<usize> {
        let meaning = self.meaning;
        let Self {
            reader, text, ends, ..
        } = self;
        text.clear();
        ends.clear();
        // Writing to a vector cannot fail.
        match reader {
            Typed::Int32(batch) => batch.fill(rows_max, ends, text, |value, text| {
                let unsigned = value.cast_unsigned();
                meaning.write(i64::from(*value), u64::from(unsigned), text);
            }),
            Typed::Int64(batch) => batch.fill(rows_max, ends, text, |value, text| {
                meaning.write(*value, value.cast_unsigned(), text);
            }),
            // The shortest decimal number that is this value, as other tools write it in CSV.
            Typed::Float(batch) => batch.fill(rows_max, ends, text, |value, text| {
                let _ = write!(text, "{value}");
            }),
            Typed::Double(batch) => batch.fill(rows_max, ends, text, |value, text| {
                let _ = write!(text, "{value}");
            }),
            Typed::Text(batch) => batch.fill(rows_max, ends, text, |value, text| {
                // A field ends at none of its own characters.
                let plain = |byte: &u8| match byte {
                    b',' | b'\n' | b'\r' | b'"' => b'?',
                    byte => *byte,
                };
                text.extend(value.data().iter().map(plain));
            }),
        }
    }

    fn field(&self, row: usize) -> &[u8] {
        let from = row
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied()
            .unwrap_or(0);
        let to = self.ends.get(row).copied().unwrap_or(from);
        self.text.get(from..to).unwrap_or_default()
    }
}

impl<T: DataType> Batch<T> {
    fn of(reader: ColumnReaderImpl<T>) -> Self {
        Self {
            reader,
            values: Vec::new(),
            levels: Vec::new(),
        }
    }

    fn fill(
        &mut self,
        rows_max: usize,
        ends: &mut Vec<usize>,
        text: &mut Vec<u8>,
        write: impl Fn(&T::T, &mut Vec<u8>),
    ) -> io::Result<usize> {
        self.values.clear();
        self.levels.clear();
        let (rows, _, _) = self
            .reader
            .read_records(rows_max, Some(&mut self.levels), None, &mut self.values)
            .map_err(other)?;
        let mut values = self.values.iter();
        for row in 0..rows {
            // A column that is required has no levels.
            if self.levels.get(row).is_none_or(|level| *level > 0)
                && let Some(value) = values.next()
            {
                write(value, text);
            }
            ends.push(text.len());
        }
        Ok(rows)
    }
}

/// The library panics at some damaged files, and says so on standard error. For us that is an error of the file. After it, nothing more
/// may be read.
fn guarded<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let read = std::panic::AssertUnwindSafe(read);
    std::panic::catch_unwind(read)
        .unwrap_or_else(|_| Err(invalid("it is damaged: it cannot be decoded".to_owned())))
}

fn other(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// The columns of records that are no numbers.
const TEXTS: [&str; 5] = ["function", "start", "outcome", "worker", "reason"];
/// Rows of a group that is written.
const GROUP_ROWS: u64 = 1 << 16;
/// Rows that are read at once.
const BATCH_ROWS: usize = 8192;
/// Longest record.
const LINE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests;
