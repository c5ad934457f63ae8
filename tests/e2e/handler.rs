//! The handler contract: context, environment variables, results, exceptions, time-outs.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use pilot_harness::{Project, eventually, needs_root};
use serde_json::{Value, json};

use crate::{answer, daemon, failure, lab, plain};

/// A handler with these lines as its body.
fn body(lines: &str) -> String {
    let indented: Vec<String> = lines.lines().map(|line| format!("    {line}")).collect();
    format!(
        "import json, os, sys, time\n\ndef handler(event, context):\n{}\n",
        indented.join("\n")
    )
}

#[test]
fn the_context_has_lambdas_attributes() {
    let code = body(
        "return {k: getattr(context, k) for k in ('function_name', 'function_version', 'invoked_function_arn', \
         'memory_limit_in_mb', 'aws_request_id', 'log_group_name', 'log_stream_name')} | \
         {'remaining': context.get_remaining_time_in_millis(), 'identity': context.identity.cognito_identity_id, 'client': context.client_context}",
    );
    let daemon = lab(&code, json!({"memory_mb": 192, "timeout_s": 9}));
    let context = answer(&daemon, "lab", json!({}));
    assert_eq!(context["function_name"], "lab");
    assert_eq!(
        context["memory_limit_in_mb"].as_str(),
        Some("192"),
        "a string, as in Lambda: {context}"
    );
    assert_eq!(
        context["invoked_function_arn"],
        "arn:aws:lambda:us-east-1:000000000000:function:lab"
    );
    assert!(
        context["log_group_name"].as_str().unwrap().contains("lab"),
        "{context}"
    );
    assert!(
        !context["log_stream_name"].as_str().unwrap().is_empty(),
        "{context}"
    );
    let remaining = context["remaining"].as_u64().unwrap();
    assert!((5_000..=9_000).contains(&remaining), "{remaining}");
    assert_eq!(context["identity"], json!(null));
    assert_eq!(context["client"], json!(null));
}

#[test]
fn header_context_and_environment_name_the_same_version() {
    let code = body("return [context.function_version, os.environ['AWS_LAMBDA_FUNCTION_VERSION']]");
    let daemon = lab(&code, plain());
    let response = daemon.invoke("lab", &json!({})).ok();
    let executed = response.header("x-amz-executed-version").unwrap();
    assert_eq!(response.json(), json!([executed, executed]));
}

#[test]
fn the_environment_is_lambdas_and_the_users_and_nothing_of_the_daemons() {
    let keys = json!({"memory_mb": 192, "environment": {"LEVEL": "info", "EMPTY": ""}});
    let daemon = lab(&body("return dict(os.environ)"), keys);
    let environment = answer(&daemon, "lab", json!({}));
    for (key, value) in [
        ("LEVEL", "info"),
        ("EMPTY", ""),
        ("AWS_LAMBDA_FUNCTION_NAME", "lab"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "192"),
        ("LAMBDA_TASK_ROOT", "/var/task"),
        ("_HANDLER", "app.handler"),
    ] {
        assert_eq!(environment[key], value, "{key}");
    }
    for key in [
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_EXECUTION_ENV",
        "PATH",
    ] {
        assert!(
            environment[key].is_string(),
            "{key} is not set: {environment}"
        );
    }
    for key in [
        "PILOT_ENDPOINT",
        "PILOT_TOKEN",
        "HOSTNAME",
        "SSH_CONNECTION",
        "CARGO_MANIFEST_DIR",
        "OLDPWD",
    ] {
        assert!(environment.get(key).is_none(), "{key} leaks");
    }
}

#[test]
fn a_worker_keeps_its_globals_between_invocations_as_in_lambda() {
    let code = "count = 0\ndef handler(event, context):\n    global count\n    count += 1\n    return count\n";
    let daemon = lab(code, plain());
    for expected in 1..=3 {
        assert_eq!(answer(&daemon, "lab", json!({})), expected);
    }
}

