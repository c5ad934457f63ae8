//! `runtime = "http"`: the function's own server on `$PORT`.

use std::io::Read as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use pilot_harness::{Request, eventually, needs_root};
use serde_json::json;

use super::{server, server_lab};
use crate::{answer, daemon};

/// Returns its request, streams, and upgrades connections.
const SERVER: &str = r#"
import getpass, grp, http.server, json, os, signal, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, status, body, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items(): self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(body)
    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            whole = b""
            while (size := int(self.rfile.readline(), 16)):
                whole += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))
    def do_GET(self):
        if self.path == "/stream":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for part in (b"one ", b"two ", b"three"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part)); self.wfile.flush(); time.sleep(0.05)
            return self.wfile.write(b"0\r\n\r\n")
        if self.path == "/echo":
            self.send_response(101); self.send_header("Connection", "Upgrade"); self.send_header("Upgrade", "echo"); self.end_headers()
            self.wfile.flush()
            while (data := self.rfile.readline()): self.wfile.write(data.upper()); self.wfile.flush()
            self.close_connection = True
            return
        if self.path == "/both":
            self.send_response(200); self.send_header("Content-Length", "3"); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            return self.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")
        if self.path == "/teapot": return self.answer(418, b"short and stout", X_Kind="teapot")
        if self.path == "/exit": os._exit(4)
        if self.path.startswith("/say?"): print("asked for " + self.path.split("=")[1], flush=True)
        seen = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "env": dict(os.environ), "pid": os.getpid(), "user": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}
        self.answer(200, json.dumps(seen).encode(), Content_Type="application/json")
    do_HEAD = do_GET
    def do_POST(self):
        body = self.body()
        if self.path == "/slow": time.sleep(20)
        self.answer(200, b"\"got %d\"" % len(body), Content_Type="application/json")

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
server = Server(("127.0.0.1", int(os.environ["PORT"])), Handler)
def stop(*_):
    print("asked to end", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
server.serve_forever()
"#;

#[test]
fn requests_reach_the_server_as_they_were_sent() {
    needs_root!();
    let daemon = server_lab(SERVER, "environment.COLOUR = \"blue\"");
    let request = Request::new("GET", "/fn/lab/a%20b/c?x=1&y=%C3%BC").header("x-custom", "seen");
    let seen = daemon.send(&request).ok().json();
    assert_eq!(seen["path"], "/a%20b/c?x=1&y=%C3%BC");
    assert_eq!(seen["headers"]["x-custom"], "seen");
    assert_eq!(seen["env"]["COLOUR"], "blue");
    assert_eq!(seen["env"]["K_SERVICE"], "lab");
    assert_eq!(seen["env"]["K_REVISION"], "lab-00001");
    assert_eq!(seen["env"]["PORT"], "8080");
    assert_eq!(
        (&seen["user"], &seen["group"]),
        (&json!("sbx_user"), &json!("sbx_user"))
    );
}

#[test]
fn statuses_headers_and_bodies_come_back_as_they_are() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    let response = daemon.get("/fn/lab/teapot");
    assert_eq!(response.status, 418);
    assert_eq!(response.header("x-kind"), Some("teapot"));
    assert_eq!(response.text(), "short and stout");
    let head = daemon.send(&Request::new("HEAD", "/fn/lab/teapot"));
    assert_eq!((head.status, head.text()), (418, String::new()));
    assert_eq!(head.header("content-length"), Some("15"));
}

#[test]
fn bodies_are_streamed_both_ways() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    assert_eq!(daemon.get("/fn/lab/stream").text(), "one two three");
    let large = vec![b'x'; 20 << 20];
    let response = daemon.send(&Request::new("POST", "/fn/lab/upload").body(large));
    assert_eq!(response.ok().text(), "\"got 20971520\"");
}

#[test]
fn an_upgraded_connection_is_a_tunnel() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    let mut connection = daemon.connect();
    connection.send_raw(
        b"GET /fn/lab/echo HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
    );
    assert!(connection.raw_line().starts_with("HTTP/1.1 101"));
    while !connection.raw_line().is_empty() {}
    for said in ["hello", "again"] {
        connection.send_raw(format!("{said}\n").as_bytes());
        assert_eq!(connection.raw_line(), said.to_uppercase());
    }
}

