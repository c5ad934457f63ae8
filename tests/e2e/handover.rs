//! Functions invoke functions and hand data to them by reference.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};

use pilot_harness::{Daemon, Project, Request, eventually};
use serde_json::{Value, json};

use crate::access::{said, with_control_address};
use crate::{answer, daemon, failure};

/// Does what the event says.
const FIRST: &str = r#"
import hashlib, os, threading
import pilotlight

def handler(event, context):
    return globals()[event["do"]](event, context)

def told(error):
    return [type(error).__name__, str(error)]

def copied(event, context):
    data = os.urandom(event["bytes"])
    return [hashlib.sha256(data).hexdigest(), pilotlight.invoke("next", {"from": "first"}, data=data)]

def filled(event, context):
    with pilotlight.buffer(event["bytes"]) as buffer:
        buffer.view[:6] = b"pixels"
        before = hashlib.sha256(buffer.view).hexdigest()
        first = pilotlight.invoke("next", data=buffer)
        return [before, first, pilotlight.invoke("next", data=buffer)]

def in_three(event, context):
    return pilotlight.invoke("middle", data=b"from the first")

def nothing(event, context):
    return pilotlight.invoke("next", event.get("event", {}))

def to(event, context):
    try:
        return pilotlight.invoke(event["to"], {"do": event.get("then")}, data=b"x" if event.get("data") else None)
    except pilotlight.FunctionError as error:
        return ["failed", error.function, error.error_type, error.error_message]
    except pilotlight.Refused as error:
        return ["refused", error.reason, error.problem]

def over(event, context):
    data = bytes(event["bytes"])
    return pilotlight.map("waits", [{"n": n, "port": event["port"]} for n in range(16)], data=data)

def some_fail(event, context):
    events = [{"do": "fine", "n": n} for n in range(event["count"])]
    for n in event["failing"]:
        events[n]["do"] = "raises"
    try:
        return pilotlight.map("next", events)
    except pilotlight.MapError as error:
        return [str(error), {n: one.error_type for n, one in error.errors.items()}, [
            None if isinstance(one, Exception) else one["n"] for one in error.results]]

