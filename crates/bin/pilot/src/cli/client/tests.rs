use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::thread;

use pilot_model::FunctionSpec;

use super::*;

/// A request as received: the lines of its head, and its body.
struct Seen {
    head: Vec<String>,
    body: Vec<u8>,
}

fn read_request(stream: &TcpStream) -> Seen {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            text => head.push(text.to_ascii_lowercase()),
        }
    }
    let length = head
        .iter()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Seen { head, body }
}

fn client_of(listener: &TcpListener, token: Option<&str>) -> Client {
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    Client::at(Some(&endpoint), token.map(str::to_owned), None).unwrap()
}

#[test]
fn nobody_listening_is_an_unreachable_daemon() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client_of(&listener, None);
    drop(listener);
    let error = client.fetch::<serde_json::Value>("/").unwrap_err();
    assert!(
        matches!(error.downcast_ref(), Some(Failure::Unreachable { .. })),
        "{error:#}"
    );
}

#[test]
fn a_socket_is_used_like_an_address_and_also_when_its_path_is_long() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a-long-name-".repeat(12));
    std::fs::create_dir(&deep).unwrap();
    let path = deep.join("control.sock");
    let listener = crate::unix_path::short(&path, |path| UnixListener::bind(path)).unwrap();
    let client = Client::at(Some(&format!("unix:{}", path.display())), None, None).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let len = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n[]")
            .unwrap();
        String::from_utf8_lossy(&head[..len]).into_owned()
    });
    let list: Vec<serde_json::Value> = client.fetch("/_pilot/v1/functions").unwrap();
    assert!(list.is_empty());
    let head = server.join().unwrap();
    assert!(
        head.starts_with("GET /_pilot/v1/functions HTTP/1.1\r\n"),
        "{head}"
    );
    // Nobody listens any more.
    let error = client.fetch::<serde_json::Value>("/").unwrap_err();
    assert!(
        matches!(error.downcast_ref(), Some(Failure::Unreachable { .. })),
        "{error:#}"
    );
}

#[test]
fn an_upload_is_sent_with_its_length_and_answered_line_by_line() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client_of(&listener, Some("secret"));
    let (told, first_was_read) = mpsc::channel::<()>();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let seen = read_request(&stream);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nfirst\n\r\n")
            .unwrap();
        // The second line is sent only after the first was read. If the client held the first line back, this would wait for ever.
        first_was_read.recv().unwrap();
        stream.write_all(b"7\r\nsecond\n\r\n0\r\n\r\n").unwrap();
        seen
    });
    let form = Multipart::new(&FunctionSpec::default(), archive()).unwrap();
    let answer = client.upload(&"a".parse().unwrap(), form).unwrap();
    let mut lines = answer.lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    told.send(()).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "second");
    assert!(lines.next().is_none());

    let seen = server.join().unwrap();
    assert_eq!(seen.head[0], "put /_pilot/v1/functions/a http/1.1");
    assert!(
        seen.head
            .contains(&"authorization: bearer secret".to_owned())
    );
    assert!(!seen.head.iter().any(|line| line.contains("chunked")));
    assert!(seen.body.windows(7).any(|window| window == b"archive"));
}

#[test]
fn a_name_that_is_not_there_brings_the_nearest_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client_of(&listener, None);
    let server = thread::spawn(move || {
        let list = r#"[{"name":"invert","version":"0","number":1,"runtime":"python","handler":"app.handler",
            "deployed_unix_s":0,"workers":{"starting":0,"idle":0,"busy":0,"waiting":0,"memory_bytes":0},
            "totals":{"invocations":0,"cold":0,"errors":0}}]"#;
        let missing = r#"{"code":"not_found","message":"no such function"}"#;
        for (status, body) in [("404 Not Found", missing), ("200 OK", list)] {
            let (mut stream, _) = listener.accept().unwrap();
            read_request(&stream);
            let head = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + body).as_bytes()).unwrap();
        }
    });
    let error = client
        .delete_function(&"invrt".parse().unwrap())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no function 'invrt': did you mean 'invert'?"
    );
    server.join().unwrap();
}

fn archive() -> Archive {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"archive").unwrap();
    file.rewind().unwrap();
    Archive {
        file,
        bytes: 7,
        content: pilot_deploy::content::Content::default(),
    }
}