#[test]
fn one_worker_serves_as_many_as_its_concurrency_says() {
    needs_root!();
    let daemon = server_lab(SERVER, "concurrency = 8\nscale.max = 1");
    let mut connections: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    for connection in &mut connections {
        connection.send(&Request::new("GET", "/fn/lab/stream"));
    }
    for connection in &mut connections {
        assert_eq!(connection.receive("GET").ok().text(), "one two three");
    }
}

#[test]
fn the_invoke_api_posts_the_event() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    assert_eq!(answer(&daemon, "lab", json!({"a": 1})), "got 7");
}

/// `hang` is never answered. `wait` is answered when the client of `hang` has disconnected. `GET /` waits until there is one.
const DESERTED: &str = r#"
import http.server, json, os, threading

hanging, gone = threading.Event(), threading.Event()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self):
        body = json.dumps(os.getpid()).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        hanging.wait(20)
        self.answer()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked == "hang":
            hanging.set()
            self.connection.recv(1)
            gone.set()
            self.close_connection = True
            return
        if asked == "wait": gone.wait(20)
        self.answer()

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[test]
fn a_caller_that_hangs_up_closes_its_connection_to_the_server_which_serves_on() {
    needs_root!();
    let daemon = server_lab(DESERTED, "concurrency = 3\nscale.max = 1");
    let pid = answer(&daemon, "lab", json!("who"));
    let invoke = |event: &str| {
        Request::new("POST", "/2015-03-31/functions/lab/invocations").body(format!("\"{event}\""))
    };
    let mut leaver = daemon.connect();
    leaver.send(&invoke("hang"));
    assert_eq!(daemon.get("/fn/lab/").ok().json(), pid, "somebody hangs");
    let mut other = daemon.connect();
    other.send(&invoke("wait"));
    leaver.hang_up();
    assert_eq!(other.receive("POST").ok().json(), pid);
    let again = daemon.invoke("lab", &json!("who")).ok();
    assert_eq!((again.start_kind(), again.json()), ("warm", pid));
}

#[test]
fn chunks_win_over_a_length() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    let both = daemon.get("/fn/lab/both").ok();
    assert_eq!(
        (both.text().as_str(), both.header("content-length")),
        ("hello", None)
    );
}

/// Prints at its start, on request, between requests and at its end.
const PRINTER: &str = r#"
import http.server, os, signal, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        print("handling " + self.path, flush=True)
        if self.path == "/wait":
            while not os.path.exists("/tmp/go"): time.sleep(0.01)
        if self.path == "/go": open("/tmp/go", "w").close()
        if self.path == "/later": threading.Timer(0.3, print, ["between requests"], {"flush": True}).start()
        if self.path == "/half": print("half a line", end="", flush=True)
        if self.path == "/flood": sys.stdout.write("x" * 99 + "\n"); sys.stdout.write(("y" * 99 + "\n") * 20000); sys.stdout.flush()
        if self.path == "/exit": print("last word", end="", flush=True); os._exit(3)
        self.send_response(200); self.end_headers()

