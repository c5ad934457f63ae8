//! ASGI and WSGI applications behind `/fn/NAME/`: small ones for the protocol's corner cases, and the repository's examples.

use pilot_harness::{Daemon, Request, eventually};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, protocol::CloseFrame};

use crate::lab;

const ASGI: &str = r#"
import asyncio, json

async def app(scope, receive, send):
    assert scope["type"] == "http", scope
    # As under uvicorn, the path holds the root path.
    path = scope["path"].removeprefix(scope["root_path"])
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if path == "/raise":
        raise ValueError("in the application")
    if path == "/late":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise ValueError("too late for a status")
    if path == "/cut":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        # More than lies anywhere in between: when it has gone, the client has begun to read.
        await send({"type": "http.response.body", "body": bytes(32_000_000), "more_body": True})
        raise ValueError("too late for a status")
    if path == "/nothing":
        return
    if path == "/scope":
        body = json.dumps({k: v for k, v in scope.items() if isinstance(v, (str, bytes, int, list, tuple, dict))}, default=repr).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-type", b"application/octet-stream"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]})
    await send({"type": "http.response.body", "body": body})
"#;

const WSGI: &str = r#"
import json, time

def app(environ, start_response):
    path = environ["PATH_INFO"]
    body = environ["wsgi.input"].read()
    if path == "/raise":
        raise ValueError("in the application")
    if path == "/cut":
        start_response("200 OK", [])
        def broken():
            yield bytes(32_000_000)
            raise ValueError("too late for a status")
        return broken()
    if path in ("/soon", "/never"):
        start_response("200 OK", [])
        def soon():
            yield b"first" if path == "/soon" else b""
            raise ValueError("soon")
        return soon()
    if path == "/environ":
        body = json.dumps({k: v for k, v in environ.items() if isinstance(v, (str, int, tuple, bool))}).encode()
    start_response("201 Made", [("content-type", "application/octet-stream"), ("set-cookie", "a=1"), ("set-cookie", "b=2")])
    return [body]
"#;

fn asgi() -> Daemon {
    lab(ASGI, json!({"interface": "asgi", "handler": "app:app"}))
}

fn wsgi() -> Daemon {
    lab(WSGI, json!({"interface": "wsgi", "handler": "app:app"}))
}

pub(crate) fn bytes() -> Vec<u8> {
    (0..=255).cycle().take(300_000).collect()
}

#[test]
fn an_asgi_application_gets_body_and_gives_bytes_and_repeated_headers() {
    let daemon = asgi();
    let response = daemon
        .send(&Request::new("POST", "/fn/lab/echo").body(bytes()))
        .ok();
    assert!(response.body == bytes());
    assert_eq!(response.all("set-cookie"), ["a=1", "b=2"]);
}

#[test]
fn the_largest_head_reaches_an_application_and_a_larger_one_is_431() {
    let daemon = asgi();
    // In JSON, each of them takes two bytes.
    for filler in ["\"", "\\", "\u{e9}"] {
        let value = filler.repeat(64_000 / filler.len());
        let request = Request::new("GET", "/fn/lab/scope").header("x-large", &value);
        let scope = daemon.send(&request).ok();
        assert!(scope.text().contains("x-large"), "{filler}");
        let value = filler.repeat(66_000 / filler.len());
        let request = Request::new("GET", "/fn/lab/scope").header("x-large", &value);
        assert_eq!(daemon.send(&request).status, 431, "{filler}");
    }
    assert_eq!(daemon.get("/fn/lab/scope").ok().start_kind(), "warm");
}

#[test]
fn an_asgi_scope_is_what_the_specification_says() {
    let daemon = asgi();
    let scope = daemon.get("/fn/lab/scope?x=%20y").ok();
    let scope: Value = scope.json();
    assert_eq!(scope["method"], "GET");
    assert_eq!(scope["root_path"], "/fn/lab");
    assert_eq!(scope["scheme"], "http");
    assert_eq!(scope["http_version"], "1.1");
    assert_eq!(scope["client"][0], "127.0.0.1");
    assert!(
        scope["query_string"].to_string().contains("x=%20y"),
        "{scope}"
    );
    let escaped = daemon.get("/fn/lab/a%20b%2Fc");
    assert_eq!(escaped.status, 200);
}

