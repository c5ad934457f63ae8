//! `runtime = "node"`: handlers in Node.js, specialised from a process that is up.

use pilot_harness::{Project, needs_root};
use serde_json::json;

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
