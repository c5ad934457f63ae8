//! `runtime = "node"`: handlers in Node.js, specialised from a running process.

use std::io::Read as _;
use std::net::TcpListener;

use pilot_harness::{Project, Request, eventually, needs_root};
use serde_json::{Value, json};

use super::node_lab;
use crate::{answer, daemon, failure};

#[test]
fn an_async_handler_answers() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = async (event, context) => ({ event, id: context.awsRequestId.length, name: context.functionName });\n",
        "",
    );
    assert_eq!(
        answer(&daemon, "lab", json!({"k": 1})),
        json!({"event": {"k": 1}, "id": 36, "name": "lab"})
    );
    assert_eq!(daemon.invoke("lab", &json!(1)).start_kind(), "warm");
}

#[test]
fn es_modules_and_top_level_await_work() {
    needs_root!();
    let daemon = daemon();
    daemon.deploy(
        &Project::empty()
            .file(
                "index.mjs",
                "import { basename } from 'node:path';\nconst kept = await Promise.resolve('there');\nexport const handler = async () => basename('/a/' + kept);\n",
            )
            .manifest("lab", "runtime = \"node\""),
    );
    assert_eq!(answer(&daemon, "lab", json!({})), "there");
}

#[test]
fn what_it_throws_is_the_functions_error() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = async () => { throw new RangeError('too far'); };\n",
        "",
    );
    let error = failure(&daemon, "lab", json!({}));
    assert_eq!(error["errorType"], "RangeError");
    assert_eq!(error["errorMessage"], "too far");
}

#[test]
fn an_uncaught_error_is_that_of_its_own_invocation() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = async (event) => {
  if (!event.boom) return 'fine';
  setTimeout(() => { throw new Error('later'); }, 5);
  await new Promise((resolve) => setTimeout(resolve, 5000));
};
",
        "",
    );
    for _ in 0..10 {
        let error = failure(&daemon, "lab", json!({"boom": true}));
        assert_eq!(error["errorMessage"], "later");
        // At once: the process of the one before is about to end.
        assert_eq!(answer(&daemon, "lab", json!({})), "fine");
    }
}

#[test]
fn an_error_after_its_invocation_costs_the_next_one_nothing() {
    needs_root!();
    // The error comes while the next call waits for Node.js to read it: after its answer, it says so and reads nothing until the test
    // has made a file.
    let code = "const fs = require('node:fs'), net = require('node:net');
exports.handler = async (event) => {
  const told = net.connect(Number(process.env.TELL), '127.0.0.1');
  await new Promise((resolve) => told.on('connect', resolve));
  setTimeout(() => {
    told.write('busy');
    while (!fs.existsSync(`/var/task/${event}`));
    Promise.reject(new Error('late'));
  }, 20);
};
";
    let ear = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ear.local_addr().unwrap().port();
    let keys = format!("network = \"host\"\nenvironment.TELL = \"{port}\"");
    let daemon = node_lab(code, &keys);
    let version = daemon.describe("lab")["version"].clone();
    let deployed = daemon.data_dir().join("code");
    let deployed = deployed.join(version.as_str().unwrap());
    let numbers = ["first", "second", "third"];
    daemon.invoke("lab", &json!(numbers[0])).ok();
    for at in 1..numbers.len() {
        let before = numbers[at - 1];
        let (mut worker, _) = ear.accept().unwrap();
        worker.read_exact(&mut [0; 4]).unwrap();
        let (response, tail) = std::thread::scope(|scope| {
            let next = scope.spawn(|| daemon.invoke_tail("lab", &json!(numbers[at])));
            eventually("it has the next call", || {
                (daemon.workers("lab", "busy") == 1).then_some(())
            });
            // From the lease to the call in the worker's channel.
            std::thread::sleep(std::time::Duration::from_millis(300));
            std::fs::write(deployed.join(before), "").unwrap();
            next.join().unwrap()
        });
        assert_eq!(response.start_kind(), "cold", "{tail}");
        assert!(tail.contains("late"), "{tail}");
    }
}

#[test]
fn a_handler_that_cannot_be_loaded_is_told_by_the_deployment() {
    needs_root!();
    let daemon = daemon();
    let syntax = Project::empty()
        .file("index.js", "exports.handler = (\n")
        .manifest("lab", "runtime = \"node\"");
    let told = daemon.deploy_fails(&syntax);
    assert!(told.contains("SyntaxError"), "{told}");
    let missing = Project::empty()
        .file("other.js", "exports.handler = async () => 1;\n")
        .manifest("lab", "runtime = \"node\"");
    let told = daemon.deploy_fails(&missing);
    assert!(told.contains("index"), "{told}");
}