/// Routes by the whole path, as Falcon and Sanic do.
const ROUTES_BY_PATH: &str = r#"
async def app(scope, receive, send):
    found = scope["path"] == "/orders/7"
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": []})
    text = "|".join([scope["root_path"], scope["path"], scope["raw_path"].decode()])
    await send({"type": "http.response.body", "body": text.encode()})
"#;

#[test]
fn an_application_that_routes_by_the_whole_path_is_told_to_be_at_the_root() {
    let asked = |root_path: Option<&str>| {
        let mut keys = json!({"interface": "asgi", "handler": "app:app"});
        if let Some(path) = root_path {
            keys["root_path"] = json!(path);
        }
        let response = lab(ROUTES_BY_PATH, keys).get("/fn/lab/orders/7");
        (response.status, response.text())
    };
    let whole = "/fn/lab|/fn/lab/orders/7|/fn/lab/orders/7";
    assert_eq!(asked(None), (404, whole.to_owned()));
    assert_eq!(asked(Some("")), (200, "|/orders/7|/orders/7".to_owned()));
    let other = "/shop|/shop/orders/7|/shop/orders/7";
    assert_eq!(asked(Some("/shop")), (404, other.to_owned()));
    let wsgi = "def app(environ, start):\n    start('200 OK', [])\n    return [(environ['SCRIPT_NAME'] + '|' + \
                environ['PATH_INFO']).encode()]\n";
    let keys = json!({"interface": "wsgi", "handler": "app:app", "root_path": ""});
    assert_eq!(lab(wsgi, keys).get("/fn/lab/orders/7").text(), "|/orders/7");
}

/// Sends the last piece of `/stream` only when somebody has asked for `/go`.
const ASGI_STREAM: &str = r#"
import asyncio
go = asyncio.Event()

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"].endswith("/go"):
        go.set()
    else:
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        await go.wait()
    await send({"type": "http.response.body", "body": b"last"})
"#;

/// The same.
const WSGI_STREAM: &str = r#"
import threading
go = threading.Event()

def app(environ, start_response):
    start_response("200 OK", [])
    if environ["PATH_INFO"].endswith("/go"):
        go.set()
        return [b"last"]
    def pieces():
        yield b"first "
        go.wait()
        yield b"last"
    return pieces()
"#;

/// The first piece is there before the application makes the last one.
fn arrives_piece_by_piece(interface: &str, code: &str) {
    let keys = json!({"interface": interface, "handler": "app:app", "concurrency": 2, "scale": {"max": 1}});
    let daemon = lab(code, keys);
    let mut connection = daemon.connect();
    connection.send(&Request::new("GET", "/fn/lab/stream"));
    let mut seen = String::new();
    let mut has = |piece: &str| {
        while !seen.contains(piece) {
            let mut bytes = [0; 4096];
            let len = connection.read_some(&mut bytes);
            assert_ne!(len, 0, "no {piece:?}: {seen}");
            seen += std::str::from_utf8(&bytes[..len]).unwrap();
        }
    };
    has("first ");
    assert_eq!(daemon.get("/fn/lab/go").ok().text(), "last");
    has("last");
    assert_eq!(daemon.get("/fn/lab/stream").ok().text(), "first last");
}

#[test]
fn an_asgi_stream_arrives_piece_by_piece() {
    arrives_piece_by_piece("asgi", ASGI_STREAM);
}

#[test]
fn an_exception_of_an_asgi_application_is_a_500_and_the_next_request_works() {
    let daemon = asgi();
    for _ in 0..3 {
        let response = daemon.get("/fn/lab/raise");
        assert!(matches!(response.status, 500 | 502), "{}", response.status);
        assert!(
            !response.text().contains("Traceback"),
            "{}",
            response.text()
        );
        assert_eq!(
            daemon
                .send(&Request::new("POST", "/fn/lab/").body("on"))
                .ok()
                .text(),
            "on"
        );
    }
    assert!(
        daemon
            .logs("lab")
            .contains("ValueError: in the application")
    );
}

#[test]
fn an_asgi_application_that_answers_nothing_is_an_error() {
    let daemon = asgi();
    assert!(matches!(daemon.get("/fn/lab/nothing").status, 500 | 502));
    assert_eq!(
        daemon
            .send(&Request::new("POST", "/fn/lab/").body("on"))
            .ok()
            .text(),
        "on"
    );
}

