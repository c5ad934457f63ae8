//! Components that attack, fail, or are none.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use pilot_harness::{Daemon, Project, Request, eventually, needs_root};

use super::{component, project, wasm_lab};
use crate::daemon;

#[test]
fn an_endless_loop_ends_at_its_timeout_while_others_are_served() {
    needs_root!();
    let Some(daemon) = wasm_lab("timeout_s = 5\nscale.max = 1") else {
        return;
    };
    daemon.get("/fn/lab/").ok();
    let mut loops: Vec<_> = (0..3).map(|_| daemon.connect()).collect();
    for connection in &mut loops {
        connection.send(&Request::new("GET", "/fn/lab/loop"));
    }
    // Their worker serves others in the meantime, and after it.
    for _ in 0..5 {
        let response = daemon.get("/fn/lab/count").ok();
        assert_eq!(
            (response.text().as_str(), response.start_kind()),
            ("1", "warm")
        );
    }
    for connection in &mut loops {
        let response = connection.receive("GET");
        assert_eq!(response.status, 504, "{}", response.text());
        assert!(
            response.text().contains("did not answer in time"),
            "{}",
            response.text()
        );
    }
    assert_eq!(daemon.get("/fn/lab/").ok().start_kind(), "warm");
    let asleep = daemon.get("/fn/lab/sleep");
    assert_eq!(
        (asleep.status, daemon.get("/fn/lab/").ok().start_kind()),
        (504, "warm")
    );
}

#[test]
fn a_component_that_takes_all_memory_fails_alone() {
    needs_root!();
    let Some(daemon) = wasm_lab("memory_mb = 128\nscale.max = 1") else {
        return;
    };
    daemon.get("/fn/lab/").ok();
    takes_all_memory(&daemon);
}

/// Calls function `lab`, whose worker is warm, so that it asks for memory without end.
#[track_caller]
pub(super) fn takes_all_memory(daemon: &Daemon) {
    for _ in 0..3 {
        let response = daemon.get("/fn/lab/grow");
        assert_eq!(response.status, 500);
        assert!(
            response.text().contains("it was refused memory"),
            "{}",
            response.text()
        );
        assert_eq!(daemon.get("/fn/lab/").ok().start_kind(), "warm");
    }
}

#[test]
fn a_trap_is_an_error_of_its_request() {
    needs_root!();
    let Some(daemon) = wasm_lab("scale.max = 1") else {
        return;
    };
    daemon.get("/fn/lab/").ok();
    let trapped = daemon.get("/fn/lab/trap");
    assert_eq!(trapped.status, 500);
    assert!(
        trapped.text().contains("the component failed"),
        "{}",
        trapped.text()
    );
    let nothing = daemon.get("/fn/lab/nothing");
    assert_eq!(nothing.status, 500);
    assert!(
        nothing.text().contains("ended without a response"),
        "{}",
        nothing.text()
    );
    let mut connection = daemon.connect();
    connection.send(&Request::new("GET", "/fn/lab/half"));
    let half = String::from_utf8_lossy(&connection.until_the_end()).into_owned();
    assert!(
        half.contains("HTTP/1.1 200 OK")
            && half.contains("the first half")
            && !half.ends_with("0\r\n\r\n"),
        "{half:?}"
    );
    assert_eq!(daemon.get("/fn/lab/").ok().start_kind(), "warm");
    let log = eventually("the log has the panics", || {
        let log = daemon.log_texts("lab");
        (log.contains("it was asked to") && log.contains("in the middle")).then_some(log)
    });
    assert!(
        log.contains("the component failed after the head of its response"),
        "{log}"
    );
}

#[test]
fn headers_of_a_component_are_bounded() {
    needs_root!();
    let Some(daemon) = wasm_lab("scale.max = 1") else {
        return;
    };
    let response = daemon.get("/fn/lab/headers");
    assert_eq!(response.status, 500);
    let text = response.text();
    assert!(text.contains("Field size limit 131072 exceeded"), "{text}");
    assert_eq!(daemon.get("/fn/lab/").ok().start_kind(), "warm");
}

