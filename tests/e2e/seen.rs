//! Observability: response headers, REPORT lines, captured output, metrics, health, the OpenAPI document.

use pilot_harness::{DaemonOptions, Request, eventually};
use serde_json::json;

use crate::{ECHO, daemon, daemon_with, lab, plain};

#[test]
fn every_response_says_cold_or_warm_and_has_server_timing_failures_too() {
    let daemon = lab(
        "def handler(event, context):\n    if event == 'raise': raise ValueError()\n    if event == 'exit': import os; os._exit(1)\n    return 1\n",
        plain(),
    );
    for event in ["ok", "raise", "exit", "ok", "ok"] {
        let response = daemon.invoke("lab", &json!(event));
        assert!(
            matches!(response.start_kind(), "cold" | "warm"),
            "{event}: {response:?}"
        );
        let timing = response.header("server-timing").unwrap();
        let named: Vec<&str> = timing
            .split(", ")
            .filter_map(|phase| phase.split(';').next())
            .collect();
        let mut wanted = vec!["admit", "lease"];
        if response.start_kind() == "cold" {
            wanted.extend(["fork", "sandbox", "init"]);
        }
        wanted.extend(["start", "handler", "answer"]);
        for phase in wanted {
            assert!(named.contains(&phase), "{event}: no {phase} in {timing}");
        }
    }
    let url = daemon.get("/fn/lab/").ok();
    assert!(matches!(url.start_kind(), "cold" | "warm"));
    assert!(url.header("server-timing").is_some());
}

#[test]
fn the_log_has_a_report_line_and_the_output_of_each_invocation() {
    let daemon = lab(
        "import logging, sys\nlogging.getLogger().setLevel('INFO')\ndef handler(event, context):\n    print('said', event)\n    sys.stderr.write('whispered\\n')\n    logging.info('logged %s', event)\n",
        json!({"memory_mb": 192}),
    );
    let id = daemon
        .invoke("lab", &json!("one"))
        .header("x-amzn-requestid")
        .unwrap()
        .to_owned();
    let log = eventually("the REPORT line is there", || {
        let log = daemon.logs("lab");
        log.contains(&format!("REPORT RequestId: {id}"))
            .then_some(log)
    });
    for words in [
        "said one",
        "whispered",
        "logged one",
        "Memory Size: 192 MB",
        "Duration: ",
        "Billed Duration: ",
        "Start: ",
        "Status: ok",
    ] {
        assert!(log.contains(words), "no {words:?} in {log}");
    }
    daemon.invoke("lab", &json!("two"));
    let log = eventually("the second is there", || {
        let log = daemon.logs("lab");
        log.contains("said two").then_some(log)
    });
    assert!(log.find("said one") < log.find("said two"), "{log}");
}

#[test]
fn output_that_is_not_text_or_has_no_end_of_line_is_kept() {
    let daemon = lab(
        "import os\ndef handler(event, context):\n    os.write(1, b'\\xff\\xfe raw, no end of line')\n",
        plain(),
    );
    let (_, log) = daemon.invoke_tail("lab", &json!({}));
    assert!(log.contains("raw, no end of line"), "{log}");
    let (_, log) = daemon.invoke_tail("lab", &json!({}));
    assert_eq!(log.matches("raw, no end of line").count(), 1, "{log}");
}

#[test]
fn output_of_a_worker_that_dies_is_kept() {
    let daemon = lab(
        "import os\ndef handler(event, context):\n    print('last words', flush=True)\n    os.abort()\n",
        plain(),
    );
    let (_, log) = daemon.invoke_tail("lab", &json!({}));
    assert!(log.contains("last words"), "{log}");
}