/// Says how much of the request's body came, and its checksum; refuses `/no` unread.
const UPLOADED_ASGI: &str = r#"
import zlib
async def app(scope, receive, send):
    assert scope["type"] == "http"
    if scope["path"].endswith("/no"):
        await send({"type": "http.response.start", "status": 413})
        return await send({"type": "http.response.body", "body": b"too much"})
    check, size, more = 1, 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return print("the client is gone", flush=True)
        check = zlib.adler32(message["body"], check); size += len(message["body"]); more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-length", dict(scope["headers"]).get(b"content-length", b"none"))]})
    await send({"type": "http.response.body", "body": f"{size} {check}".encode()})
"#;

/// As Django and Bottle do, it reads no more than `CONTENT_LENGTH`.
const UPLOADED_WSGI: &str = r#"
import zlib
def app(environ, start_response):
    if environ["PATH_INFO"] == "/no":
        start_response("413 Too Large", [])
        return [b"too much"]
    check, size, length = 1, 0, int(environ.get("CONTENT_LENGTH", 0))
    try:
        while data := environ["wsgi.input"].read(min(length - size, 100_000)):
            check = zlib.adler32(data, check); size += len(data)
    except OSError as error:
        print("the client is gone:", error, flush=True)
        raise
    start_response("200 OK", [("X-Length", environ.get("CONTENT_LENGTH", "none"))])
    return [f"{size} {check}".encode()]
"#;

/// 20 MB in which no two places look alike.
fn large_body() -> Vec<u8> {
    (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// Its length and its Adler-32 (RFC 1950).
fn digest(body: &[u8]) -> String {
    let (a, b) = body.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    format!("{} {}", body.len(), (b << 16) | a)
}

fn chunked(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut request = head.into_bytes();
    for chunk in body.chunks(100_000) {
        request.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend(chunk);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    request
}

#[test]
fn bodies_of_any_size_reach_an_application_while_they_are_sent() {
    let body = large_body();
    let wanted = digest(&body);
    for (interface, code, unknown) in [
        ("asgi", UPLOADED_ASGI, "none"),
        ("wsgi", UPLOADED_WSGI, "20000000"),
    ] {
        for concurrency in [1, 4] {
            let daemon = lab(
                code,
                json!({"interface": interface, "concurrency": concurrency}),
            );
            let post = |path: &str| Request::new("POST", path).body(body.clone());
            let told = daemon.send(&post("/fn/lab/")).ok();
            assert_eq!(told.text(), wanted, "{interface}");
            assert_eq!(told.header("x-length"), Some("20000000"));
            // Without a length.
            let mut connection = daemon.connect();
            connection.send_raw(&chunked("/fn/lab/", &body));
            let told = connection.receive("POST").ok();
            assert_eq!(told.text(), wanted, "{interface}");
            assert_eq!(told.header("x-length"), Some(unknown));
            // Answered unread: the worker serves on.
            let refused = daemon.send(&post("/fn/lab/no"));
            assert_eq!((refused.status, refused.text().as_str()), (413, "too much"));
            assert_eq!(refused.header("connection"), Some("close"));
            // A client that leaves in the middle.
            let mut leaver = daemon.connect();
            leaver
                .send_raw(b"POST /fn/lab/ HTTP/1.1\r\nhost: x\r\ncontent-length: 20000000\r\n\r\n");
            leaver.send_raw(&body[..9_000_000]);
            leaver.hang_up();
            eventually("the application hears of it", || {
                daemon
                    .logs("lab")
                    .contains("the client is gone")
                    .then_some(())
            });
            // The largest that is kept, and the next.
            for len in [6 << 20, (6 << 20) + 1] {
                let request = Request::new("POST", "/fn/lab/").body(&body[..len]);
                assert_eq!(daemon.send(&request).ok().text(), digest(&body[..len]));
            }
        }
    }
}

#[test]
fn a_body_of_unknown_length_that_wsgi_has_no_memory_for_is_refused_and_others_are_served() {
    let daemon = lab(UPLOADED_WSGI, json!({"interface": "wsgi", "memory_mb": 64}));
    let body = [large_body(), large_body()].concat();
    let small = &body[..7_000_000];
    for _ in 0..3 {
        let mut connection = daemon.connect();
        connection.send_raw(&chunked("/fn/lab/", &body));
        let refused = connection.receive("POST");
        assert_eq!(refused.status, 413, "{}", refused.text());
        assert_eq!(refused.json()["errorType"], "RequestTooLargeException");
        let mut connection = daemon.connect();
        connection.send_raw(&chunked("/fn/lab/", small));
        let told = connection.receive("POST").ok();
        assert_eq!(told.text(), digest(small));
        assert_eq!(told.start_kind(), "warm", "the worker has not ended");
    }
}

/// Does what its path says.
const TALKER: &str = r#"
import asyncio, os
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200})
        return await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
    assert scope["type"] == "websocket" and scope["scheme"] == "ws", scope
    assert await receive() == {"type": "websocket.connect"}
    path = scope["path"].removeprefix("/fn/lab")
    if path == "/reject": return await send({"type": "websocket.close"})
    if path == "/denied":
        await send({"type": "websocket.http.response.start", "status": 401, "headers": [(b"x-why", b"who are you")]})
        return await send({"type": "websocket.http.response.body", "body": b"no"})
    if path == "/silent": return
    await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][-1] if scope["subprotocols"] else None, "headers": [(b"x-mine", b"1")]})
    if path == "/fail": raise ValueError("broken")
    if path == "/return": return
    if path == "/close": return await send({"type": "websocket.close", "code": 4001, "reason": "enough"})
    if path == "/flood":
        for number in range(2000): await send({"type": "websocket.send", "bytes": number.to_bytes(4, "little") * 1000})
        return await send({"type": "websocket.close"})
    if path == "/large":
        await send({"type": "websocket.send", "text": "ä€😀" * 400_000})
        await send({"type": "websocket.send", "bytes": bytes(range(256)) * 50_000})
        return await send({"type": "websocket.close"})
    if path == "/slow": await asyncio.sleep(4.5)
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return print("left with", message["code"], message["reason"], flush=True)
        if message.get("text") is not None: await send({"type": "websocket.send", "text": message["text"].upper()})
        else: await send({"type": "websocket.send", "bytes": message["bytes"][::-1]})
