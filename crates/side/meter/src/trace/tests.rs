//! Traces of each kind, and malformed ones.

use std::io::Write as _;

use proptest::prelude::*;

use super::*;

const HUAWEI: &str = "time_worker,time_frontend,requestID,clusterName,funcName,podID,userID,totalCost_worker,workerCost,runtimeCost,totalCost_frontend,frontendCost,busCost,readBodyCost,writeRspCost,cpu_usage,memory_usage,requestBodySize\n";

fn options(strictness: Strictness) -> TraceOptions {
    TraceOptions {
        strictness,
        matched: Match::MemoryAndCpu,
        default_size: Size {
            cpu_milli: 1000,
            memory_bytes: 128 << 20,
        },
        threads: NonZeroUsize::new(2),
    }
}

fn skipping(text: &str) -> TraceReport {
    let table = Table::shipped().unwrap();
    bill(text.as_bytes(), &table, &options(Strictness::Skip)).unwrap()
}

fn refused(text: &str) -> String {
    let table = Table::shipped().unwrap();
    let refused = bill(text.as_bytes(), &table, &options(Strictness::Refuse));
    refused.unwrap_err().to_string()
}

fn huawei(seconds: &str, pod: &str, cpu: &str, memory: &str) -> String {
    format!(
        "2600186.994,2600186.995,763ff,1,296,{pod},224,0.1,0.0001,{seconds},0.1,0.0,0.0,0.0,0.0,{cpu},{memory},1018\n"
    )
}

fn total(report: &TraceReport, id: &str) -> Option<String> {
    let found = report
        .report
        .platforms
        .iter()
        .find(|platform| platform.id == id);
    Some(found?.bill.as_ref()?.total.clone())
}

#[test]
fn huaweis_requests_are_billed_by_their_columns() {
    let row = huawei(
        "0.023637",
        "pool22-300-128-0000618412",
        "0.291506",
        "32.308594",
    );
    let traced = skipping(&format!("{HUAWEI}{row}{row}"));
    assert_eq!(traced.malformed, 0, "{:?}", traced.first_malformed);
    let used = &traced.report.used;
    assert_eq!((used.calls, used.bytes_in), (2, 2036));
    assert_eq!(used.execution_us, 47_274);
    assert_eq!(used.cpu_us, 13_780, "2 * 0.291506 * 23.637 ms");
    // 24 ms of 128 MB, and the fee; 300 thousandths of a vCPU are 531 MB of Lambda.
    assert_eq!(total(&traced, "huawei").as_deref(), Some("0.000000500020"));
    assert_eq!(
        total(&traced, "aws-lambda-x86").as_deref(),
        Some("0.000000814845")
    );
    assert_eq!(
        total(&traced, "cloudflare").as_deref(),
        Some("0.000000880000")
    );
}

#[test]
fn azures_invocations_have_no_allocation_and_no_cpu_time() {
    let traced = skipping("app,func,end_timestamp,duration\na,b,0.0794,0.078\na,c,57.157,57.154\n");
    assert_eq!(traced.malformed, 0, "{:?}", traced.first_malformed);
    assert_eq!(traced.report.used.execution_us, 57_232_000);
    assert_eq!(traced.report.used.cpu_unknown, 2);
    assert_eq!(total(&traced, "cloudflare"), None);
    assert!(total(&traced, "azure-consumption").is_some());
    assert!(traced.report.notes[0].contains("2 rows do not say what was allocated"));
    assert_eq!(traced.report.since_unix_ms, Some(1));
    assert_eq!(traced.report.until_unix_ms, Some(57_157));
}