#[test]
fn it_has_the_environment_and_the_zone_of_its_function() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = async () => ({ colour: process.env.COLOUR, zone: new Date(0).getTimezoneOffset(), cwd: process.cwd(), root: process.env.LAMBDA_TASK_ROOT });\n",
        "environment.COLOUR = \"blue\"\nenvironment.TZ = \"Asia/Tokyo\"",
    );
    let seen = answer(&daemon, "lab", json!({}));
    assert_eq!(
        seen,
        json!({"colour": "blue", "zone": -540, "cwd": "/var/task", "root": "/var/task"})
    );
}

#[test]
fn require_finds_modules_by_their_paths_from_the_root_of_the_code() {
    needs_root!();
    let daemon = daemon();
    let code = "const { name } = require('src/lib/name');\nexports.handler = async () => name;\n";
    let project = Project::empty()
        .file("index.js", code)
        .file("src/lib/name.js", "exports.name = 'found';\n");
    daemon.deploy(&project.manifest("lab", "runtime = \"node\""));
    assert_eq!(answer(&daemon, "lab", json!({})), "found");
}

#[test]
fn its_user_has_a_name_on_every_start_from_the_pool() {
    needs_root!();
    let daemon = node_lab(
        "const os = require('os');\nexports.handler = async () => { const { username, uid, homedir } = os.userInfo(); return [username, uid === process.getuid(), homedir]; };\n",
        "scale.max = 1",
    );
    for _ in 0..3 {
        let seen = answer(&daemon, "lab", json!({}));
        assert_eq!(seen, json!(["sbx_user", true, "/tmp"]));
        daemon.scale("lab", 0);
    }
}

#[test]
fn what_it_prints_is_in_the_log_of_its_invocation() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = async (event) => { console.log('printed', event.n); return 1; };\n",
        "",
    );
    let (response, tail) = daemon.invoke_tail("lab", &json!({"n": 7}));
    response.ok();
    assert!(tail.contains("printed 7"), "{tail}");
}

#[test]
fn what_node_reads_at_its_start_is_there_when_it_starts() {
    needs_root!();
    // The worker's own code is loaded late, and the hook must be loaded before it.
    let loader = "export async function resolve(name, context, next) {\n  return name === 'made:up' ? { url: 'data:text/javascript,export default 42', shortCircuit: true } : next(name, context);\n}\n";
    let code = "import made from 'made:up';\nexport const handler = async () => ({ made, limit: Error.stackTraceLimit, options: process.env.NODE_OPTIONS, threads: process.env.UV_THREADPOOL_SIZE, late: globalThis.late });\n";
    let options = "--stack-trace-limit=7 --no-warnings --experimental-loader ./loader.mjs --import ./late.mjs";
    let daemon = daemon();
    daemon.deploy(
        &Project::empty()
            .file("loader.mjs", loader)
            .file("late.mjs", "globalThis.late = true;\n")
            .file("index.mjs", code)
            .manifest(
                "lab",
                &format!(
                    "runtime = \"node\"\nenvironment.NODE_OPTIONS = \"{options}\"\nenvironment.UV_THREADPOOL_SIZE = \"2\""
                ),
            ),
    );
    let seen = json!({"made": 42, "limit": 7, "options": options, "threads": "2", "late": true});
    for _ in 0..2 {
        assert_eq!(answer(&daemon, "lab", json!({})), seen);
        // The next worker uses a kept runtime.
        daemon.scale("lab", 0);
        eventually("a Node.js waits", || {
            let runtimes = daemon.describe("lab")["runtimes"].clone();
            (runtimes["base"]["available"].as_u64() >= Some(1)).then_some(())
        });
    }
    let line = daemon.describe("lab")["runtimes"]["line"].to_string();
    assert!(
        line.contains("started with NODE_OPTIONS and UV_THREADPOOL_SIZE"),
        "{line}"
    );
    assert_eq!(daemon.logs("lab").matches("no effect").count(), 0);
}

#[test]
fn no_other_function_gets_a_node_that_was_started_with_options() {
    needs_root!();
    let daemon = daemon();
    let code = "exports.handler = async () => Error.stackTraceLimit;\n";
    for (name, options) in [
        ("seven", "--stack-trace-limit=7"),
        ("plain", ""),
        ("nine", "--stack-trace-limit=9"),
    ] {
        let keys = format!(
            "runtime = \"node\"\nowner = \"team\"\nreuse = \"once\"\nenvironment.NODE_OPTIONS = \"{options}\""
        );
        daemon.deploy(
            &Project::empty()
                .file("index.js", code)
                .manifest(name, &keys),
        );
    }
    for _ in 0..4 {
        for (name, limit) in [("seven", 7), ("plain", 10), ("nine", 9)] {
            assert_eq!(answer(&daemon, name, json!({})), limit, "{name}");
        }
    }
}