#[test]
fn a_client_that_hangs_up_ends_its_instance_and_one_that_stops_reading_holds_one_place() {
    needs_root!();
    let Some(daemon) = wasm_lab("concurrency = 2\nscale.max = 1") else {
        return;
    };
    for _ in 0..4 {
        let mut gone = daemon.connect();
        gone.send(&Request::new("GET", "/fn/lab/endless"));
        assert!(gone.read_some(&mut [0; 1024]) > 0);
        gone.hang_up();
    }
    let mut idle = daemon.connect();
    idle.send(&Request::new("GET", "/fn/lab/endless"));
    assert!(idle.read_some(&mut [0; 1024]) > 0);
    for _ in 0..4 {
        let response = daemon.get("/fn/lab/count").ok();
        assert_eq!(
            (response.text().as_str(), response.start_kind()),
            ("1", "warm")
        );
    }
}

#[test]
fn a_component_has_no_files_and_no_sockets() {
    needs_root!();
    let Some(daemon) = wasm_lab("network = \"host\"") else {
        return;
    };
    let files = daemon.get("/fn/lab/files").ok().text();
    assert_eq!(files.matches("Err(").count(), 3, "{files}");
    let socket = daemon.get("/fn/lab/socket").ok().text();
    assert!(socket.starts_with("Err("), "{socket}");
}

#[test]
fn requests_of_a_component_go_only_where_its_network_allows() {
    needs_root!();
    let Some(component) = component() else { return };
    let daemon = daemon();
    daemon.deploy(&project(&component, ""));
    let alone = daemon.get("/fn/lab/get?http://127.0.0.1:8080/").ok().text();
    assert!(alone.contains("HttpRequestDenied"), "{alone}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        let length = stream.read(&mut head).unwrap();
        let response = b"HTTP/1.1 203 Yes\r\ncontent-length: 4\r\nconnection: close\r\n\r\nyes!";
        stream.write_all(response).unwrap();
        String::from_utf8_lossy(&head[..length]).into_owned()
    });
    daemon.deploy(&project(&component, "network = \"host\""));
    let reached = daemon.get(&format!("/fn/lab/get?http://{address}/some/path"));
    assert_eq!(reached.ok().text(), "203 yes!");
    let head = server.join().unwrap();
    assert!(head.starts_with("GET /some/path HTTP/1.1\r\n"), "{head}");
    for refused in [
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[fd00:ec2::254]",
    ] {
        let response = daemon.get(&format!("/fn/lab/get?http://{refused}/latest/meta-data"));
        let text = response.ok().text();
        assert!(
            text.contains("DestinationIpProhibited"),
            "{refused}: {text}"
        );
    }
}

/// An empty component, and one that imports an interface that there is not.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
const IMPORTING: &[u8] = b"\0asm\x0d\0\x01\0\
    \x07\x10\x01\x42\x02\x01\x40\0\x01\0\x04\0\x03run\x01\0\
    \x0a\x1d\x01\0\x18fermyon:spin/mysql@2.0.0\x05\0";

#[test]
fn what_is_no_component_is_refused_when_it_is_deployed() {
    needs_root!();
    let daemon = daemon();
    let cases: [(&[u8], &str); 8] = [
        (b"\0asm\x01\0\0\0", "is a core module"),
        (
            b"\x7fELF\x02\x01\x01",
            "is native code, which is never accepted",
        ),
        (b"(component)", "is WebAssembly as text"),
        (b"", "is not a WebAssembly component"),
        (b"hello", "is not a WebAssembly component"),
        (
            b"\0asm\x0d\0\x01\0\x07\xff\xff\xff",
            "it cannot be compiled",
        ),
        (EMPTY, "wasi:http/incoming-handler"),
        (IMPORTING, "fermyon:spin/mysql"),
    ];
    for (content, problem) in cases {
        let said = daemon.deploy_fails(&project(content, ""));
        assert!(said.contains(problem), "{problem:?} is not in {said}");
        assert!(
            said.contains("functions.lab.component \"lab.wasm\""),
            "{said}"
        );
    }
    let missing = Project::empty()
        .file("other", "")
        .manifest("lab", "runtime = \"wasm\"\ncomponent = \"lab.wasm\"");
    let said = daemon.deploy_fails(&missing);
    assert!(
        said.contains("put the file into the function's folder"),
        "{said}"
    );
    assert_eq!(daemon.get("/healthz").status, 200);
}