#[test]
fn azures_percentiles_of_2019_are_spread_over_their_requests() {
    let header = "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_Average_1,percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100\n";
    let traced = skipping(&format!(
        "{header}a,a,f,33,288,0.0,299.0,0,0,17,31,34,201,299\n"
    ));
    assert_eq!(traced.malformed, 0, "{:?}", traced.first_malformed);
    // 2 * 0 + 70 * 8.5 + 72 * 24 + 72 * 32.5 + 69 * 117.5 + 3 * 250 ms
    assert_eq!(traced.report.used.calls, 288);
    assert_eq!(traced.report.used.execution_us, 13_520_500);
    assert_eq!(traced.report.used.cpu_unknown, 288);
    let bill = total(&traced, "vercel").unwrap();
    assert_eq!(bill, "0.001340659595", "13.5205 s of 1 vCPU, and 288 fees");
    let few = "Count,percentile_Average_50,percentile_Average_100\n1,5,6\n";
    assert!(
        refused(few).contains("of no known trace"),
        "{}",
        refused(few)
    );
    for (row, told) in [
        (
            "a,a,f,33,288,0.0,299.0,0,0,17,31,30,201,299",
            "its percentiles do not rise",
        ),
        ("a,a,f,33,,0.0,299.0,0,0,17,31,34,201,299", "Count is empty"),
        (
            "a,a,f,33,1,0.0,299.0,0,0,,31,34,201,299",
            "percentile_Average_25 is empty",
        ),
    ] {
        assert_eq!(
            refused(&format!("{header}{row}\n")),
            format!("line 2: {told}")
        );
    }
}

#[test]
fn malformed_rows_are_counted_and_named_or_refused() {
    let good = huawei("0.1", "pool22-300-128-1", "0.5", "20");
    let bad = [
        (
            huawei("", "pool22-300-128-1", "0.5", "20"),
            "it has no duration",
        ),
        (
            huawei("-0.1", "pool22-300-128-1", "0.5", "20"),
            "runtimeCost = '-0.1' is negative",
        ),
        (
            huawei("NaN", "pool22-300-128-1", "0.5", "20"),
            "runtimeCost = 'NaN' is not a number",
        ),
        (
            huawei("0.1", "pool22-300-128-1", "nan", "20"),
            "cpu_usage = 'nan' is not a number",
        ),
        (
            huawei("0.1", "pool22", "0.5", "20"),
            "podID = 'pool22' is not like",
        ),
        (huawei("0.1", "", "0.5", "20"), "podID = '' is not like"),
        (
            huawei("99999999", "pool22-300-128-1", "0.5", "20"),
            "the duration is too large: is it in another unit?",
        ),
        (
            huawei("0.1", "pool22-300-128-1", "500000", "20"),
            "the CPU usage is too large: is it in another unit?",
        ),
        (
            huawei("0.1", "pool22-300-128-1", "0.5", "99999999999"),
            "the used memory is too large",
        ),
        ("1,2,3\n".to_owned(), "it has 3 fields instead of 18"),
        (
            format!("{},\n", good.trim_end()),
            "it has 19 fields instead of 18",
        ),
    ];
    let mut text = format!("{HUAWEI}{good}");
    for (row, _) in &bad {
        text.push_str(row);
        text.push_str("\r\n");
    }
    // Truncated in the middle of a row.
    text.push_str(&good[..good.len() / 2]);
    let traced = skipping(&text);
    assert_eq!(traced.report.used.calls, 1);
    assert_eq!(traced.malformed, bad.len() as u64 + 1);
    assert_eq!(traced.first_malformed.len(), NAMED_MAX);
    let all: Vec<_> = bad
        .iter()
        .map(|(row, told)| (refused(&format!("{HUAWEI}{row}")), *told))
        .collect();
    for (problem, told) in all {
        let problem = problem.strip_prefix("line 2: ").unwrap();
        assert!(problem.starts_with(told), "{problem}");
    }
    for ((line, problem), (index, (_, told))) in
        traced.first_malformed.iter().zip(bad.iter().enumerate())
    {
        assert_eq!(*line, 3 + 2 * index as u64);
        assert!(problem.starts_with(told), "{problem}");
    }
    assert_eq!(refused(&text), "line 3: it has no duration");
}

