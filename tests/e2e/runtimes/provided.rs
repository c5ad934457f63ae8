//! `runtime = "provided"`: any program that polls the Lambda Runtime API.

use std::time::{Duration, Instant};

use pilot_harness::{Project, Request, needs_root};
use serde_json::{Value, json};

use super::{provided, provided_lab};
use crate::{answer, daemon, failure};

const ECHO: &str = "def handler(event, headers):\n    return event\n";

#[test]
fn a_runtime_api_client_is_a_function() {
    needs_root!();
    let daemon = provided_lab(ECHO, "");
    assert_eq!(answer(&daemon, "lab", json!({"a": [1]})), json!({"a": [1]}));
    assert_eq!(daemon.invoke("lab", &json!(1)).start_kind(), "warm");
}

#[test]
fn it_finds_the_headers_and_variables_of_lambda() {
    needs_root!();
    let code = "import os\ndef handler(event, headers):\n    return {'headers': {k.lower(): v for k, v in headers.items()}, 'env': dict(os.environ), 'cwd': os.getcwd()}\n";
    let daemon = provided_lab(
        code,
        "handler = \"some.thing\"\nenvironment.COLOUR = \"blue\"\nmemory_mb = 192",
    );
    let seen = answer(&daemon, "lab", json!({}));
    let (headers, env) = (&seen["headers"], &seen["env"]);
    assert_eq!(
        headers["lambda-runtime-aws-request-id"]
            .as_str()
            .map(str::len),
        Some(36)
    );
    assert_eq!(
        headers["lambda-runtime-invoked-function-arn"],
        "arn:aws:lambda:us-east-1:000000000000:function:lab"
    );
    let deadline: u64 = headers["lambda-runtime-deadline-ms"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(deadline > 1_700_000_000_000);
    assert_eq!(env["_HANDLER"], "some.thing");
    assert_eq!(env["COLOUR"], "blue");
    assert_eq!(env["AWS_LAMBDA_FUNCTION_NAME"], "lab");
    assert_eq!(env["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"], "192");
    assert_eq!(env["LAMBDA_TASK_ROOT"], "/var/task");
    assert_eq!(seen["cwd"], "/var/task");
}

#[test]
fn a_variable_of_lambdas_that_the_function_sets_is_its_own_but_for_how_it_is_spoken_to() {
    needs_root!();
    let code = "import os\ndef handler(event, headers):\n    return [os.environ[name] for name in event]\n";
    let daemon = provided_lab(
        code,
        "environment.AWS_LAMBDA_FUNCTION_NAME = \"mine\"\nenvironment.AWS_REGION = \"here\"\nenvironment.AWS_LAMBDA_RUNTIME_API = \"nowhere:1\"",
    );
    let names = json!([
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_REGION",
        "AWS_LAMBDA_RUNTIME_API"
    ]);
    let seen = answer(&daemon, "lab", names);
    assert_eq!(seen, json!(["mine", "here", "127.0.0.1:9001"]));
}

#[test]
fn what_it_raises_is_the_functions_error() {
    needs_root!();
    let daemon = provided_lab(
        "def handler(event, headers):\n    raise KeyError('gone')\n",
        "",
    );
    let error = failure(&daemon, "lab", json!({}));
    assert_eq!(error["errorType"], "KeyError");
    assert_eq!(error["errorMessage"], "'gone'");
}

#[test]
fn an_error_of_its_initialisation_is_told_by_the_deployment() {
    needs_root!();
    let daemon = daemon();
    let told = daemon.deploy_fails(&provided("import no_such_module\n", ""));
    assert!(told.contains("no_such_module"), "{told}");
}

#[test]
fn a_program_that_is_not_there_is_named_by_the_deployment() {
    needs_root!();
    let daemon = daemon();
    let project = Project::empty()
        .file("readme.txt", "nothing")
        .manifest("lab", "runtime = \"provided\"");
    let told = daemon.deploy_fails(&project);
    assert!(told.contains("bootstrap"), "{told}");
}

#[test]
fn a_program_that_ends_without_polling_is_told_by_the_deployment() {
    needs_root!();
    let daemon = daemon();
    let project = Project::empty().file("readme.txt", "nothing").manifest(
        "lab",
        "runtime = \"provided\"\ncommand = [\"/bin/sh\", \"-c\", \"echo I am off; exit 3\"]",
    );
    let told = daemon.deploy_fails(&project);
    assert!(told.contains("status 3"), "{told}");
    assert!(told.contains("I am off"), "{told}");
}

#[test]
fn what_it_prints_is_in_the_log_of_its_invocation() {
    needs_root!();
    let code = "def handler(event, headers):\n    print('printed', event['n'], flush=True)\n    return 1\n";
    let daemon = provided_lab(code, "");
    let (response, tail) = daemon.invoke_tail("lab", &json!({"n": 7}));
    response.ok();
    assert!(tail.contains("printed 7"), "{tail}");
}

#[test]
fn a_timeout_ends_it_and_the_next_invocation_gets_a_new_worker() {
    needs_root!();
    let code =
        "import time\ndef handler(event, headers):\n    time.sleep(event)\n    return 'awake'\n";
    let daemon = provided_lab(code, "timeout_s = 2");
    let begun = Instant::now();
    let error = failure(&daemon, "lab", json!(30));
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(
        error["errorMessage"]
            .as_str()
            .unwrap()
            .contains("timed out"),
        "{error}"
    );
    assert_eq!(answer(&daemon, "lab", json!(0)), "awake");
}

#[test]
fn a_program_that_ends_in_mid_invocation_is_the_functions_error() {
    needs_root!();
    let code =
        "import os\ndef handler(event, headers):\n    if event: os._exit(9)\n    return 'there'\n";
    let daemon = provided_lab(code, "");
    let error = failure(&daemon, "lab", json!(1));
    assert!(
        error["errorMessage"].as_str().unwrap().contains("status 9"),
        "{error}"
    );
    assert_eq!(answer(&daemon, "lab", json!(0)), "there");
}

#[test]
fn each_worker_has_an_endpoint_of_its_own_and_nobody_else_is_there() {
    needs_root!();
    let code = "import os, socket\n\
        def handler(event, headers):\n\
        \x20   ears = [l.split()[1] for l in open('/proc/net/tcp').readlines()[1:] if l.split()[3] == '0A']\n\
        \x20   return {'net': os.readlink('/proc/self/ns/net'), 'ears': ears, 'api': os.environ['AWS_LAMBDA_RUNTIME_API']}\n";
    let daemon = provided_lab(code, "scale.spare = 1");
    let first = answer(&daemon, "lab", json!({}));
    assert_eq!(first["api"], "127.0.0.1:9001");
    assert_eq!(first["ears"].as_array().unwrap().len(), 1, "{first}");
}

#[test]
fn a_streamed_answer_arrives_with_its_status_and_headers() {
    needs_root!();
    let bootstrap = r#"
import http.client, json, os
HOST = os.environ["AWS_LAMBDA_RUNTIME_API"]
while True:
    api = http.client.HTTPConnection(HOST)
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    asked = api.getresponse(); asked.read()
    id = asked.headers["Lambda-Runtime-Aws-Request-Id"]
    def parts():
        yield json.dumps({"statusCode": 201, "headers": {"x-made": "here"}, "cookies": ["a=1"]}).encode() + b"\0" * 8
        for part in (b"one ", b"two ", b"three"):
            yield part
    api.request("POST", f"/2018-06-01/runtime/invocation/{id}/response", parts(), {
        "Lambda-Runtime-Function-Response-Mode": "streaming", "Transfer-Encoding": "chunked",
        "Content-Type": "application/vnd.awslambda.http-integration-response"}, encode_chunked=True)
    api.getresponse().read()
"#;
    let daemon = daemon();
    daemon.deploy(&Project::empty().file("b.py", bootstrap).manifest(
        "lab",
        "runtime = \"provided\"\ncommand = [\"python3\", \"b.py\"]",
    ));
    for _ in 0..2 {
        let response = daemon.get("/fn/lab/");
        assert_eq!(response.status, 201, "{}", response.text());
        assert_eq!(response.header("x-made"), Some("here"));
        assert_eq!(response.header("set-cookie"), Some("a=1"));
        assert_eq!(response.text(), "one two three");
    }
}

#[test]
fn two_invocations_run_at_once_in_one_worker_that_polls_twice() {
    needs_root!();
    let bootstrap = r#"
import http.client, json, os, threading
HOST = os.environ["AWS_LAMBDA_RUNTIME_API"]
both = threading.Barrier(2, timeout=20)
def serve():
    api = http.client.HTTPConnection(HOST)
    while True:
        api.request("GET", "/2018-06-01/runtime/invocation/next")
        asked = api.getresponse(); asked.read()
        id = asked.headers["Lambda-Runtime-Aws-Request-Id"]
        both.wait()
        api.request("POST", f"/2018-06-01/runtime/invocation/{id}/response", json.dumps(os.getpid()))
        api.getresponse().read()
threads = [threading.Thread(target=serve) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
"#;
    let daemon = daemon();
    daemon.deploy(&Project::empty().file("b.py", bootstrap).manifest(
        "lab",
        "runtime = \"provided\"\ncommand = [\"python3\", \"b.py\"]\nconcurrency = 2\nscale.max = 1",
    ));
    let mut connections = [daemon.connect(), daemon.connect()];
    let request = Request::new("POST", "/2015-03-31/functions/lab/invocations").body("{}");
    for connection in &mut connections {
        connection.send(&request);
    }
    let pids = connections
        .each_mut()
        .map(|connection| connection.receive("POST").ok().json());
    assert_eq!(pids[0], pids[1]);
}

#[test]
fn its_function_url_gets_payload_format_2_0() {
    needs_root!();
    let daemon = provided_lab(ECHO, "");
    let event: Value = daemon.get("/fn/lab/some/where?x=1").ok().json();
    assert_eq!(event["version"], "2.0");
    assert_eq!(event["rawPath"], "/some/where");
}