def in_threads(event, context):
    answers = {}
    def call(n):
        answers[n] = pilotlight.invoke("next", {"do": "fine", "n": n, "text": "x" * 300_000})["n"]
    threads = [threading.Thread(target=call, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(answers.items())

def mapped(event, context):
    buffer = pilotlight.buffer(4096)
    kept = buffer.view[:3]
    try:
        pilotlight.invoke("next", data=buffer)
    except pilotlight.BufferInUse as error:
        said = told(error)
    del kept
    said = [said]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        buffer.view[:1] = b"x"
        os.write(write, b".")
        threading.Event().wait()
    os.read(read, 1)
    for _ in range(2):
        try:
            said.append(pilotlight.invoke("next", data=buffer)["bytes"])
        except pilotlight.Refused as error:
            said.append(error.reason)
            os.kill(child, 9)
            os.waitpid(child, 0)
    return said

def unused(event, context):
    kept = [pilotlight.buffer(1 << 20) for _ in range(4)]
    kept[0].write(b"x")
    kept[1].seal()
    return len(kept)

def too_many(event, context):
    kept, said = [], None
    try:
        while True:
            kept.append(pilotlight.buffer(1))
    except pilotlight.Refused as error:
        said = error.reason
    count = len(kept)
    kept.clear()
    return [count, said, len(pilotlight.buffer(1))]

def too_large(event, context):
    try:
        pilotlight.buffer(1 << 40)
    except pilotlight.Refused as error:
        return told(error)

def dies(event, context):
    kept = pilotlight.buffer(1 << 20)
    threading.Thread(target=lambda: pilotlight.invoke("waits", event, data=kept), daemon=True).start()
    import socket
    with socket.create_connection(("127.0.0.1", event["own"])) as told:
        told.recv(1)
    os._exit(3)
"#;

const NEXT: &str = r#"
import hashlib

def handler(event, context):
    if event.get("do"):
        return globals()[event["do"]](event, context)
    data = context.inputs.get("data")
    if data is None:
        return event
    return {"digest": hashlib.sha256(data).hexdigest(), "bytes": len(data), "readonly": data.readonly, "event": event}

def fine(event, context):
    return {"n": event["n"]}

def raises(event, context):
    raise KeyError("what the next one says")

def sleeps(event, context):
    import time
    time.sleep(60)
"#;

/// Hands its input on.
const MIDDLE: &str = "import pilotlight\n\ndef handler(event, context):\n    return pilotlight.invoke('next', {'from': 'middle'}, data=context.inputs['data'])\n";

/// Holds its data until somebody lets it go. Returns which memory it has.
const WAITS: &str = r#"
import os, socket

def handler(event, context):
    data = context.inputs["data"]
    seen = [data[0], data[-1], len(data)]
    with socket.create_connection(("127.0.0.1", event["port"])) as told:
        told.recv(1)
    return [event.get("n"), os.fstat(context.inputs.raw("data").fileno()).st_ino, seen]
"#;

const LOOP: &str = r#"
import pilotlight

def handler(event, context):
    depth = event.get("depth", 1)
    try:
        return pilotlight.invoke("loop", {"depth": depth + 1})
    except pilotlight.Refused as error:
        return [depth, error.reason, error.problem]
"#;

const MIB: u64 = 1 << 20;

/// The functions above. `first` may invoke all but `loop`.
fn functions() -> Daemon {
    let daemon = daemon();
    let invokes = json!(["next", "middle", "wa*", "page", "gone"]);
    let first = json!({"invokes": invokes, "memory_mb": 512, "network": "host", "timeout_s": 40});
    daemon.upload_code("first", &first, FIRST);
    daemon.upload_code("next", &json!({"timeout_s": 20}), NEXT);
    daemon
}

/// The buffers that functions hand to each other now, and their bytes.
fn handed(daemon: &Daemon) -> (u64, u64) {
    let text = daemon.get("/metrics").text();
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    };
    (of("pilot_handover_buffers "), of("pilot_handover_bytes "))
}

fn nothing_is_left(daemon: &Daemon) {
    eventually("every buffer is given back", || {
        (handed(daemon) == (0, 0)).then_some(())
    });
}

#[test]
fn a_function_hands_data_of_any_size_to_the_next() {
    let daemon = functions();
    for bytes in [0, 1, 1024, 64 * MIB] {
        let said = answer(&daemon, "first", json!({"do": "copied", "bytes": bytes}));
        let next = &said[1];
        assert_eq!(next["digest"], said[0], "{bytes}");
        assert_eq!(next["bytes"], bytes);
        assert_eq!(
            (&next["readonly"], &next["event"]["from"]),
            (&json!(true), &json!("first"))
        );
    }
    let said = answer(&daemon, "first", json!({"do": "filled", "bytes": 64 * MIB}));
    for times in [1, 2] {
        assert_eq!(said[times]["digest"], said[0]);
        assert_eq!(said[times]["bytes"], 64 * MIB);
    }
    let event = json!({"do": "nothing", "event": {"a": [1, "ü"]}});
    assert_eq!(answer(&daemon, "first", event), json!({"a": [1, "ü"]}));
    nothing_is_left(&daemon);
}

#[test]
fn an_input_goes_on_to_the_next_function_without_a_copy() {
    let daemon = functions();
    daemon.upload_code("middle", &json!({"invokes": ["next"]}), MIDDLE);
    let said = answer(&daemon, "first", json!({"do": "in_three"}));
    assert_eq!(
        (&said["bytes"], &said["event"]["from"]),
        (&json!(14), &json!("middle"))
    );
    let described = daemon.cli_ok(&["describe", "middle"]);
    assert!(
        described.contains("invokes") && described.contains("next"),
        "{described}"
    );
    nothing_is_left(&daemon);
}

#[test]
fn sixteen_functions_have_one_copy_and_answer_in_order() {
    let daemon = functions();
    daemon.upload_code("waits", &json!({"network": "host", "timeout_s": 30}), WAITS);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let event = json!({"do": "over", "bytes": 64 * MIB, "port": port});
    let said = std::thread::scope(|scope| {
        let calling = scope.spawn(|| answer(&daemon, "first", event));
        let waiting: Vec<_> = (0..16).map(|_| listener.accept().unwrap().0).collect();
        // Every one of them has it now.
        assert_eq!(handed(&daemon), (1, 64 * MIB));
        for mut one in waiting {
            one.write_all(b".").unwrap();
        }
        calling.join().unwrap()
    });
    let said = said.as_array().unwrap();
    assert_eq!(said.len(), 16);
    for (n, one) in said.iter().enumerate() {
        assert_eq!(one[0], n);
        assert_eq!(one[1], said[0][1], "another file: a copy");
        assert_eq!(one[2], json!([0, 0, 64 * MIB]));
    }
    nothing_is_left(&daemon);
}

#[test]
fn an_item_that_fails_is_told_and_the_others_are_finished() {
    let daemon = functions();
    let event = json!({"do": "some_fail", "count": 40, "failing": [3, 17]});
    let said = answer(&daemon, "first", event);
    let text = said[0].as_str().unwrap();
    assert!(
        text.starts_with("2 of 40 calls of 'next' failed; number 3: "),
        "{text}"
    );
    assert_eq!(said[1], json!({"3": "KeyError", "17": "KeyError"}));
    let expected: Vec<Value> = (0..40)
        .map(|n| {
            if [3, 17].contains(&n) {
                Value::Null
            } else {
                json!(n)
            }
        })
        .collect();
    assert_eq!(said[2], json!(expected));
    let said = answer(&daemon, "first", json!({"do": "in_threads"}));
    let expected: Vec<_> = (0..20).map(|n| json!([n, n])).collect();
    assert_eq!(said, json!(expected));
}

#[test]
fn a_function_invokes_only_what_its_configuration_names() {
    let daemon = functions();
    daemon.upload_code("other", &json!({}), NEXT);
    daemon.upload_code(
        "page",
        &json!({"interface": "wsgi", "handler": "app.app"}),
        "def app(environ, start):\n    start('200 OK', [])\n    return [b'x']\n",
    );
    let to = |function: &str| answer(&daemon, "first", json!({"do": "to", "to": function}));
    for function in ["other", "next2", "no such name", "first"] {
        let said = to(function);
        assert_eq!(
            (&said[0], &said[1]),
            (&json!("refused"), &json!("Forbidden"))
        );
        let problem = said[2].as_str().unwrap();
        assert!(
            problem.contains("add it to invokes of [functions.first]"),
            "{problem}"
        );
    }
    // It may be invoked, but is not there, or is not that kind of function.
    assert_eq!(to("gone")[1], "NotFound");
    let page = to("page");
    assert_eq!(page[1], "NotSupported");
    assert!(page[2].as_str().unwrap().contains("/fn/page/"), "{page}");
    // Without the key, there is no way at all.
    let none =
        "import pilotlight\ndef handler(event, context):\n    return pilotlight.invoke('next')\n";
    daemon.upload_code("none", &json!({}), none);
    let error = failure(&daemon, "none", json!({}));
    assert_eq!(error["errorType"], "InvokeError");
    assert!(
        error["errorMessage"]
            .as_str()
            .unwrap()
            .contains("invokes = "),
        "{error}"
    );
}

#[test]
fn a_function_may_invoke_at_most_what_its_deployer_may() {
    let (daemon, control) = with_control_address("invocations = \"token\"\n");
    let create = |arguments: &[&str]| {
        let all = [&["token", "create"], arguments].concat();
        daemon.cli_ok(&all).trim().to_owned()
    };
    let deploy = |name: &str, invokes: &str, token: &str| {
        let project = Project::function(name, FIRST, &format!("invokes = [\"{invokes}\"]\n"));
        let endpoint = format!("http://{control}");
        let mut command = daemon.command(&["up", project.path().to_str().unwrap()]);
        command
            .args(["--endpoint", &endpoint])
            .env("PILOT_TOKEN", token);
        let output = command.output().unwrap();
        (output.status.success(), said(&output))
    };
    let deployer = create(&["ci", "--role", "deploy"]);
    let of_some = create(&[
        "some",
        "--role",
        "deploy",
        "--role",
        "invoke",
        "--function",
        "first",
        "--function",
        "next",
    ]);
    let of_team = create(&[
        "team", "--role", "deploy", "--role", "invoke", "--owner", "team",
    ]);
    for (token, invokes) in [(&deployer, "next"), (&of_some, "other"), (&of_some, "*")] {
        let (done, said) = deploy("first", invokes, token);
        assert!(!done && said.contains("may not invoke"), "{said}");
    }
    daemon.upload_code("next", &json!({}), NEXT);
    assert!(deploy("first", "next", &of_some).0);
    let token = daemon.admin_token();
    let event = json!({"do": "to", "to": "next"});
    let invoke = |function: &str| {
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let request = Request::new("POST", &path)
            .header("authorization", &format!("Bearer {token}"))
            .body(event.to_string());
        daemon.connect().exchange(&request).json()
    };
    assert_eq!(invoke("first")["do"], Value::Null);
    // A token for one owner: its functions stay with that owner's, whatever comes to have the name later.
    let (done, said) = deploy("teams", "*", &of_team);
    assert!(done, "{said}");
    let refused = invoke("teams");
    assert_eq!(refused[1], "Forbidden");
    assert!(
        refused[2]
            .as_str()
            .unwrap()
            .contains("for the owner 'team'"),
        "{refused}"
    );
    daemon.upload_code("next", &json!({"owner": "team"}), NEXT);
    assert_eq!(invoke("teams")["do"], Value::Null);
}

#[test]
fn the_error_of_the_next_function_is_the_callers_exception() {
    let daemon = functions();
    let to = |event: Value| answer(&daemon, "first", event);
    let said = to(json!({"do": "to", "to": "next", "then": "raises"}));
    assert_eq!(
        said,
        json!(["failed", "next", "KeyError", "'what the next one says'"])
    );
    daemon.upload_code("next", &json!({"timeout_s": 1}), NEXT);
    let said = to(json!({"do": "to", "to": "next", "then": "sleeps", "data": true}));
    assert_eq!(
        (&said[0], &said[2]),
        (&json!("failed"), &json!("Sandbox.Timedout"))
    );
    nothing_is_left(&daemon);
}

#[test]
fn a_chain_of_functions_has_an_end() {
    let daemon = daemon();
    daemon.upload_code("loop", &json!({"invokes": ["loop"], "timeout_s": 60}), LOOP);
    let said = answer(&daemon, "loop", json!({}));
    assert_eq!((&said[0], &said[1]), (&json!(16), &json!("TooDeep")));
    assert!(
        said[2]
            .as_str()
            .unwrap()
            .contains("does one of them invoke itself?"),
        "{said}"
    );
}

#[test]
fn the_calls_of_a_function_end_with_it() {
    let daemon = functions();
    daemon.upload_code("waits", &json!({"network": "host", "timeout_s": 30}), WAITS);
    let (own, target) = (0, 1);
    let listeners = [own, target].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let ports = listeners
        .each_ref()
        .map(|one| one.local_addr().unwrap().port());
    let event = json!({"do": "dies", "own": ports[own], "port": ports[target]});
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| failure(&daemon, "first", event));
        let mut started = listeners[own].accept().unwrap().0;
        let mut waiting = listeners[target].accept().unwrap().0;
        assert_eq!(handed(&daemon), (1, MIB));
        started.write_all(b".").unwrap();
        assert_eq!(calling.join().unwrap()["errorType"], "Runtime.ExitError");
        // The worker of the target was ended: its connection is closed.
        assert_eq!(waiting.read(&mut [0; 1]).unwrap_or(0), 0);
    });
    nothing_is_left(&daemon);
    assert_eq!(
        answer(&daemon, "first", json!({"do": "nothing"})),
        json!({})
    );
}