#[test]
fn a_start_is_what_its_column_says() {
    let header = "unix_ms,start,memory_mb,execution_ns,init_ns\n";
    let text = format!("{header}1,warm,128,10,5\n2,cold,128,10,0\n3,,128,10,5\n4,,128,10,0\n");
    assert_eq!(skipping(&text).report.used.cold, 2);
    let told = refused(&format!("{header}1,hot,128,10,5\n"));
    assert_eq!(told, "line 2: start = 'hot' is neither cold nor warm");
}

/// Records of one's own making need not have all columns.
#[test]
fn cpu_time_is_known_if_both_of_its_parts_are() {
    for (columns, fields, known) in [
        ("", "", None),
        (",cpu_user_ns", ",5000", None),
        (",cpu_user_ns,cpu_system_ns", ",5000,", None),
        (",cpu_user_ns,cpu_system_ns", ",5000,7000", Some(12)),
    ] {
        let traced = skipping(&format!(
            "unix_ms,memory_mb,execution_ns{columns}\n1,128,5000000{fields}\n"
        ));
        let used = &traced.report.used;
        assert_eq!(
            used.cpu_unknown,
            u64::from(known.is_none()),
            "{columns}{fields}"
        );
        assert_eq!(used.cpu_us, known.unwrap_or(0), "{columns}{fields}");
        assert_eq!(total(&traced, "cloudflare").is_some(), known.is_some());
    }
}

/// The clock was set back by a day: the dates say so, and machines are billed for 5 s.
#[test]
fn machines_are_billed_by_the_clock_that_nobody_sets() {
    let header = "unix_ms,memory_mb,cpu_milli,execution_ns,init_ns,elapsed_ms\n";
    let bill = |first: u64, second: u64| {
        let text = format!(
            "{header}{first},128,1000,1000000,0,1000\n{second},128,1000,1000000000,0,5000\n"
        );
        total(&skipping(&text), "own").unwrap()
    };
    assert_eq!(
        bill(90_000_000_000, 90_000_004_000),
        bill(90_000_000_000, 3)
    );
}

#[test]
fn commas_in_quotes_and_columns_that_are_there_twice() {
    let header = "\"func, or app\",end_timestamp,duration\n";
    let traced = skipping(&format!("{header}\"a, \"\"b\"\"\",10,0.5\nc,11,\"0.25\"\n"));
    assert_eq!(traced.malformed, 0, "{:?}", traced.first_malformed);
    assert_eq!(traced.report.used.execution_us, 750_000);
    let told = refused("end_timestamp,duration,func,duration\n10,0.5,a,0.6\n");
    assert_eq!(told, "it has several columns duration");
}

#[test]
fn a_header_of_something_else_says_what_is_known() {
    for wrong in [
        "",
        "a,b,c\n1,2,3\n",
        "\u{0}\u{1}\n",
        "unix_ms;execution_ns;memory_mb\n",
    ] {
        let told = refused(wrong);
        assert!(
            told.contains("podID") && told.contains("pilot cost export"),
            "{told}"
        );
    }
    for (magic, kind) in [
        (&b"PAR1\x15\x04"[..], "Parquet through a pipe"),
        (b"\x28\xb5\x2f\xfd\x04", "compressed with zstd"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"PK\x03\x04", "zip"),
    ] {
        let table = Table::shipped().unwrap();
        let told = bill(magic, &table, &options(Strictness::Skip)).unwrap_err();
        assert!(told.to_string().contains(kind), "{told}");
    }
    let told = bill(
        &b"\xff\xfe,\n"[..],
        &Table::shipped().unwrap(),
        &options(Strictness::Skip),
    );
    assert!(told.unwrap_err().to_string().contains("not text"));
}