def stop(*_):
    print("asked to end", flush=True)
    time.sleep(0.2)
    print("ended", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print("at the start", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[test]
fn what_it_prints_is_in_its_log_as_it_is_printed() {
    needs_root!();
    let daemon = server_lab(PRINTER, "concurrency = 4");
    let logged = |text: &str| {
        eventually(&format!("{text:?} is logged"), || {
            let log = daemon.log_texts("lab");
            log.contains(text).then_some(log)
        })
    };
    let mut waiting = daemon.connect();
    waiting.send(&Request::new("GET", "/fn/lab/wait"));
    let log = logged("handling /wait\n");
    let first = log.find("at the start\n").expect("its start is logged");
    let start = log.find("START RequestId").expect("START comes first");
    assert!(start < log.find("handling /wait").unwrap(), "{log}");
    assert!(first < log.find("handling /wait").unwrap(), "{log}");
    assert!(!log.contains("END RequestId"), "{log}");
    daemon.get("/fn/lab/go").ok();
    waiting.receive("GET").ok();
    // Between two requests, at once.
    daemon.get("/fn/lab/later").ok();
    logged("between requests\n");
    // A line without its end is not joined with the next one.
    daemon.get("/fn/lab/half").ok();
    logged("half a line\nEND RequestId");
    // The end of a server that is scaled away.
    daemon.scale("lab", 0);
    let log = logged("asked to end\nended\n");
    assert_eq!(log.matches("START RequestId").count(), 4, "{log}");
    assert_eq!(log.matches("REPORT RequestId").count(), 4, "{log}");
    // The end of one that crashes.
    let crash = daemon.get("/fn/lab/exit");
    assert_eq!(crash.status, 502);
    let log = logged("last word\n");
    let (_, end) = log.rsplit_once("last word\n").unwrap();
    assert!(
        end.contains("Runtime exited with error: exit status 3"),
        "{end}"
    );
    // A flood neither blocks the server nor hides the end of its request.
    daemon.get("/fn/lab/flood").ok();
    logged("yyyyy\nEND RequestId");
}

#[test]
fn the_tail_of_an_invocation_has_what_the_server_printed() {
    needs_root!();
    let code = PRINTER.replace("do_GET", "do_POST");
    let daemon = server_lab(&code, "");
    let (response, tail) = daemon.invoke_tail("lab", &json!({}));
    response.ok();
    assert!(tail.starts_with("START RequestId"), "{tail}");
    assert!(tail.contains("handling /\nEND RequestId"), "{tail}");
    let log = eventually("it is logged", || {
        let log = daemon.log_texts("lab");
        log.contains("REPORT").then_some(log)
    });
    assert_eq!(log.matches("handling /\n").count(), 1, "{log}");
    assert_eq!(log.matches("START RequestId").count(), 1, "{log}");
}

#[test]
fn a_server_that_ends_in_mid_request_is_a_bad_gateway() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    assert_eq!(daemon.get("/fn/lab/exit").status, 502);
    assert_eq!(daemon.get("/fn/lab/teapot").status, 418);
}

#[test]
fn a_timeout_is_told_and_the_next_request_is_served() {
    needs_root!();
    let daemon = server_lab(SERVER, "timeout_s = 2");
    let begun = Instant::now();
    let response = daemon.send(&Request::new("POST", "/fn/lab/slow").body("x"));
    assert!(matches!(response.status, 502 | 504), "{}", response.status);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(daemon.get("/fn/lab/teapot").status, 418);
}

/// Reports to a port of the host some time after SIGTERM.
const POLITE: &str = r#"
import os, signal, socket, time
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
def stop(*_):
    time.sleep(0.3)
    socket.create_connection(("127.0.0.1", int(os.environ["TELL"]))).sendall(b"bye")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
while True:
    client, _ = server.accept()
    client.recv(65536)
    client.sendall(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
    client.close()
"#;

#[test]
fn it_is_asked_to_end_and_given_time() {
    needs_root!();
    let ear = TcpListener::bind("127.0.0.1:0").unwrap();
    let bye = || {
        let mut said = String::new();
        ear.accept().unwrap().0.read_to_string(&mut said).unwrap();
        said
    };
    let port = ear.local_addr().unwrap().port();
    let mut daemon = server_lab(
        POLITE,
        &format!("network = \"host\"\nenvironment.TELL = \"{port}\""),
    );
    // The worker of the deployment's trial start.
    assert_eq!(bye(), "bye");
    assert_eq!(daemon.get("/fn/lab/").status, 204);
    daemon.scale("lab", 0);
    assert_eq!(bye(), "bye");
    assert_eq!(daemon.get("/fn/lab/").status, 204);
    assert_eq!(daemon.stop(), Some(0));
    ear.set_nonblocking(true).unwrap();
    assert_eq!(bye(), "bye", "it was told before the daemon had ended");
}

#[test]
fn a_server_that_listens_late_is_waited_for() {
    needs_root!();
    let late = "import time\ntime.sleep(0.3)\n".to_owned() + SERVER;
    let daemon = server_lab(&late, "");
    assert_eq!(daemon.get("/fn/lab/teapot").status, 418);
}

#[test]
fn a_server_that_never_listens_is_told_by_the_deployment() {
    needs_root!();
    let told = daemon().deploy_fails(&server("import sys\nsys.exit('no thanks')\n", ""));
    assert!(told.contains("no thanks"), "{told}");
}

#[test]
fn headers_with_paths_of_inputs_do_not_come_from_clients() {
    needs_root!();
    let daemon = server_lab(SERVER, "");
    let request = Request::new("GET", "/fn/lab/")
        .header("Pilot-Input-Photo", "/etc/passwd")
        .header("pilot-failed-input-photo", "said by a client")
        .header("Pilot-Inputs", "another name");
    let seen = daemon.send(&request).ok().json();
    let headers = seen["headers"].as_object().unwrap();
    let names: Vec<&String> = headers
        .keys()
        .filter(|name| name.starts_with("pilot-"))
        .collect();
    assert_eq!(names, ["pilot-inputs"], "{headers:?}");
}