"#;

type Talk = tungstenite::WebSocket<std::net::TcpStream>;
type Refused = tungstenite::http::Response<Option<Vec<u8>>>;

/// Opens a WebSocket, or returns the response that rejects it.
fn talk(daemon: &Daemon, path: &str, protocols: &str) -> Result<(Talk, Refused), Box<Refused>> {
    use tungstenite::client::IntoClientRequest as _;
    let mut request = format!("ws://{}/fn/lab{path}", daemon.address())
        .into_client_request()
        .unwrap();
    if !protocols.is_empty() {
        let headers = request.headers_mut();
        headers.insert("sec-websocket-protocol", protocols.parse().unwrap());
    }
    let stream = std::net::TcpStream::connect(daemon.address()).unwrap();
    stream
        .set_read_timeout(Some(std::time::Duration::from_secs(20)))
        .unwrap();
    match tungstenite::client(request, stream) {
        Ok(opened) => Ok(opened),
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(response)
        }
        Err(other) => panic!("{other}"),
    }
}

fn close_code(talk: &mut Talk) -> (u16, String) {
    loop {
        match talk.read().unwrap() {
            Message::Close(Some(frame)) => {
                return (frame.code.into(), frame.reason.to_string());
            }
            Message::Close(None) => return (1005, String::new()),
            _ => {}
        }
    }
}