#[test]
fn an_exception_becomes_type_message_and_stack_trace() {
    let code = "class NoSuchOrder(LookupError):\n    pass\n\ndef find(number):\n    raise NoSuchOrder(f'order {number}')\n\ndef handler(event, context):\n    return find(event['number'])\n";
    let daemon = lab(code, plain());
    let error = failure(&daemon, "lab", json!({"number": 17}));
    assert_eq!(error["errorType"], "NoSuchOrder");
    assert_eq!(error["errorMessage"], "order 17");
    let trace: Vec<&str> = error["stackTrace"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    assert_eq!(trace.len(), 2, "the user's frames alone: {trace:?}");
    assert!(
        trace[0].contains("/var/task/app.py") && trace[0].contains("line 8"),
        "{trace:?}"
    );
    assert!(
        trace[1].contains("line 5") && trace[1].contains("find"),
        "{trace:?}"
    );
    assert_eq!(
        failure(&daemon, "lab", json!({}))["errorType"],
        "KeyError",
        "the worker goes on"
    );
}

#[test]
fn exceptions_that_are_hard_to_print_are_reported_all_the_same() {
    let code = body(
        "class Mute(Exception):\n    def __str__(self): raise RuntimeError('no')\n\
         what = event['what']\n\
         if what == 'mute': raise Mute()\n\
         if what == 'surrogate': raise ValueError('\\udcff')\n\
         if what == 'long': raise ValueError('x' * 3_000_000)\n\
         if what == 'deep':\n    def down(): down()\n    down()\n\
         if what == 'group': raise ExceptionGroup('both', [ValueError(1), KeyError(2)])\n\
         if what == 'interrupt': raise KeyboardInterrupt()\n\
         if what == 'generator': raise GeneratorExit()\n\
         return what",
    );
    let daemon = lab(&code, plain());
    // A lone surrogate is written as a JSON escape, which this suite's parser does not accept.
    let half = daemon.invoke("lab", &json!({"what": "surrogate"}));
    assert!(half.text().contains("ValueError"), "{}", half.text());
    for (what, kind) in [
        ("mute", "Mute"),
        ("long", "ValueError"),
        ("deep", "RecursionError"),
        ("group", "ExceptionGroup"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
    ] {
        let error = failure(&daemon, "lab", json!({"what": what}));
        assert_eq!(error["errorType"], kind, "{what}");
        assert_eq!(
            answer(&daemon, "lab", json!({"what": "on"})),
            "on",
            "after {what}"
        );
    }
}

#[test]
fn a_result_that_is_not_json_is_a_marshal_error() {
    let daemon = lab(
        &body("return {'set': {1, 2}, 'complex': [1j], 'self': object()}[event]"),
        plain(),
    );
    for event in ["set", "complex", "self"] {
        let error = failure(&daemon, "lab", json!(event));
        assert_eq!(error["errorType"], "Runtime.MarshalError", "{error}");
        assert!(
            error["errorMessage"]
                .as_str()
                .unwrap()
                .contains("JSON serializable"),
            "{error}"
        );
    }
}

#[test]
fn a_timeout_says_so_in_lambdas_words_within_a_moment() {
    let daemon = lab(
        &body("time.sleep(event)\nreturn 'slept'"),
        json!({"timeout_s": 2}),
    );
    let response = daemon.invoke("lab", &json!(20));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("x-amz-function-error"), Some("Unhandled"));
    let error = response.json();
    let message = error["errorMessage"].as_str().unwrap();
    assert!(
        message.ends_with("Task timed out after 2.00 seconds"),
        "{message}"
    );
    assert!(
        (2.0..6.0).contains(&response.head_after.as_secs_f64()),
        "{:?}",
        response.head_after
    );
    assert_eq!(answer(&daemon, "lab", json!(0)), "slept");
}

#[test]
fn a_timeout_ends_that_worker_and_nothing_else() {
    let daemon = lab(
        &body("time.sleep(event)\nreturn 'slept'"),
        json!({"timeout_s": 5}),
    );
    daemon.upload_code(
        "other",
        &json!({"timeout_s": 30}),
        &body("time.sleep(event)\nreturn 'slept'"),
    );
    thread::scope(|scope| {
        let other = scope.spawn(|| answer(&daemon, "other", json!(6)));
        let beside = scope.spawn(|| {
            eventually("the slow one runs", || {
                (daemon.workers("lab", "busy") == 1).then_some(())
            });
            // It runs when the slow one is ended, and no longer than half its own timeout.
            thread::sleep(Duration::from_millis(3_500));
            answer(&daemon, "lab", json!(2.5))
        });
        let slow = failure(&daemon, "lab", json!(60));
        assert!(
            slow["errorMessage"].as_str().unwrap().contains("timed out"),
            "{slow}"
        );
        assert_eq!(beside.join().unwrap(), "slept");
        assert_eq!(other.join().unwrap(), "slept");
    });
    eventually("the pool is at rest", || {
        (daemon.workers("lab", "busy") == 0).then_some(())
    });
}

#[test]
fn a_handler_that_will_not_be_interrupted_is_ended_at_its_timeout_too() {
    let code = body(
        "import signal, threading\n\
         for number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n\
         for _ in range(4): threading.Thread(target=time.sleep, args=(1000,)).start()\n\
         if event: \n    while True: pass\nreturn 'ok'",
    );
    let daemon = lab(&code, json!({"timeout_s": 2}));
    let error = failure(&daemon, "lab", json!(1));
    assert!(
        error["errorMessage"]
            .as_str()
            .unwrap()
            .contains("timed out after 2.00 seconds"),
        "{error}"
    );
    assert_eq!(answer(&daemon, "lab", json!(0)), "ok");
}

#[test]
fn the_remaining_time_shrinks() {
    let daemon = lab(
        &body(
            "first = context.get_remaining_time_in_millis()\ntime.sleep(0.2)\nreturn first - context.get_remaining_time_in_millis()",
        ),
        plain(),
    );
    let shrunk = answer(&daemon, "lab", json!({})).as_u64().unwrap();
    // Milliseconds, and no other unit.
    assert!((190..60_000).contains(&shrunk), "{shrunk}");
}

#[test]
fn each_kind_of_number_and_text_survives() {
    let daemon = lab(&body("return event"), plain());
    let event: Value = serde_json::from_str(
        r#"{"big": 123456789012345678, "float": 0.1, "neg": -0.5, "exp": 1e300, "text": "\u0000\"\\/\u2028é😀", "": []}"#,
    )
    .unwrap();
    assert_eq!(answer(&daemon, "lab", event.clone()), event);
}

#[test]
fn network_host_is_the_hosts_network_with_and_without_a_template() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = "import socket\ndef handler(event, context):\n    try:\n        socket.create_connection(('127.0.0.1', event), 5).close()\n    except OSError as error:\n        return type(error).__name__\n    return 'connected'\n";
    let daemon = lab(code, json!({"network": "host"}));
    daemon.upload_code(
        "spawned",
        &json!({"network": "host", "template": "off"}),
        code,
    );
    daemon.upload_code("none", &json!({"network": "none"}), code);
    for function in ["lab", "spawned"] {
        assert_eq!(answer(&daemon, function, json!(port)), "connected");
        let (_, seen) = listener.accept().unwrap();
        assert!(seen.ip().is_loopback(), "{seen}");
    }
    assert_eq!(
        answer(&daemon, "none", json!(port)),
        "ConnectionRefusedError"
    );
}

#[test]
fn a_function_finds_its_python_path_its_host_and_its_system() {
    needs_root!();
    let daemon = daemon();
    let app = "import socket\nimport shared_code\n\n\ndef handler(event, context):\n    with open('/etc/os-release') as file:\n        \
               return [shared_code.X, socket.gethostbyname(socket.gethostname()), len(file.read()) > 0]\n";
    daemon.deploy(
        &Project::empty()
            .file("app.py", app)
            .file("lib/shared_code.py", "X = 7\n")
            .manifest(
                "lab",
                "handler = \"app.handler\"\nenvironment = { PYTHONPATH = \"lib\" }",
            ),
    );
    assert_eq!(
        answer(&daemon, "lab", json!({})),
        json!([7, "127.0.0.1", true])
    );
}