#[test]
fn a_trace_may_be_compressed() {
    let row = huawei("0.1", "pool22-300-128-1", "0.5", "20");
    let text = format!("{HUAWEI}{}", row.repeat(1000));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let table = Table::shipped().unwrap();
    let unpacked = bill(&packed[..], &table, &options(Strictness::Refuse)).unwrap();
    assert_eq!(unpacked.report, skipping(&text).report);
    let cut = bill(
        &packed[..packed.len() / 2],
        &table,
        &options(Strictness::Skip),
    );
    let cut = cut.unwrap();
    let calls = cut.report.used.calls;
    assert!((1..1000).contains(&calls), "{calls}");
    assert_eq!(cut.malformed, 1);
    let (line, problem) = &cut.first_malformed[0];
    assert_eq!(*line, calls + 2, "the first that is not whole");
    assert!(problem.contains("cut off or damaged here"), "{problem}");
    for length in [packed.len() - 1, packed.len() / 2] {
        let refused = bill(&packed[..length], &table, &options(Strictness::Refuse));
        let told = refused.unwrap_err().to_string();
        assert!(
            told.starts_with("line ") && told.contains("cut off"),
            "{told}"
        );
    }
}

/// `57.1` may have been `57.154`; many files of one's own have no line end at their end, too.
#[test]
fn a_last_row_without_a_line_end_is_named_or_refused() {
    let header = "app,func,end_timestamp,duration\n";
    let cut = format!("{header}a,b,0.0794,0.078\na,c,57.157,57.1");
    let traced = skipping(&cut);
    assert_eq!((traced.malformed, traced.unended), (0, Some(3)));
    assert_eq!(traced.report.used.calls, 2);
    let told = refused(&cut);
    assert!(
        told.starts_with("line 3: the last row has no line end"),
        "{told}"
    );
    assert!(
        told.ends_with("if the file is complete, add a line end"),
        "{told}"
    );
    assert_eq!(skipping(&format!("{cut}\n")).unended, None);
    assert_eq!(skipping(header).unended, None);
    // Cut off in the header.
    let header_alone = header.trim_end();
    assert_eq!(skipping(header_alone).unended, Some(1));
    assert!(refused(header_alone).starts_with("line 1: the last row has no line end"));
    // It is malformed anyway.
    let traced = skipping(&format!("{header}a,b,0.0794"));
    assert_eq!((traced.malformed, traced.unended), (1, None));
    assert_eq!(traced.first_malformed[0].0, 2);
    let starts = "podID,totalCost_cold_start\npool22-300-128-1,0.5\npool22-300-128-2,0.";
    let workers = Workers::of_starts(starts.as_bytes(), Strictness::Skip).unwrap();
    assert_eq!(workers.unended(), Some(3));
    let refused = Workers::of_starts(starts.as_bytes(), Strictness::Refuse).unwrap_err();
    assert!(refused.to_string().starts_with("line 3:"), "{refused}");
}

/// A trace of several blocks has the sums of its rows, and lines are counted through the blocks.
#[test]
fn rows_are_whole_across_blocks_and_threads() {
    let mut text = HUAWEI.to_owned();
    let mut ms = 0;
    let mut row = 0_u64;
    while text.len() < 3 * BLOCK_BYTES {
        let seconds = format!("{}.{:03}", row % 3, row % 1000);
        ms += row % 3 * 1000 + row % 1000;
        text.push_str(&huawei(&seconds, "pool22-300-128-1", "0.5", "20"));
        row += 1;
    }
    text.push_str("end\n");
    let traced = skipping(&text);
    assert_eq!(traced.report.used.calls, row);
    assert_eq!(traced.report.used.execution_us, ms * 1000);
    let told = "time_worker = 'end' is not a number".to_owned();
    assert_eq!(traced.first_malformed, [(row + 2, told)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), header in prop::sample::select(vec![HUAWEI, "end_timestamp,duration\n", "unix_ms,memory_mb,execution_ns\n"])) {
        let text = [header.as_bytes(), &bytes].concat();
        let table = Table::shipped().unwrap();
        let _ = bill(&text[..], &table, &options(Strictness::Skip));
    }
}