#[test]
fn an_asgi_application_talks_over_web_sockets() {
    for concurrency in [1, 8] {
        // One worker at most: a request that comes before the worker is back from the last socket waits for it.
        let keys = json!({"interface": "asgi", "concurrency": concurrency, "timeout_s": 3, "scale": {"max": 1}});
        let daemon = lab(TALKER, keys);
        let pid = daemon.get("/fn/lab/").ok().text();
        let (mut echo, response) = talk(&daemon, "/echo?x=1", "chat, superchat").unwrap();
        let head = |name: &str| response.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!(head("sec-websocket-protocol"), "superchat");
        assert_eq!(head("x-mine"), "1");
        echo.send(Message::text("héllo")).unwrap();
        assert_eq!(echo.read().unwrap(), Message::text("HÉLLO"));
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        echo.send(Message::binary(large.clone())).unwrap();
        let reversed: Vec<u8> = large.into_iter().rev().collect();
        assert!(echo.read().unwrap() == Message::binary(reversed));
        echo.send(Message::text("")).unwrap();
        assert_eq!(echo.read().unwrap(), Message::text(""));
        echo.close(Some(CloseFrame {
            code: 4000.into(),
            reason: "bye".into(),
        }))
        .unwrap();
        assert_eq!(close_code(&mut echo), (4000, "bye".to_owned()));
        eventually("the application hears of it", || {
            let log = daemon.logs("lab");
            log.contains("left with 4000 bye").then_some(())
        });
        // The application's ends.
        for (path, code, reason) in [
            ("/close", 4001, "enough"),
            ("/return", 1000, ""),
            ("/fail", 1011, ""),
        ] {
            let (mut ended, _) = talk(&daemon, path, "").unwrap();
            assert_eq!(close_code(&mut ended), (code, reason.to_owned()), "{path}");
        }
        let rejected = |path: &str| talk(&daemon, path, "").err().unwrap();
        assert_eq!(rejected("/reject").status(), 403);
        assert_eq!(rejected("/denied").status(), 401);
        assert_eq!(rejected("/denied").headers()["x-why"], "who are you");
        assert_eq!(rejected("/silent").status(), 502);
        // Its timeout does not count after the handshake.
        let (mut slow, _) = talk(&daemon, "/slow", "").unwrap();
        slow.send(Message::text("late")).unwrap();
        assert_eq!(slow.read().unwrap(), Message::text("LATE"));
        // A client that is gone.
        drop(slow);
        eventually("the application hears of it", || {
            daemon.logs("lab").contains("left with 1006").then_some(())
        });
        let (mut flood, _) = talk(&daemon, "/flood", "").unwrap();
        for number in 0..2000_u32 {
            let wanted = number.to_le_bytes().repeat(1000);
            assert_eq!(flood.read().unwrap(), Message::binary(wanted));
        }
        assert_eq!(close_code(&mut flood).0, 1000);
        // Long ones come in fragments, which the client puts together. Not assert_eq: it would print them.
        let (mut large, _) = talk(&daemon, "/large", "").unwrap();
        assert!(large.read().unwrap() == Message::text("ä€😀".repeat(400_000)));
        let bytes: Vec<u8> = (0..=255).collect();
        assert!(large.read().unwrap() == Message::binary(bytes.repeat(50_000)));
        assert_eq!(close_code(&mut large).0, 1000);
        let (mut longest, _) = talk(&daemon, "/", "").unwrap();
        longest.send(Message::text("x".repeat(4 << 20))).unwrap();
        assert!(longest.read().unwrap() == Message::text("X".repeat(4 << 20)));
        longest
            .send(Message::text("x".repeat((4 << 20) + 1)))
            .unwrap();
        assert_eq!(close_code(&mut longest).0, 1009);
        let last = daemon.get("/fn/lab/").ok().text();
        assert_eq!(last, pid, "one worker served all");
        // Not a handshake.
        let mut bad = daemon.connect();
        bad.send_raw(b"GET /fn/lab/ HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 8\r\n\r\n");
        let refused = bad.receive("GET");
        assert_eq!(
            (refused.status, refused.header("sec-websocket-version")),
            (426, Some("13"))
        );
    }
}

