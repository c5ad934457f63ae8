//! `pilot cost` and `pilot profile`: from a call to a bill.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::{Daemon, Need, eventually, eventually_within, needs_root, skip};
use serde_json::{Value, json};

use crate::{ECHO, answer, daemon, lab, plain};

fn cost(daemon: &Daemon, arguments: &[&str]) -> Value {
    let all = [&["cost", "--json"], arguments].concat();
    serde_json::from_str(&daemon.cli_ok(&all)).unwrap()
}

fn bill<'a>(report: &'a Value, id: &str) -> &'a Value {
    let platforms = report["platforms"].as_array().unwrap();
    platforms
        .iter()
        .find(|platform| platform["id"] == id)
        .unwrap()
}

const SLEEPS: &str =
    "import time\ndef handler(event, context):\n    time.sleep(event)\n    return event\n";

#[test]
fn calls_are_billed_on_every_platform() {
    let daemon = lab(SLEEPS, json!({"memory_mb": 256}));
    for _ in 0..3 {
        answer(&daemon, "lab", json!(0.05));
    }
    daemon.upload_code("other", &plain(), ECHO);
    answer(&daemon, "other", json!(1));
    let report = cost(&daemon, &["lab"]);
    let used = &report["used"];
    assert_eq!(
        (&used["calls"], &used["cold"]),
        (&json!(3), &json!(1)),
        "{report}"
    );
    assert!(
        (150_000..3_000_000).contains(&used["execution_us"].as_u64().unwrap()),
        "{report}"
    );
    assert!(
        used["cpu_us"].as_u64() < used["execution_us"].as_u64(),
        "it slept: {report}"
    );
    assert_eq!(
        report["platforms"].as_array().unwrap().len(),
        18,
        "{report}"
    );
    let lambda = bill(&report, "aws-lambda-x86");
    assert_eq!(lambda["bill"]["fee"], "0.000000600000", "{lambda}");
    match Need::ExactCpuTime.missing() {
        None => assert!(
            lambda["cpu_inflation_hundredths"].as_u64() > Some(100),
            "{lambda}"
        ),
        Some(what) => skip(&what),
    }
    assert!(
        bill(&report, "cloudflare")["problem"]
            .as_str()
            .unwrap()
            .contains("larger size")
    );
    let run = bill(&report, "gcp-request")["bill"]["total"]
        .as_str()
        .unwrap();
    // Three times 100 ms of 1 vCPU and 256 MB, and fees, at least.
    assert!(run >= "0.000008587500", "{run}");
    assert_eq!(cost(&daemon, &[])["used"]["calls"], 4);
    assert_eq!(
        cost(&daemon, &["--since", "2099-01-01T00:00:00Z"])["used"]["calls"],
        0
    );
    let text = daemon.cli_ok(&["cost"]);
    for words in [
        "PLATFORM",
        "4 calls",
        "AWS Lambda (ARM)",
        "Cloud Run, by request",
        "This machine",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() < 180),
        "{text}"
    );
}

