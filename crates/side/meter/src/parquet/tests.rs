//! What is written is read, and other tools' files are read.

use std::fmt::Write as _;

use proptest::prelude::*;

use parquet::file::metadata::KeyValue;

use super::*;
use crate::platform::Size;
use crate::trace::{Strictness, TraceOptions, TraceReport, bill};
use crate::{Match, Table};

const HEADER: &str = "unix_ms,function,version,start,outcome,memory_mb,cpu_milli,execution_ns,init_ns,cpu_user_ns,cpu_system_ns,memory_used_bytes,bytes_in,bytes_out,admitted_ns";

fn records(rows: u64) -> String {
    let mut text = format!("{HEADER}\n");
    for row in 0..rows {
        let init = if row % 7 == 0 { "5000000" } else { "0" };
        let cpu = if row % 5 == 0 { "," } else { "300000,40000" };
        let _ = writeln!(
            text,
            "{},resize,1,warm,ok,256,500,{},{init},{cpu},{},10,20,",
            1_700_000_000_000 + row,
            1_000_000 + row * 997 % 90_000_000,
            (20 << 20) + row
        );
    }
    text
}

fn packed(csv: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    let rows = write(csv.as_bytes(), &mut file).unwrap();
    assert_eq!(rows + 1, csv.lines().count() as u64);
    file.seek(SeekFrom::Start(0)).unwrap();
    assert!(is_parquet(&mut file).unwrap());
    file
}

fn billed(source: impl Read + Send, strictness: Strictness) -> TraceReport {
    let options = TraceOptions {
        strictness,
        matched: Match::MemoryAndCpu,
        default_size: Size::default(),
        threads: None,
    };
    bill(source, &Table::shipped().unwrap(), &options).unwrap()
}

#[test]
fn records_cost_the_same_as_parquet_and_as_csv() {
    // More than one group of rows, and a rest.
    let csv = records(GROUP_ROWS + 4321);
    let of_csv = billed(csv.as_bytes(), Strictness::Refuse);
    let of_parquet = billed(Rows::open(packed(&csv)).unwrap(), Strictness::Refuse);
    assert_eq!(of_parquet.report.used.calls, GROUP_ROWS + 4321);
    assert_eq!(
        serde_json::to_value(&of_parquet.report).unwrap(),
        serde_json::to_value(&of_csv.report).unwrap()
    );
}

#[test]
fn no_record_is_a_file_too() {
    let empty = billed(Rows::open(packed(&records(0))).unwrap(), Strictness::Refuse);
    assert_eq!(empty.report.used.calls, 0);
}

#[test]
fn what_is_no_record_is_refused_when_it_is_written() {
    let refused = |csv: &str| write(csv.as_bytes(), io::sink()).unwrap_err().to_string();
    assert!(refused("").contains("no header"));
    assert!(refused("a b\n").contains("no header"));
    assert!(refused("unix_ms\nx\n").contains("record 1: unix_ms = 'x' is not a number"));
    assert!(refused("unix_ms\n1,2\n").contains("record 1 has more than 1 fields"));
}

/// What pyarrow keeps of a table with the columns end_timestamp (a double), duration (a duration in microseconds) and other (int64).
pub(super) const ARROW_SCHEMA: &str = "//////AAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAMAAACEAAAAQAAAAAQAAACY////AAABAhAAAAAgAAAABAAAAAAAAAAFAAAAb3RoZXIAAAAIAAwACAAHAAgAAAAAAAABQAAAAND///8AAAESEAAAABwAAAAEAAAAAAAAAAgAAABkdXJhdGlvbgAAAAC+////AAACABAAFAAIAAYABwAMAAAAEAAQAAAAAAABAxAAAAAkAAAABAAAAAAAAAANAAAAZW5kX3RpbWVzdGFtcAAGAAgABgAGAAAAAAACAAAAAAA=";