#[test]
fn a_daemon_that_stops_says_goodbye_to_web_sockets() {
    for concurrency in [1, 8] {
        let mut daemon = crate::daemon_with(pilot_harness::DaemonOptions {
            config: Some("[limits]\ndrain_s = 2\n".to_owned()),
            ..Default::default()
        });
        let keys = json!({"interface": "asgi", "concurrency": concurrency});
        daemon.upload_code("lab", &keys, TALKER);
        let (mut echo, _) = talk(&daemon, "/echo", "").unwrap();
        let client = std::thread::spawn(move || {
            echo.send(Message::text("a")).unwrap();
            assert_eq!(echo.read().unwrap(), Message::text("A"));
            close_code(&mut echo)
        });
        eventually("its message was answered", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        assert_eq!(daemon.stop(), Some(0));
        assert_eq!(client.join().unwrap(), (1001, String::new()));
        assert!(!daemon.log().contains("cut off"), "{}", daemon.log());
        daemon.resume();
        assert!(daemon.logs("lab").contains("left with 1006"));
    }
}

/// Serves a WebSocket for as long as its client stays; answers with its process id, after the body has arrived or after a minute.
const SLOW_BESIDE_A_WEB_SOCKET: &str = r#"
import asyncio, os
async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    if scope["path"].endswith("/slow"): await asyncio.sleep(60)
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect": return
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
"#;

#[test]
fn a_request_that_times_out_beside_a_web_socket_takes_no_workers_place() {
    let keys = json!({"interface": "asgi", "concurrency": 4, "timeout_s": 1, "scale": {"max": 1}});
    let daemon = lab(SLOW_BESIDE_A_WEB_SOCKET, keys);
    let pid = daemon.get("/fn/lab/").ok().text();
    let (mut open, _) = talk(&daemon, "/", "").unwrap();
    let mut echoes = |word: &str| {
        open.send(Message::text(word)).unwrap();
        assert_eq!(open.read().unwrap(), Message::text(word));
    };
    echoes("a");
    // A client that sends slowly is not the worker's fault.
    let mut slow = daemon.connect();
    slow.send_raw(b"POST /fn/lab/ HTTP/1.1\r\nhost: x\r\ncontent-length: 7500000\r\n\r\n");
    slow.send_raw(&[b'x'; 300_000]);
    assert_eq!(slow.receive("POST").status, 502);
    assert_eq!(daemon.get("/fn/lab/").ok().text(), pid);
    // A handler that does not end is. The WebSocket keeps its worker, and others get another one.
    assert_eq!(daemon.get("/fn/lab/slow").status, 502);
    eventually("another worker serves", || {
        (daemon.get("/fn/lab/").ok().text() != pid).then_some(())
    });
    echoes("b");
}

#[test]
fn a_changed_secret_reaches_a_function_with_an_open_web_socket() {
    let daemon = crate::daemon();
    let set = |value: &str| {
        let put = Request::new("PUT", "/_pilot/v1/secrets/word").body(value.to_owned());
        daemon.send(&put).ok();
    };
    set("old");
    let keys = json!({
        "interface": "asgi", "concurrency": 4, "timeout_s": 10, "scale": {"max": 1},
        "secrets": {"WORD": "word"},
    });
    daemon.upload_code("lab", &keys, SLOW_BESIDE_A_WEB_SOCKET);
    let pid = daemon.get("/fn/lab/").ok().text();
    let (mut open, _) = talk(&daemon, "/", "").unwrap();
    set("new");
    assert_ne!(daemon.get("/fn/lab/").ok().text(), pid);
    open.send(Message::text("still")).unwrap();
    assert_eq!(open.read().unwrap(), Message::text("still"));
}

#[test]
fn a_half_answer_of_an_asgi_application_never_looks_whole() {
    let daemon = asgi();
    let mut connection = daemon.connect();
    connection.send(&Request::new("GET", "/fn/lab/late"));
    // The response is interrupted, or an error if nothing of it was sent yet. The client notices both, but not a complete 200.
    let whole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        connection.receive("GET").status
    }));
    assert!(!matches!(whole, Ok(200)), "a half answer looks whole");
    assert_eq!(
        daemon
            .send(&Request::new("POST", "/fn/lab/").body("on"))
            .ok()
            .text(),
        "on"
    );
}

#[test]
fn an_application_that_raises_in_mid_stream_is_cut_off_logged_and_serves_on() {
    for (code, keys) in [
        (ASGI, json!({"interface": "asgi", "handler": "app:app"})),
        (
            ASGI,
            json!({"interface": "asgi", "handler": "app:app", "concurrency": 4}),
        ),
        (WSGI, json!({"interface": "wsgi", "handler": "app:app"})),
    ] {
        let daemon = lab(code, keys);
        let mut connection = daemon.connect();
        connection.send(&Request::new("GET", "/fn/lab/cut"));
        let sent = connection.until_the_end();
        assert!(sent.starts_with(b"HTTP/1.1 200 OK\r\n"), "no head");
        assert!(sent.len() > 1_000_000, "{} bytes came", sent.len());
        assert!(!sent.ends_with(b"\r\n0\r\n\r\n"), "it looks whole");
        let next = daemon.send(&Request::new("POST", "/fn/lab/").body("on"));
        assert_eq!((next.start_kind(), next.text().as_str()), ("warm", "on"));
        eventually("the exception is in the log", || {
            let log = daemon.logs("lab");
            let report = log.lines().find(|line| line.contains("REPORT"))?;
            assert!(report.contains("Status: function_error"), "{report}");
            log.contains("[ERROR] ValueError: too late for a status")
                .then_some(())
        });
    }
}