#[test]
fn records_survive_kill_9_and_a_call_in_flight() {
    let mut daemon = lab(SLEEPS, plain());
    for _ in 0..20 {
        answer(&daemon, "lab", json!(0));
    }
    assert_eq!(cost(&daemon, &[])["used"]["calls"], 20);
    let mut connection = daemon.connect();
    connection.send(
        &pilot_harness::Request::new("POST", "/2015-03-31/functions/lab/invocations").body("30"),
    );
    eventually_within(Duration::from_secs(20), "it runs", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    daemon.kill();
    daemon.resume();
    let report = cost(&daemon, &["lab"]);
    assert_eq!(report["used"]["calls"], 20, "{report}");
    answer(&daemon, "lab", json!(0));
    assert_eq!(cost(&daemon, &[])["used"]["calls"], 21);
}

#[test]
fn exported_records_cost_the_same_as_a_trace() {
    let daemon = lab(ECHO, plain());
    for _ in 0..5 {
        answer(&daemon, "lab", json!(1));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("usage.csv").display().to_string();
    daemon.cli_ok(&["cost", "export", "-o", &file]);
    let csv = fs::read_to_string(&file).unwrap();
    assert_eq!(csv.lines().count(), 6, "{csv}");
    assert_eq!(daemon.cli_ok(&["cost", "export", "lab"]), csv);
    let metered = cost(&daemon, &["--match-cpu"]);
    let traced = cost(&daemon, &["--strict", "--trace", &file]);
    for id in ["aws-lambda-arm", "gcp-request", "azure-flex"] {
        assert_eq!(
            bill(&traced, id)["bill"],
            bill(&metered, id)["bill"],
            "{id}"
        );
    }
    fs::write(&file, format!("{csv}oops\n")).unwrap();
    let skipped = cost(&daemon, &["--trace", &file]);
    assert_eq!(skipped["used"]["calls"], 5);
    assert!(
        skipped["notes"]
            .to_string()
            .contains(":7: unix_ms = 'oops' is not a number"),
        "{skipped}"
    );
    let refused = daemon.cli(&["cost", "--strict", "--trace", &file]);
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains("usage.csv:7: unix_ms = 'oops' is not a number"),
        "{told}"
    );
}

#[test]
fn a_trace_says_how_much_of_its_allocation_is_used() {
    let daemon = crate::daemon();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv").display().to_string();
    // 40 ms each; a tenth and a quarter, three fifths and all of what is allocated.
    let rows = "time_worker,podID,runtimeCost,cpu_usage,memory_usage,requestBodySize\n\
                1,pool22-300-128-1,0.04,0.03,32,5\n2,pool22-300-128-1,0.04,0.18,128,5\n";
    fs::write(&file, rows).unwrap();
    let analysis = cost(&daemon, &["--trace", &file])["analysis"].clone();
    assert_eq!(analysis["known"], 2);
    assert_eq!(analysis["cpu"]["below_half_thousandths"], 500);
    assert_eq!(analysis["cpu"]["percentiles"], json!([10, 10, 10, 60, 60]));
    assert_eq!(
        analysis["memory"]["percentiles"],
        json!([25, 25, 25, 100, 100])
    );
    let pearson = analysis["pearson"].as_f64().unwrap();
    assert!((pearson - 1.0).abs() < 1e-9, "{pearson}");
    assert_eq!(
        analysis["rounding"][1],
        json!({"step_ms": 100, "min_ms": 0, "mean_us": 60_000})
    );
    // 32 and 128 MB, 0.03 and 0.18 CPUs, for 40 ms each; 128 MB and 0.3 vCPU for as long. A bin is up to a 32nd too large.
    let found = &analysis["distribution"];
    let near = |amounts: &Value, at: usize, exact: u64| {
        let amount = amounts[at].as_u64().unwrap();
        assert!(
            (exact..=exact + exact / 32 + 1).contains(&amount),
            "{amount} {found}"
        );
    };
    assert_eq!(
        (&found["percents"][0], &found["percents"][20]),
        (&json!(1), &json!(99))
    );
    let used = &found["used"];
    for (at, memory, cpu) in [(0, 32, 1_200_000), (20, 128, 7_200_000)] {
        near(&used["memory_kb_ms"], at, memory * 1024 * 40);
        near(&used["cpu_ns"], at, cpu);
    }
    let platforms = found["platforms"].as_array().unwrap();
    let of = |id: &str| platforms.iter().find(|it| it["id"] == id);
    let huawei = of("huawei").unwrap();
    for at in [0, 20] {
        near(&huawei["memory_kb_ms"], at, 128 * 1024 * 40);
    }
    assert_eq!(
        huawei["cpu_ns"],
        json!(null),
        "its CPU is in its memory: {huawei}"
    );
    // 100 ms at least.
    near(&of("gcp-request").unwrap()["cpu_ns"], 0, 300 * 100_000);
    near(&of("cloudflare").unwrap()["cpu_ns"], 20, 8_000_000);
    assert!(
        of("own").is_none() && of("gcp-instance").is_none(),
        "{found}"
    );
    let told = daemon.cli_ok(&["cost", "--trace", &file]);
    assert!(
        told.contains("BILLED PER REQUEST") && told.contains("(used)"),
        "{told}"
    );
    assert!(
        told.contains("50.0 % of the requests used less than half of their CPU"),
        "{told}"
    );
    assert!(
        told.contains("In steps of 100 ms and at least 0 ms, a request is 60.000 ms longer"),
        "{told}"
    );
}

#[test]
fn a_table_of_ones_own_replaces_and_extends_the_platforms() {
    let daemon = lab(ECHO, plain());
    answer(&daemon, "lab", json!(1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("billing.toml");
    let shown = file.display().to_string();
    let table = r#"
[platforms.shop]
name = "The shop's server"
time = "execution"
memory = { price = "1", per = "s" }
fee = "0.5"
size = { list = [[1000, 1024]] }
source = "the invoice"
as_of = "2026-01-01"
"#;
    fs::write(&file, table).unwrap();
    let report = cost(&daemon, &["--billing", &shown]);
    let shop = bill(&report, "shop");
    assert_eq!(shop["bill"]["fee"], "0.500000000000", "{shop}");
    fs::write(&file, table.replace("\"0.5\"", "\"-1\"")).unwrap();
    let refused = daemon.cli(&["cost", "--billing", &shown]);
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains("billing.toml: [platforms.shop]: fee: '-1' is not an amount"),
        "{told}"
    );
    assert!(
        daemon
            .cli_ok(&["cost", "platforms"])
            .contains("[platforms.aws-lambda-x86]")
    );
    let unknown = daemon.cli(&["cost", "labb"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        String::from_utf8(unknown.stderr)
            .unwrap()
            .contains("did you mean 'lab'?")
    );
}

#[test]
fn a_throttle_log_is_named_or_refused() {
    let daemon = daemon();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.json");
    let shown = file.display().to_string();
    // 8 ms in 20 ms, at the ticks of 250 Hz.
    let events: Vec<String> = (1..=200_u64)
        .map(|period| format!("[{}, 12000000]", period * 20_000_000))
        .collect();
    fs::write(&file, format!("[{}]", events.join(","))).unwrap();
    let found: Value =
        serde_json::from_str(&daemon.cli_ok(&["profile", "infer", "--json", &shown])).unwrap();
    assert_eq!(
        (&found["period_us"], &found["quota_us"]),
        (&json!(20_000), &json!(8_000)),
        "{found}"
    );
    assert_eq!(found["tick_hz"], 250, "{found}");
    assert!(
        daemon
            .cli_ok(&["profile", "infer", &shown])
            .contains("0.400 CPU")
    );
    fs::write(&file, "[[1, 2]").unwrap();
    let refused = daemon.cli(&["profile", "infer", &shown]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8(refused.stderr)
            .unwrap()
            .contains("log.json: a throttle log is")
    );
}

#[test]
fn records_are_exported_as_parquet_and_cost_the_same() {
    let daemon = lab(ECHO, plain());
    for _ in 0..5 {
        answer(&daemon, "lab", json!(1));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (csv, parquet) = (file("usage.csv"), file("usage.parquet"));
    daemon.cli_ok(&["cost", "export", "-o", &csv]);
    daemon.cli_ok(&["cost", "export", "--parquet", "-o", &parquet]);
    assert!(fs::read(&parquet).unwrap().starts_with(b"PAR1"));
    let billed = |path: &str| cost(&daemon, &["--strict", "--trace", path]);
    let of_parquet = billed(&parquet);
    assert_eq!(of_parquet["used"]["calls"], 5);
    assert_eq!(of_parquet, billed(&csv));
    let refused = daemon.cli(&["cost", "export", "--parquet"]);
    assert_eq!(refused.status.code(), Some(2), "it needs a file");
    fs::write(&parquet, "PAR1 and nothing more").unwrap();
    let refused = daemon.cli(&["cost", "--trace", &parquet]);
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("usage.parquet: "), "{told}");
}

/// A call whose worker dies is metered, and so is the worker: the export names it in both.
#[test]
fn the_export_has_the_lives_of_workers_also_of_those_that_died() {
    let daemon = lab(
        "import os\ndef handler(event, context):\n    if event == 'die':\n        os._exit(3)\n    return event\n",
        json!({"memory_mb": 256}),
    );
    answer(&daemon, "lab", json!(1));
    let died = daemon.invoke("lab", &json!("die"));
    assert!(died.header("x-amz-function-error").is_some(), "{died:?}");
    answer(&daemon, "lab", json!(2));
    daemon.cli_ok(&["scale", "lab", "0"]);
    let rows = |arguments: &[&str]| -> Vec<Vec<String>> {
        let text = daemon.cli_ok(&[&["cost", "export", "lab"], arguments].concat());
        let rows = text.lines().skip(1);
        let fields = rows.map(|row| row.split(',').map(str::to_owned).collect());
        fields.collect()
    };
    let workers = eventually_within(Duration::from_secs(20), "both workers ended", || {
        let workers = rows(&["--workers"]);
        (workers.len() == 2).then_some(workers)
    });
    let calls = rows(&[]);
    let outcomes: Vec<&str> = calls.iter().map(|call| call[4].as_str()).collect();
    assert_eq!(outcomes, ["ok", "crash", "ok"]);
    let served_by: Vec<&String> = calls.iter().map(|call| &call[27]).collect();
    assert_eq!(served_by[0], served_by[1]);
    assert_ne!(served_by[1], served_by[2]);
    for (worker, (name, reason)) in workers
        .iter()
        .zip([(served_by[1], "crash"), (served_by[2], "scaled")])
    {
        assert_eq!((&worker[1], worker[10].as_str()), (name, reason));
        assert!(worker[6].parse::<u64>().unwrap() > 0, "{worker:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workers.parquet").display().to_string();
    daemon.cli_ok(&["cost", "export", "--workers", "--parquet", "-o", &file]);
    assert!(fs::read(&file).unwrap().starts_with(b"PAR1"));
    // The first worker's start is compared with its calls.
    let file = folder.path().join("calls.csv").display().to_string();
    daemon.cli_ok(&["cost", "export", "-o", &file]);
    let starts = cost(&daemon, &["--strict", "--trace", &file])["analysis"]["starts"].clone();
    assert_eq!(starts["known"], 2, "{starts}");
    let text = daemon.get("/metrics").text();
    for metric in [
        "pilot_memory_allocated_bytes{faas_name=\"lab\"} 268435456",
        "pilot_throttled_seconds_total{faas_name=\"lab\"}",
    ] {
        assert!(text.contains(metric), "{metric}: {text}");
    }
}

/// Figure 4: Huawei's table of cold starts beside its request table.
#[test]
fn starts_of_a_trace_are_compared_with_the_requests_after_them() {
    let daemon = daemon();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let requests = "time_worker,podID,runtimeCost,cpu_usage,memory_usage,requestBodySize\n\
                    1,pool22-300-128-1,0.04,0.03,32,5\n2,pool22-300-128-2,0.5,0.18,100,5\n";
    let starts = "day,time,totalCost_cold_start,podID\n30,0.1,0.2,pool22-300-128-1\n30,0.2,0.2,pool22-300-128-2\n";
    let (requests, starts) = (file("requests.csv", requests), file("starts.csv", starts));
    let report = cost(&daemon, &["--trace", &requests, "--starts", &starts]);
    let found = &report["analysis"]["starts"];
    assert_eq!(
        (&found["known"], &found["not_positive_thousandths"]),
        (&json!(2), &json!(500))
    );
    assert_eq!(
        found["difference_us"],
        json!([-160_000, -160_000, -160_000, 300_000, 300_000])
    );
    let told = daemon.cli_ok(&["cost", "--trace", &requests, "--starts", &starts]);
    assert!(
        told.contains("50.0 % of 2 starts of workers took at least as long"),
        "{told}"
    );
    let wrong = file(
        "wrong.csv",
        "podID,totalCost_cold_start\npool22-300-128-1,-1\n",
    );
    let told = daemon.cli_ok(&["cost", "--trace", &requests, "--starts", &wrong]);
    assert!(
        told.contains("wrong.csv:2: totalCost_cold_start = '-1' is negative"),
        "{told}"
    );
    let refused = daemon.cli(&["cost", "--strict", "--trace", &requests, "--starts", &wrong]);
    assert_eq!(refused.status.code(), Some(2));
    let refused = daemon.cli(&["cost", "--trace", &requests, "--starts", &requests]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains("requests.csv: the header") && told.contains("no table of cold starts"),
        "{told}"
    );
}

#[test]
fn a_function_is_sized_by_its_calls() {
    let busy = "import time\n\
                def handler(event, context):\n\
                \x20   end = time.process_time() + event\n\
                \x20   while time.process_time() < end: pass\n";
    let daemon = lab(busy, json!({"memory_mb": 512}));
    for _ in 0..4 {
        answer(&daemon, "lab", json!(0.03));
    }
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("sizes.svg").display().to_string();
    let all = ["rightsize", "lab", "--json", "--svg", &picture];
    let report: Value = serde_json::from_str(&daemon.cli_ok(&all)).unwrap();
    assert_eq!(
        (&report["calls"], &report["calls_left_out"]),
        (&json!(3), &json!(1)),
        "{report}"
    );
    let settings = report["settings"].as_array().unwrap();
    let ids: Vec<&Value> = settings.iter().map(|setting| &setting["id"]).collect();
    assert_eq!(ids, ["own", "aws-lambda-x86", "gcp-request"]);
    for setting in settings {
        let sizes = setting["sizes"].as_array().unwrap();
        let at = |size: &Value| size["duration_us"].as_u64().unwrap();
        let (first, last) = (sizes.first().unwrap(), sizes.last().unwrap());
        assert!(at(last) >= 30_000, "30 ms of CPU time: {last}");
        if setting["id"] == "gcp-request" {
            assert_eq!(first["cpu_milli"], 340, "512 MB have no less: {first}");
        } else {
            assert!(at(first) > at(last) * 2, "a fraction of a CPU: {first}");
        }
    }
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.contains("AWS Lambda (x86)"), "{svg}");
    let text = daemon.cli_ok(&["rightsize", "lab"]);
    assert!(text.contains("as fast as it gets"), "{text}");
    // With prices of one's own, and from records whose end may be cut off.
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (records, billing) = (at("calls.csv"), at("billing.toml"));
    let csv = daemon.cli_ok(&["cost", "export", "lab"]);
    fs::write(&records, csv.trim_end()).unwrap();
    let platforms = daemon.cli_ok(&["cost", "platforms"]);
    let (_, rest) = platforms
        .split_once("[platforms.aws-lambda-x86]\n")
        .unwrap();
    let (lambda, _) = rest.split_once("\n[platforms").unwrap();
    let free = lambda.replace("fee = \"0.0000002\"", "fee = \"1\"");
    fs::write(&billing, format!("[platforms.aws-lambda-x86]\n{free}\n")).unwrap();
    let all = [
        "rightsize",
        "--trace",
        &records,
        "--json",
        "--billing",
        &billing,
    ];
    let dear: Value = serde_json::from_str(&daemon.cli_ok(&all)).unwrap();
    let note = format!("{records}:5: the last row has no line end");
    let notes = dear["notes"].as_array().unwrap();
    assert!(
        notes
            .iter()
            .any(|told| told.as_str().unwrap().starts_with(&note)),
        "{dear}"
    );
    let price = |report: &Value, at: usize| {
        let size = &report["settings"][at]["sizes"][0];
        size["per_million"]
            .as_str()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    let more = price(&dear, 1) - price(&report, 1);
    assert!((more - 999_999.8).abs() < 1e-3, "a fee of a dollar: {more}");
    assert!((price(&dear, 2) - price(&report, 2)).abs() < 1e-6, "{dear}");
    fs::write(&billing, "[platforms.shop]\n").unwrap();
    let refused = daemon.cli(&["rightsize", "lab", "--billing", &billing]);
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("billing.toml"), "{told}");
    assert!(told.contains("[platforms.shop]"), "{told}");
    let unknown = daemon.cli(&["rightsize", "labb"]);
    assert_eq!(unknown.status.code(), Some(1));
    let told = String::from_utf8(unknown.stderr).unwrap();
    assert!(told.contains("did you mean 'lab'?"), "{told}");
    daemon.upload_code("new", &plain(), ECHO);
    let none = daemon.cli(&["rightsize", "new"]);
    assert_eq!(none.status.code(), Some(1));
    let told = String::from_utf8(none.stderr).unwrap();
    assert!(told.contains("calls in all: 0"), "{told}");
}

#[test]
fn the_models_log_is_named_and_its_durations_fall() {
    let daemon = daemon();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.json").display().to_string();
    let limit = ["--quota", "5000", "--period", "20000", "--tick-hz", "250"];
    let made = [&["profile", "model", "-o", &log], limit.as_slice()].concat();
    daemon.cli_ok(&made);
    let found: Value =
        serde_json::from_str(&daemon.cli_ok(&["profile", "infer", "--json", &log])).unwrap();
    assert_eq!(
        [&found["period_us"], &found["quota_us"], &found["tick_hz"]],
        [&json!(20_000), &json!(5_000), &json!(250)],
        "{found}"
    );
    let distance = found["model"]["plain"]["obtained"].as_f64().unwrap();
    assert!(distance <= 0.05, "{found}");
    let durations = [
        "profile",
        "durations",
        "--json",
        "--cpu-ms",
        "51.8",
        "--period",
        "20000",
    ];
    let rows: Vec<Value> = serde_json::from_str(&daemon.cli_ok(&durations)).unwrap();
    let times: Vec<u64> = rows
        .iter()
        .map(|row| row["equation_2_ns"].as_u64().unwrap())
        .collect();
    assert_eq!(times.len(), 20);
    assert!(times.is_sorted_by(|one, next| one >= next), "{times:?}");
    assert_eq!(times.last(), Some(&51_800_000));
    let refused = daemon.cli(&["profile", "durations", "--cpu-ms", "-1"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// The loop in a real group of the kernel: it gets its quota, and the log says period and quota.
#[test]
fn a_quota_is_profiled_from_inside() {
    let daemon = daemon();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.json").display().to_string();
    // A busy machine can only take more from it, so the share is bounded above. Each period has its throttle.
    let limit = ["--quota", "2000", "--period", "20000", "--seconds", "2"];
    let measured = daemon.cli(&[&["profile", "sched", "-o", &log], limit.as_slice()].concat());
    let told = String::from_utf8(measured.stderr).unwrap();
    assert!(measured.status.success(), "{told}");
    let found: Value = serde_json::from_str(&fs::read_to_string(&log).unwrap()).unwrap();
    let throttles = found["data"].as_array().unwrap();
    assert!(throttles.len() >= 10, "{told}");
    let without: u64 = throttles.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    assert!(without >= 1_500_000_000, "2 ms in 20 ms: {told}");
    assert!(told.contains("the kernel counted"), "{told}");
    // Its group is gone with it. Those of measurements that run beside this test are not.
    let groups = fs::read_dir("/sys/fs/cgroup/cpu").or_else(|_| fs::read_dir("/sys/fs/cgroup"));
    for group in groups.unwrap().flatten() {
        let name = group.file_name().to_string_lossy().into_owned();
        if let Some(pid) = name.strip_prefix("pilot-profile-") {
            assert!(Path::new("/proc").join(pid).exists(), "{name} is left");
        }
    }
    for wrong in [
        ["--quota", "500", "--period", "20000"],
        ["--quota", "5000", "--period", "2000000"],
    ] {
        let refused = daemon.cli(&[&["profile", "sched"], wrong.as_slice()].concat());
        assert_eq!(refused.status.code(), Some(2));
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(told.contains("the kernel takes periods of"), "{told}");
    }
}

#[test]
fn a_profile_that_is_told_to_end_leaves_no_group() {
    needs_root!();
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut profile = Command::new(env!("CARGO_BIN_EXE_pilot"))
            .args(["profile", "sched", "--quota", "20000", "--seconds", "600"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let name = format!("pilot-profile-{}", profile.id());
        let group = eventually("the loop is in its group", || {
            let group = found_below(Path::new("/sys/fs/cgroup"), &name, 4)?;
            let processes = fs::read_to_string(group.join("cgroup.procs")).ok()?;
            (!processes.is_empty()).then_some(group)
        });
        kill(Pid::from_raw(profile.id().cast_signed()), signal).unwrap();
        assert_eq!(profile.wait().unwrap().code(), Some(code), "{signal}");
        assert!(!group.exists(), "{signal}: {} is left", group.display());
    }
}

/// The folder of this name, at most so many folders below.
fn found_below(folder: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    let here = folder.join(name);
    if here.is_dir() {
        return Some(here);
    }
    let below = depth.checked_sub(1)?;
    let entries = fs::read_dir(folder).ok()?.flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| entry.path())
        .find_map(|inside| found_below(&inside, name, below))
}