/// A file as another tool writes it: only some of the columns, doubles, and one that nobody knows.
fn written_elsewhere(schema: &str, write: impl Fn(&str, &mut ColumnWriter<'_>)) -> File {
    written_with(schema, None, write)
}

/// The same, with Arrow's schema.
fn written_with(
    schema: &str,
    arrow: Option<&str>,
    write: impl Fn(&str, &mut ColumnWriter<'_>),
) -> File {
    let file = tempfile::tempfile().unwrap();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let names: Vec<String> = schema
        .get_fields()
        .iter()
        .map(|field| field.name().to_owned())
        .collect();
    let arrow = arrow.map(|schema| {
        let (key, value) = ("ARROW:schema".to_owned(), Some(schema.to_owned()));
        vec![KeyValue { key, value }]
    });
    let properties = WriterProperties::builder().set_key_value_metadata(arrow);
    let properties = Arc::new(properties.build());
    let mut writer =
        SerializedFileWriter::new(file.try_clone().unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for name in names {
        let mut column = group.next_column().unwrap().unwrap();
        write(&name, column.untyped());
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    file
}

#[test]
fn files_of_other_tools_are_read_by_their_columns() {
    let schema = "message schema { optional double end_timestamp; required binary func (UTF8); optional double duration; }";
    let file = written_elsewhere(schema, |name, column| match (name, column) {
        ("func", ColumnWriter::ByteArrayColumnWriter(column)) => {
            let values = ["a", "b", "c"].map(ByteArray::from);
            column.write_batch(&values, None, None).unwrap();
        }
        ("duration", ColumnWriter::DoubleColumnWriter(column)) => {
            column
                .write_batch(&[0.078, -1.0], Some(&[1, 0, 1]), None)
                .unwrap();
        }
        (_, ColumnWriter::DoubleColumnWriter(column)) => {
            column
                .write_batch(&[10.5, 11.0, 12.0], Some(&[1, 1, 1]), None)
                .unwrap();
        }
        _ => panic!("{name}"),
    });
    let mut csv = String::new();
    Rows::open(file.try_clone().unwrap())
        .unwrap()
        .read_to_string(&mut csv)
        .unwrap();
    assert_eq!(csv, "end_timestamp,duration\n10.5,0.078\n11,\n12,-1\n");
    let report = billed(Rows::open(file).unwrap(), Strictness::Skip);
    assert_eq!(report.report.used.calls, 1);
    assert_eq!(report.report.used.execution_us, 78_000);
    let lines: Vec<u64> = report
        .first_malformed
        .iter()
        .map(|(line, _)| *line)
        .collect();
    assert_eq!(lines, [3, 4]);
}

/// What pyarrow 26 writes of one table, with each of its compressions: `func`, `end_timestamp` and `duration`, which some rows do not have.
#[test]
fn files_of_pyarrow_are_read_with_each_compression_but_brotli() {
    let read = |bytes: &[u8]| -> io::Result<String> {
        let mut file = tempfile::tempfile()?;
        file.write_all(bytes)?;
        file.seek(SeekFrom::Start(0))?;
        let mut csv = String::new();
        Rows::open(file)?.read_to_string(&mut csv)?;
        Ok(csv)
    };
    let plain = read(include_bytes!("tests/none.parquet")).unwrap();
    let mut lines = plain.lines();
    assert_eq!(lines.next(), Some("end_timestamp,duration"));
    for row in 0..300_u16 {
        let duration = match row % 5 {
            4 => String::new(),
            _ => (f64::from(row % 9 + 1) * 0.25).to_string(),
        };
        let expected = format!("{},{duration}", 10.5 + f64::from(row));
        assert_eq!(lines.next(), Some(expected.as_str()));
    }
    for (how, bytes) in [
        ("Snappy", &include_bytes!("tests/snappy.parquet")[..]),
        ("gzip", include_bytes!("tests/gzip.parquet")),
        ("Zstandard", include_bytes!("tests/zstd.parquet")),
        ("LZ4", include_bytes!("tests/lz4.parquet")),
    ] {
        assert_eq!(read(bytes).unwrap(), plain, "{how}");
    }
    let refused = read(include_bytes!("tests/brotli.parquet")).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("is compressed with Brotli") && refused.contains("Zstandard, LZ4"),
        "{refused}"
    );
}

/// Whole numbers of all columns, one row.
fn numbers(schema: &str, arrow: Option<&str>, value: i64) -> io::Result<String> {
    let file = written_with(schema, arrow, |_, column| match column {
        ColumnWriter::Int64ColumnWriter(column) => {
            column.write_batch(&[value], None, None).unwrap();
        }
        ColumnWriter::Int32ColumnWriter(column) => {
            let value = i32::try_from(value).unwrap();
            column.write_batch(&[value], None, None).unwrap();
        }
        _ => panic!("no whole number"),
    });
    let mut csv = String::new();
    Rows::open(file)?.read_to_string(&mut csv)?;
    Ok(csv.lines().nth(1).unwrap().to_owned())
}

#[test]
fn numbers_are_read_in_the_unit_of_their_type() {
    let trace = |of: &str| format!("message trace {{ required {of}; required int64 duration; }}");
    let read = |of: &str, value| numbers(&trace(of), None, value).unwrap();
    let us = 1_500_000;
    // Seconds.
    for of in [
        "int64 end_timestamp (TIMESTAMP(MICROS,true))",
        "int64 end_timestamp (TIMESTAMP_MICROS)",
    ] {
        assert_eq!(read(of, us), "1.500000000,1500000", "{of}");
    }
    assert_eq!(
        read("int64 end_timestamp (TIMESTAMP(NANOS,false))", us),
        "0.001500000,1500000"
    );
    assert_eq!(
        read("int64 end_timestamp (TIMESTAMP_MILLIS)", -us),
        "-1500,-1500000"
    );
    assert_eq!(
        read("int64 end_timestamp (DECIMAL(18,4))", us),
        "150,1500000"
    );
    assert_eq!(read("int32 end_timestamp (DECIMAL(9,4))", 15), "0.0015,15");
    assert_eq!(
        read("int64 end_timestamp (UINT_64)", -1),
        "18446744073709551615,-1"
    );
    assert_eq!(
        read("int32 end_timestamp (INTEGER(32,false))", -1),
        "4294967295,-1"
    );
    assert_eq!(read("int64 end_timestamp", us), "1500000,1500000");
    // Milliseconds.
    let own = "message own { required int64 unix_ms (TIMESTAMP(NANOS,true)); required int64 execution_ns; required int64 memory_mb; }";
    assert_eq!(numbers(own, None, us).unwrap(), "1.500000,1500000,1500000");
}

#[test]
fn types_that_are_no_numbers_of_a_unit_are_refused_by_name() {
    let trace = |of: &str, more: &str| {
        let text =
            format!("message trace {{ required int64 end_timestamp; required {of}; {more} }}");
        numbers(&text, None, 7).unwrap_err().to_string()
    };
    for (of, kind) in [
        ("int64 duration (TIMESTAMP(MICROS,true))", "TIMESTAMP"),
        ("int64 duration (TIME(MICROS,true))", "TIME"),
        ("int32 duration (TIME_MILLIS)", "TIME"),
        ("int32 duration (DATE)", "DATE"),
    ] {
        let told = trace(of, "");
        assert!(
            told.starts_with(&format!("column duration has the type {kind}:")),
            "{told}"
        );
    }
    let told = trace("int64 duration", "required int64 duration;");
    assert_eq!(told, "it has several columns duration");
    // A column of this name, of another trace.
    let more = "message trace { required int64 end_timestamp; required int64 duration; required int32 start (DATE); }";
    assert_eq!(numbers(more, None, 7).unwrap(), "7,7");
    let schema = "message trace { required int64 end_timestamp; required int64 duration; required int64 other; }";
    let told = numbers(schema, Some(ARROW_SCHEMA), 7)
        .unwrap_err()
        .to_string();
    assert!(
        told.starts_with("column duration has the type DURATION:"),
        "{told}"
    );
}

#[test]
fn damaged_and_unusable_files_are_errors() {
    let mut file = packed(&records(100));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    for cut in [4, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut short = tempfile::tempfile().unwrap();
        short.write_all(bytes.get(..cut).unwrap()).unwrap();
        assert!(Rows::open(short).is_err(), "{cut} bytes");
    }
    let schema = "message schema { required boolean unix_ms; }";
    let file = written_elsewhere(schema, |_, column| {
        let ColumnWriter::BoolColumnWriter(column) = column else {
            panic!("no truth");
        };
        column.write_batch(&[true], None, None).unwrap();
    });
    let told = Rows::open(file)
        .unwrap()
        .read_to_end(&mut Vec::new())
        .unwrap_err();
    assert!(
        told.to_string().contains("column unix_ms has a type"),
        "{told}"
    );
    let schema = "message schema { repeated int64 unix_ms; }";
    let file = written_elsewhere(schema, |_, column| {
        let ColumnWriter::Int64ColumnWriter(column) = column else {
            panic!("no number");
        };
        column.write_batch(&[1], Some(&[1]), Some(&[0])).unwrap();
    });
    let told = Rows::open(file).unwrap_err();
    assert!(told.to_string().contains("has lists"), "{told}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_written_is_read(rows in proptest::collection::vec((any::<u32>(), proptest::option::of(0..i64::MAX)), 0..200)) {
        let mut csv = "unix_ms,memory_mb,execution_ns\n".to_owned();
        for (at, execution) in &rows {
            let execution = execution.map_or_else(String::new, |ns| ns.to_string());
            let _ = writeln!(csv, "{at},128,{execution}");
        }
        let mut read = String::new();
        Rows::open(packed(&csv)).unwrap().read_to_string(&mut read).unwrap();
        prop_assert_eq!(read, csv);
    }
}
