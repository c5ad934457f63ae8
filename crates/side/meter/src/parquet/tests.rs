//! What is written is read, and other tools' files are read.

use std::fmt::Write as _;

use proptest::prelude::*;

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

/// A file as another tool writes it: only some of the columns, doubles, and one that nobody knows.
fn written_elsewhere(schema: &str, write: impl Fn(&str, &mut ColumnWriter<'_>)) -> File {
    let file = tempfile::tempfile().unwrap();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let names: Vec<String> = schema
        .get_fields()
        .iter()
        .map(|field| field.name().to_owned())
        .collect();
    let properties = Arc::new(WriterProperties::builder().build());
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