#[test]
fn buffers_have_limits_and_nothing_is_left_of_unused_ones() {
    let daemon = functions();
    assert_eq!(answer(&daemon, "first", json!({"do": "unused"})), 4);
    nothing_is_left(&daemon);
    let said = answer(&daemon, "first", json!({"do": "too_many"}));
    assert_eq!(said, json!([16, "NoRoom", 1]));
    let said = answer(&daemon, "first", json!({"do": "too_large"}));
    assert!(
        said[1].as_str().unwrap().contains("data.input_mb"),
        "{said}"
    );
    let said = answer(&daemon, "first", json!({"do": "mapped"}));
    assert_eq!(said[0][0], "BufferInUse");
    assert_eq!((&said[1], &said[2]), (&json!("StillMapped"), &json!(4096)));
    daemon.scale("first", 0);
    nothing_is_left(&daemon);
    // Sandboxes that are made in advance have a few sockets each. A call that left something would leave 40.
    let open = || {
        let of = |kind| pilot_harness::open_descriptors_to(daemon.pid(), kind);
        of("/memfd:") + of("socket:")
    };
    let before = open();
    for _ in 0..20 {
        answer(&daemon, "first", json!({"do": "unused"}));
        answer(&daemon, "first", json!({"do": "copied", "bytes": 1000}));
    }
    eventually("no descriptor is left", || {
        (open() <= before + 30).then_some(())
    });
}