#[test]
fn options_that_node_refuses_are_told_by_the_deployment() {
    needs_root!();
    let told = daemon().deploy_fails(
        &Project::empty()
            .file("index.js", "exports.handler = async () => 1;\n")
            .manifest(
                "lab",
                "runtime = \"node\"\nenvironment.NODE_OPTIONS = \"--no-such-option\"",
            ),
    );
    assert!(told.contains("--no-such-option"), "{told}");
}

#[test]
fn its_log_is_json_where_the_function_says_so() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = async (event) => {\n  console.log('a', 1); console.debug('unseen'); console.error(new RangeError('far'));\n  if (event.fail) throw new TypeError('wrong');\n};\n",
        "environment.AWS_LAMBDA_LOG_FORMAT = \"JSON\"",
    );
    let (response, tail) = daemon.invoke_tail("lab", &json!({}));
    let id = response.ok().header("x-amzn-requestid").unwrap().to_owned();
    let lines = json_lines(&tail);
    assert_eq!(lines.len(), 2, "{tail}");
    assert_eq!(lines[0]["level"], "INFO");
    assert_eq!(lines[0]["message"], "a 1");
    assert_eq!(lines[0]["requestId"], id.as_str());
    assert!(lines[0]["timestamp"].as_str().unwrap().ends_with('Z'));
    assert_eq!(lines[1]["level"], "ERROR");
    assert_eq!(lines[1]["message"]["errorType"], "RangeError");
    assert_eq!(lines[1]["message"]["errorMessage"], "far");
    assert_eq!(lines[1]["message"]["stackTrace"][0], "RangeError: far");
    let (_, tail) = daemon.invoke_tail("lab", &json!({"fail": true}));
    assert_eq!(json_lines(&tail)[2]["message"]["errorType"], "TypeError");
}

/// The lines of a log that are JSON.
fn json_lines(log: &str) -> Vec<Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[test]
fn its_function_url_streams() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = awslambda.streamifyResponse(async (event, stream) => {\n  stream = awslambda.HttpResponseStream.from(stream, { statusCode: 201, headers: { 'x-made': 'here' } });\n  for (const part of ['one ', 'two ', 'three']) stream.write(part);\n  stream.end();\n});\n",
        "",
    );
    let response = daemon.get("/fn/lab/");
    assert_eq!(response.status, 201, "{}", response.text());
    assert_eq!(response.header("x-made"), Some("here"));
    assert_eq!(response.text(), "one two three");
}

#[test]
fn a_streamed_payload_begins_with_what_the_function_has_set() {
    needs_root!();
    let daemon = node_lab(
        "exports.handler = awslambda.streamifyResponse(async (event, stream) => {\n  if (event.set) stream = awslambda.HttpResponseStream.from(stream, { statusCode: 201, headers: { 'x-made': 'here' }, cookies: ['a=1', 'b=2'] });\n  stream.write('one ');\n  await new Promise((done) => setTimeout(done, 50));\n  if (event.fail) throw new Error('too late');\n  stream.write('two');\n  stream.end();\n});\n",
        "",
    );
    let streamed = |event: &Value| {
        let path = "/2021-11-15/functions/lab/response-streaming-invocations";
        let request = Request::new("POST", path).body(event.to_string());
        daemon.send(&request).ok().text()
    };
    let set = streamed(&json!({"set": true}));
    let prelude = r#"{"statusCode":201,"headers":{"content-type":"application/octet-stream","x-made":"here"},"cookies":["a=1","b=2"]}"#;
    assert!(
        set.contains(&format!("{prelude}\0\0\0\0\0\0\0\0")),
        "{set:?}"
    );
    assert!(set.contains("one ") && set.contains("two"), "{set:?}");
    assert!(!streamed(&json!({})).contains("statusCode"));
    // Without a stream, what fails after its first byte is an error of the function.
    let failed = failure(&daemon, "lab", json!({"fail": true}));
    assert_eq!(failed["errorMessage"], "too late");
    let whole = daemon.invoke("lab", &json!({})).ok();
    assert_eq!(whole.text(), "one two");
    let whole = daemon.invoke("lab", &json!({"set": true})).ok();
    assert_eq!(whole.text(), format!("{prelude}\0\0\0\0\0\0\0\0one two"));
}

#[test]
fn its_output_may_be_opened_as_dev_stdout() {
    needs_root!();
    let code = "const fs = require('fs');\nexports.handler = async () => { fs.writeFileSync('/dev/stdout', 'opened\\n'); return 1; };\n";
    let daemon = node_lab(code, "");
    assert_eq!(answer(&daemon, "lab", json!({})), json!(1));
    let log = daemon.log_texts("lab");
    assert!(log.contains("opened\n"), "{log}");
}