#[test]
fn metrics_have_opentelemetrys_faas_names_and_count() {
    let daemon = lab(
        "def handler(event, context):\n    return 1 / event\n",
        plain(),
    );
    for event in [1, 1, 0] {
        daemon.invoke("lab", &json!(event));
    }
    let text = eventually("three invocations are counted", || {
        let response = daemon.get("/metrics").ok();
        assert!(
            response.header("content-type").unwrap().contains("text"),
            "{response:?}"
        );
        let text = response.text();
        (sum(&text, "faas_invocations") >= 2.0 && sum(&text, "faas_errors") >= 1.0).then_some(text)
    });
    for name in [
        "faas_coldstarts",
        "faas_invoke_duration",
        "faas_init_duration",
        "pilot_worker_wait_seconds",
        "faas_mem_usage",
        "faas_timeouts",
    ] {
        assert!(text.contains(name), "no {name} in {text}");
    }
    assert!(
        text.contains("faas_name=\"lab\"")
            || text.contains("faas_invoked_name=\"lab\"")
            || text.contains("function=\"lab\""),
        "{text}"
    );
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let value = line.rsplit(' ').next().unwrap();
        assert!(
            value.parse::<f64>().is_ok() || value == "+Inf",
            "not a sample: {line}"
        );
    }
}

#[test]
fn the_wait_for_a_worker_is_measured_also_behind_another_ones_start() {
    let daemon = lab(
        "import time\ndef handler(event, context):\n    time.sleep(1)\n",
        json!({"scale": {"max": 1}}),
    );
    daemon.scale("lab", 0);
    let request = Request::new("POST", "/2015-03-31/functions/lab/invocations").body("{}");
    let mut connections: Vec<_> = (0..3).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&request);
    }
    for mut connection in connections {
        connection.receive("POST").ok();
    }
    let text = eventually("three invocations are counted", || {
        let text = daemon.get("/metrics").ok().text();
        (sum(&text, "faas_invocations") >= 3.0).then_some(text)
    });
    // One has its own start. The second waits for that one's handler as well, and the third for two.
    // That is three seconds, less the time by which one request came after another.
    let waited = sum(&text, "pilot_worker_wait_seconds_sum");
    assert!(waited >= 2.0, "{waited} s in {text}");
    assert_eq!(sum(&text, "pilot_worker_wait_seconds_count"), 3.0);
}