/// Whether the exception arrives with the first bytes or after them is chance.
#[test]
fn an_application_that_raises_after_its_first_bytes_is_always_cut_off_and_before_them_never() {
    for concurrency in [1, 4] {
        let daemon = lab(
            WSGI,
            json!({"interface": "wsgi", "handler": "app:app", "concurrency": concurrency}),
        );
        for _ in 0..20 {
            let mut connection = daemon.connect();
            connection.send(&Request::new("GET", "/fn/lab/soon"));
            let sent = String::from_utf8(connection.until_the_end()).unwrap();
            assert!(sent.starts_with("HTTP/1.1 200 OK\r\n"), "{sent}");
            assert!(sent.contains("\r\n5\r\nfirst\r\n"), "{sent}");
            assert!(!sent.ends_with("\r\n0\r\n\r\n"), "it looks whole: {sent}");
            assert_eq!(daemon.get("/fn/lab/never").status, 502);
        }
    }
}

#[test]
fn asgi_lifespan_runs_in_every_worker_before_its_first_request() {
    let code = "import asyncio\nstate = []\nasync def app(scope, receive, send):\n    if scope['type'] == 'lifespan':\n        await receive()\n        await asyncio.sleep(0.01)\n        state.append('up')\n        await send({'type': 'lifespan.startup.complete'})\n        await receive()\n        await send({'type': 'lifespan.shutdown.complete'})\n        return\n    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    await send({'type': 'http.response.body', 'body': ','.join(state).encode()})\n";
    let daemon = lab(code, json!({"interface": "asgi", "handler": "app:app"}));
    for _ in 0..2 {
        assert_eq!(daemon.get("/fn/lab/").ok().text(), "up");
    }
    daemon.scale("lab", 0);
    assert_eq!(daemon.get("/fn/lab/").ok().text(), "up");
}

#[test]
fn a_wsgi_application_gets_body_and_gives_bytes_status_and_repeated_headers() {
    let daemon = wsgi();
    let response = daemon.send(&Request::new("POST", "/fn/lab/echo").body(bytes()));
    assert_eq!(response.status, 201);
    assert!(response.body == bytes());
    assert_eq!(response.all("set-cookie"), ["a=1", "b=2"]);
}

#[test]
fn a_wsgi_environ_is_what_pep_3333_says() {
    let daemon = wsgi();
    let request = Request::new("POST", "/fn/lab/environ?x=1")
        .header("x-custom-header", "seen")
        .header("content-type", "text/x")
        .body("four");
    let environ = daemon.send(&request).json();
    assert_eq!(environ["REQUEST_METHOD"], "POST");
    assert_eq!(environ["SCRIPT_NAME"], "/fn/lab");
    assert_eq!(environ["PATH_INFO"], "/environ");
    assert_eq!(environ["QUERY_STRING"], "x=1");
    assert_eq!(environ["CONTENT_LENGTH"], "4");
    assert_eq!(environ["CONTENT_TYPE"], "text/x");
    assert_eq!(environ["HTTP_X_CUSTOM_HEADER"], "seen");
    assert_eq!(environ["REMOTE_ADDR"], "127.0.0.1");
    assert_eq!(environ["wsgi.url_scheme"], "http");
}

#[test]
fn a_wsgi_stream_arrives_piece_by_piece() {
    arrives_piece_by_piece("wsgi", WSGI_STREAM);
}

#[test]
fn an_exception_of_a_wsgi_application_is_a_500_and_the_next_request_works() {
    let daemon = wsgi();
    assert!(matches!(daemon.get("/fn/lab/raise").status, 500 | 502));
    assert_eq!(
        daemon
            .send(&Request::new("POST", "/fn/lab/").body("on"))
            .text(),
        "on"
    );
}

#[test]
fn an_application_is_not_invoked_with_events() {
    let daemon = asgi();
    let response = daemon.invoke("lab", &json!({}));
    let text = response.text();
    assert!(
        response.status >= 400 || response.header("x-amz-function-error").is_some(),
        "{text}"
    );
    assert!(
        text.contains("asgi") || text.contains("/fn/"),
        "says what to do: {text}"
    );
}