/// The sum of all samples of the counter `name` (with or without `_total`).
fn sum(text: &str, name: &str) -> f64 {
    text.lines()
        .filter(|line| {
            line.strip_prefix(name)
                .map(|rest| rest.strip_prefix("_total").unwrap_or(rest))
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn health_and_readiness_answer() {
    let daemon = daemon();
    assert_eq!(daemon.get("/healthz").status, 200);
    assert_eq!(daemon.get("/readyz").status, 200);
}

#[test]
fn the_openapi_document_names_every_call_of_the_control_api() {
    let daemon = daemon();
    let document = daemon.get("/_pilot/v1/openapi.json").ok().json();
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3."),
        "{document}"
    );
    let paths = document["paths"].as_object().unwrap();
    for (path, method) in [
        ("/_pilot/v1/functions", "get"),
        ("/_pilot/v1/functions/{name}", "put"),
        ("/_pilot/v1/functions/{name}", "get"),
        ("/_pilot/v1/functions/{name}", "delete"),
        ("/_pilot/v1/functions/{name}/scale", "post"),
        ("/_pilot/v1/functions/{name}/logs", "get"),
        ("/_pilot/v1/version", "get"),
    ] {
        let found = paths
            .get(path)
            .or_else(|| paths.get(&path.replace("{name}", "{NAME}")));
        assert!(
            found.is_some_and(|calls| calls.get(method).is_some()),
            "{method} {path} is missing: {:?}",
            paths.keys()
        );
    }
}

#[test]
fn the_control_api_answers_errors_in_json() {
    let daemon = lab(ECHO, plain());
    let cases = [
        (Request::new("GET", "/_pilot/v1/functions/nobody"), 404),
        (Request::new("DELETE", "/_pilot/v1/functions/nobody"), 404),
        (Request::new("GET", "/_pilot/v1/functions/nobody/logs"), 404),
        (
            Request::new("POST", "/_pilot/v1/functions/nobody/scale")
                .header("content-type", "application/json")
                .body("{\"workers\": 0}"),
            404,
        ),
        (
            Request::new("POST", "/_pilot/v1/functions/lab/scale")
                .header("content-type", "application/json")
                .body("{\"worker\": 0}"),
            400,
        ),
        (Request::new("GET", "/_pilot/v1/nothing"), 404),
        // What the extractors of the web framework refuse, before a handler sees it.
        (
            Request::new("POST", "/_pilot/v1/functions/lab/scale").body("x".repeat(70_000)),
            413,
        ),
        (Request::new("GET", "/_pilot/v1/functions/%ff"), 400),
        (
            Request::new("GET", "/_pilot/v1/functions/lab?values=x"),
            400,
        ),
    ];
    for (request, status) in cases {
        let response = daemon.send(&request);
        assert!(
            response.status == status || (status == 400 && response.status == 422),
            "{} {}: {} {}",
            request.method,
            request.target,
            response.status,
            response.text()
        );
        let body = response.json();
        assert!(
            body["code"].is_string() && body["message"].is_string(),
            "{body}"
        );
    }
}

#[test]
fn a_configuration_file_that_is_missing_is_named() {
    let home = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(home.path().join("absent.toml"))
        .arg("--data-dir")
        .arg(home.path().join("data"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("absent.toml"),
        "names the file that is missing: {said}"
    );
}

#[test]
fn an_unknown_key_of_pilotd_toml_names_the_nearest_known_one() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("pilotd.toml");
    std::fs::write(&config, "[limits]\nqeue = 5\n").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .arg("--data-dir")
        .arg(home.path().join("data"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        said.contains("qeue") && said.contains("queue") && said.contains("pilotd.toml"),
        "{said}"
    );
}

#[test]
fn the_daemons_log_is_json_on_request() {
    let daemon = daemon_with(DaemonOptions {
        arguments: vec!["--log-format".into(), "json".into()],
        ..DaemonOptions::default()
    });
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    assert!(!lines.is_empty());
    for line in lines {
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok(),
            "not JSON: {line}"
        );
    }
}

#[test]
fn a_timeout_and_a_crash_are_reported_whole() {
    let code = "import os, time\ndef handler(event, context):\n    if event == 'crash':\n        os._exit(3)\n    time.sleep(60)\n";
    // Long enough that the other one crashes before it.
    let daemon = lab(code, json!({"timeout_s": 2}));
    for (event, status) in [("sleep", "timeout"), ("crash", "crash")] {
        let answer = daemon.invoke("lab", &json!(event));
        let id = answer.header("x-amzn-requestid").unwrap().to_owned();
        let log = eventually("it is reported", || {
            let log = daemon.logs("lab");
            log.contains(&format!("REPORT RequestId: {id}"))
                .then_some(log)
        });
        assert!(log.contains(&format!("START RequestId: {id}")), "{log}");
        let mut lines = log.lines();
        let report = lines.find(|line| line.contains(&id) && line.contains(" platform REPORT"));
        let report = report.unwrap();
        assert!(report.contains(&format!("Status: {status}")), "{report}");
        assert!(report.contains("\tMax Memory Used: "), "{report}");
        let duration = report.split("\tDuration: ").nth(1).unwrap();
        let ms: f64 = duration.split(' ').next().unwrap().parse().unwrap();
        assert!(ms > 0.0, "{report}");
        let timing = answer.header("server-timing").unwrap();
        assert!(
            timing.contains("start;dur=") && timing.contains("handler;dur="),
            "{timing}"
        );
        assert!(status != "timeout" || ms >= 2000.0, "{report}");
    }
    let metrics = daemon.get("/metrics").ok().text();
    let count = "faas_invoke_duration_seconds_count{faas_name=\"lab\",faas_trigger=\"http\"} 2";
    assert!(metrics.contains(count), "{metrics}");
}
