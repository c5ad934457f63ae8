//! Cases of HTTP/1.1 in which two programs could disagree where a request ends (RFC 9112, sections 2.2, 5.2, 6.1, 6.3, 11.2). Each
//! is sent to a function whose body is collected, and to one whose requests pass to a server of its own. Behind it comes a request
//! that an attacker wants to hide in it. Either the request is refused and the connection closed, or the function gets exactly one body.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Daemon, Function, soon, upstream};
use bytes::Bytes;
use pilot_model::ports::PassedRequest;
use pilot_testkit::Reaction;

/// What the functions got: `body` of the first one, and `hidden` if the hidden request was served as one of its own.
type Seen = Arc<Mutex<Vec<String>>>;

const HIDDEN: &str = "GET /fn/hidden/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

async fn daemon() -> (Daemon, Seen) {
    let seen = Seen::default();
    let (collected, passed, hidden) = (seen.clone(), seen.clone(), seen.clone());
    let server = upstream::strict(move |got| {
        let got = match got {
            Ok(request) => request.body,
            Err(problem) => format!("IN DOUBT: {problem}"),
        };
        passed.lock().unwrap().push(got);
    })
    .await;
    let daemon = Daemon::with(vec![
        Function::event("collected", move |call| {
            let event: serde_json::Value = serde_json::from_slice(&call.payload).unwrap();
            let body = event["body"].as_str().unwrap_or_default().to_owned();
            collected.lock().unwrap().push(body);
            Reaction::Return(Duration::ZERO, Bytes::from_static(b"\"ok\""), Bytes::new())
        }),
        // What reaches a real server, as bytes, must be one request that everybody reads in the same way.
        Function::server("passed", move |request: PassedRequest| {
            upstream::pass(server, request)
        }),
        Function::event("hidden", move |_| {
            hidden.lock().unwrap().push("hidden".to_owned());
            Reaction::Return(Duration::ZERO, Bytes::from_static(b"\"ok\""), Bytes::new())
        }),
    ])
    .await;
    (daemon, seen)
}

/// The statuses of all responses on the connection, and what the functions got.
async fn outcome(daemon: &Daemon, seen: &Seen, request: &str) -> (Vec<u16>, Vec<String>) {
    seen.lock().unwrap().clear();
    let mut client = daemon.client().await;
    client.send(request).await;
    let (bytes, _) = soon(client.until_the_end()).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let statuses = text
        .split("HTTP/1.1 ")
        .skip(1)
        .filter_map(|response| response.get(..3)?.parse().ok())
        .filter(|status| *status >= 200)
        .collect();
    let seen = seen.lock().unwrap().clone();
    (statuses, seen)
}

/// Head lines after the host, the body, and what the function may see: `None` if the request must be refused; otherwise its body, and
/// whether the request behind it is one of its own.
struct Case {
    name: &'static str,
    head: &'static str,
    body: &'static str,
    wanted: Option<(&'static str, Next)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A request of its own: everybody agrees where the first one ends.
    Served,
    /// Not read: the connection is closed.
    Dropped,
}

const fn refused(name: &'static str, head: &'static str, body: &'static str) -> Case {
    Case {
        name,
        head,
        body,
        wanted: None,
    }
}

const fn served(
    name: &'static str,
    head: &'static str,
    body: &'static str,
    got: &'static str,
) -> Case {
    Case {
        name,
        head,
        body,
        wanted: Some((got, Next::Served)),
    }
}

const CASES: &[Case] = &[
    served("a length", "content-length: 3\r\n", "abc", "abc"),
    served("no body", "", "", ""),
    served(
        "chunks",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "abc",
    ),
    served(
        "chunks, in capitals",
        "Transfer-Encoding: CHUNKED\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "abc",
    ),
    served(
        "a chunk extension",
        "transfer-encoding: chunked\r\n",
        "3;a=b\r\nabc\r\n0\r\n\r\n",
        "abc",
    ),
    served(
        "trailers",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\nx: y\r\n\r\n",
        "abc",
    ),
    served(
        "the same length twice",
        "content-length: 3\r\ncontent-length: 3\r\n",
        "abc",
        "abc",
    ),
    refused(
        "two lengths",
        "content-length: 3\r\ncontent-length: 0\r\n",
        "abc",
    ),
    refused("two lengths in one", "content-length: 3, 0\r\n", "abc"),
    refused("a signed length", "content-length: +3\r\n", "abc"),
    refused("a negative length", "content-length: -3\r\n", "abc"),
    refused("a length in hex", "content-length: 0x3\r\n", "abc"),
    refused("an empty length", "content-length: \r\n", "abc"),
    refused(
        "a length beyond 64 bits",
        "content-length: 18446744073709551617\r\n",
        "abc",
    ),
    refused(
        "an unknown coding",
        "transfer-encoding: cow\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "chunked, and then another coding",
        "transfer-encoding: chunked, identity\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a coding before chunked",
        "transfer-encoding: gzip, chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "chunked twice",
        "transfer-encoding: chunked, chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "an unknown coding after chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: cow\r\n",
        "0\r\n\r\n",
    ),
    refused(
        "a coding with a control character",
        "transfer-encoding: \x0bchunked\r\n",
        "0\r\n\r\n",
    ),
    refused(
        "a blank before the colon",
        "transfer-encoding : chunked\r\n",
        "0\r\n\r\n",
    ),
    refused(
        "a folded header",
        "transfer-encoding:\r\n chunked\r\n",
        "0\r\n\r\n",
    ),
    refused("a folded value", "x: a\r\n\tb\r\n", ""),
    refused(
        "a bare CR in a header",
        "x: a\rtransfer-encoding: chunked\r\n",
        "0\r\n\r\n",
    ),
    refused("a NUL in a header", "x: a\0b\r\n", ""),
    refused(
        "a chunk size with a sign",
        "transfer-encoding: chunked\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk size with 0x",
        "transfer-encoding: chunked\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "an empty chunk size",
        "transfer-encoding: chunked\r\n",
        "\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk size beyond 64 bits",
        "transfer-encoding: chunked\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk longer than its size",
        "transfer-encoding: chunked\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk size that ends with a bare LF",
        "transfer-encoding: chunked\r\n",
        "3\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk that ends with a bare LF",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\n0\r\n\r\n",
    ),
    refused(
        "an extension with a bare LF",
        "transfer-encoding: chunked\r\n",
        "3;a\nb\r\nabc\r\n0\r\n\r\n",
    ),
    served(
        "a chunk size with zeros before it",
        "transfer-encoding: chunked\r\n",
        "0003\r\nabc\r\n000\r\n\r\n",
        "abc",
    ),
    served(
        "a quoted chunk extension with what looks like an end",
        "transfer-encoding: chunked\r\n",
        "3;a=\"0;\"\r\nabc\r\n0\r\n\r\n",
        "abc",
    ),
    served(
        "trailers that name a framing",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\ncontent-length: 50\r\ntransfer-encoding: gzip\r\n\r\n",
        "abc",
    ),
    served(
        "a connection header that names the length",
        "connection: content-length\r\ncontent-length: 3\r\n",
        "abc",
        "abc",
    ),
    served(
        "a connection header that names the coding",
        "connection: transfer-encoding\r\ntransfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "abc",
    ),
    served(
        "a length with another name that some servers take for it",
        "content_length: 50\r\ncontent-length: 3\r\n",
        "abc",
        "abc",
    ),
    served(
        "codings that the client would take",
        "te: trailers, chunked\r\nconnection: te\r\ncontent-length: 3\r\n",
        "abc",
        "abc",
    ),
    served(
        "an upgrade to HTTP/2 without TLS",
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: 3\r\n",
        "abc",
        "abc",
    ),
    refused(
        "lengths in two headers and a list",
        "content-length: 3\r\ncontent-length: 3, 50\r\n",
        "abc",
    ),
    refused(
        "a length with a blank in it",
        "content-length: 3 0\r\n",
        "abc",
    ),
    refused("a length with a point", "content-length: 3.0\r\n", "abc"),
    refused("a length with a NUL", "content-length: 3\0\r\n", "abc"),
    refused(
        "a blank before the colon of the length",
        "content-length : 3\r\n",
        "abc",
    ),
    refused(
        "two codings, each chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a coding with a parameter",
        "transfer-encoding: chunked;q=1\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "an empty coding",
        "transfer-encoding: \r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a quoted coding",
        "transfer-encoding: \"chunked\"\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk size with an underscore",
        "transfer-encoding: chunked\r\n",
        "1_0\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk size with a NUL",
        "transfer-encoding: chunked\r\n",
        "3\0\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "a chunk without its line end",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc0\r\n\r\n",
    ),
    refused(
        "a chunk size that ends with a bare CR",
        "transfer-encoding: chunked\r\n",
        "3\rabc\r\n0\r\n\r\n",
    ),
    refused(
        "a last chunk without the empty line behind it",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\n",
    ),
    refused(
        "a trailer that is folded",
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\nx: a\r\n b\r\n\r\n",
    ),
];

/// Chunks win over a length (RFC 9112, section 6.3), and the connection must be closed, because a proxy before the daemon may have
/// believed the length.
const BOTH: Case = Case {
    name: "a length and chunks",
    head: "content-length: 50\r\ntransfer-encoding: chunked\r\n",
    body: "3\r\nabc\r\n0\r\n\r\n",
    wanted: Some(("abc", Next::Dropped)),
};

#[tokio::test]
async fn nobody_can_hide_a_request_in_another_one() {
    let (daemon, seen) = daemon().await;
    let mut wrong = Vec::new();
    for function in ["collected", "passed"] {
        for case in CASES.iter().chain([&BOTH]) {
            let Case {
                name,
                head,
                body,
                wanted,
            } = case;
            let request = format!(
                "POST /fn/{function}/ HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n{head}\r\n{body}{HIDDEN}"
            );
            let (statuses, got) = outcome(&daemon, &seen, &request).await;
            let right = match wanted {
                None => {
                    matches!(statuses[..], [status] if (400..=501).contains(&status))
                        && got.is_empty()
                }
                Some((body, Next::Served)) => statuses == [200, 200] && got == [*body, "hidden"],
                Some((body, Next::Dropped)) => statuses == [200] && got == [*body],
            };
            if !right {
                wrong.push(format!("{function}, {name}: {statuses:?} {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What becomes of a request by its request line and its host, whose function is `{function}`.
enum Fate {
    /// Refused, and the connection closed: what comes behind it is not read.
    Refused,
    /// Answered with this status by the gateway or the control side, and what comes behind it is a request of its own.
    Answered(u16),
    /// The function gets exactly this one.
    Served,
}

/// (what, request line, headers)
const HEADS: &[(&str, &str, &str, Fate)] = &[
    (
        "origin-form",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "absolute-form",
        "POST http://x/fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "absolute-form with another host",
        "POST http://y/fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "asterisk-form",
        "OPTIONS * HTTP/1.1",
        "host: x\r\n",
        Fate::Answered(200),
    ),
    (
        "a tunnel",
        "CONNECT x:80 HTTP/1.1",
        "host: x\r\n",
        Fate::Answered(405),
    ),
    (
        "a query with another request line in it",
        "POST /fn/{function}/?HTTP/1.1 HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "escaped line ends in the path",
        "POST /fn/{function}/%0d%0aGET%20/fn/hidden/ HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "a fragment",
        "POST /fn/{function}/#x HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "a method that is no token",
        "PO(ST /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Refused,
    ),
    (
        "a method with a NUL",
        "PO\0ST /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Refused,
    ),
    (
        "a method with a colon",
        "POST: /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Refused,
    ),
    (
        "an empty method",
        " /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Refused,
    ),
    (
        "a method of its own",
        "BREW /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
    (
        "no host",
        "POST /fn/{function}/ HTTP/1.1",
        "",
        Fate::Refused,
    ),
    (
        "two hosts",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x\r\nhost: y\r\n",
        Fate::Refused,
    ),
    (
        "one host twice",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x\r\nhost: x\r\n",
        Fate::Refused,
    ),
    (
        "a host with a blank before its colon",
        "POST /fn/{function}/ HTTP/1.1",
        "host : x\r\n",
        Fate::Refused,
    ),
    (
        "a host with a blank in it",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x y\r\n",
        Fate::Refused,
    ),
    (
        "a host that is a URL",
        "POST /fn/{function}/ HTTP/1.1",
        "host: http://x/\r\n",
        Fate::Refused,
    ),
    (
        "absolute-form with user information",
        "POST http://x@y/fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Refused,
    ),
    (
        "a folded host",
        "POST /fn/{function}/ HTTP/1.1",
        "host:\r\n x\r\n",
        Fate::Refused,
    ),
    (
        "a header name with a NUL",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x\r\nx\0: y\r\n",
        Fate::Refused,
    ),
    (
        "a header name with a bare LF",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x\r\nx\n: y\r\n",
        Fate::Refused,
    ),
    (
        "a bare CR at a line's end",
        "POST /fn/{function}/ HTTP/1.1",
        "host: x\rx: y\r\n",
        Fate::Refused,
    ),
    (
        "empty lines before it",
        "\r\n\r\nPOST /fn/{function}/ HTTP/1.1",
        "host: x\r\n",
        Fate::Served,
    ),
];

#[tokio::test]
async fn a_request_line_is_read_in_one_way_or_refused() {
    let (daemon, seen) = daemon().await;
    let mut wrong = Vec::new();
    for function in ["collected", "passed"] {
        for (what, line, headers, fate) in HEADS {
            let line = line.replace("{function}", function);
            let request = format!(
                "{line}\r\n{headers}content-length: 3\r\ncontent-type: text/plain\r\n\r\nabc{HIDDEN}"
            );
            let (statuses, got) = outcome(&daemon, &seen, &request).await;
            let right = match fate {
                Fate::Refused => matches!(statuses[..], [] | [400..=505]) && got.is_empty(),
                Fate::Answered(status) => statuses == [*status, 200] && got == ["hidden"],
                Fate::Served => statuses == [200, 200] && got == ["abc", "hidden"],
            };
            if !right {
                wrong.push(format!("{function}, {what}: {statuses:?} {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn lines_that_end_with_a_bare_lf_hide_nothing() {
    // A recipient may take a bare LF for a line end (RFC 9112 §2.2). What reaches the server has CRLF again.
    let (daemon, seen) = daemon().await;
    for function in ["collected", "passed"] {
        let request = format!(
            "POST /fn/{function}/ HTTP/1.1\nhost: x\ncontent-length: 3\ncontent-type: text/plain\n\nabc{HIDDEN}"
        );
        let (statuses, got) = outcome(&daemon, &seen, &request).await;
        assert_eq!(
            (&statuses[..], &got[..]),
            (
                &[200, 200][..],
                &["abc".to_owned(), "hidden".to_owned()][..]
            )
        );
    }
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let (daemon, seen) = daemon().await;
    let long = "x".repeat(1 << 20);
    let many = "x: y\r\n".repeat(2_000);
    for function in ["collected", "passed"] {
        for (line, headers) in [
            (
                format!("POST /fn/{function}/?{long} HTTP/1.1"),
                String::new(),
            ),
            (
                format!("POST /fn/{function}/ HTTP/1.1"),
                format!("x: {long}\r\n"),
            ),
            (
                format!("POST /fn/{function}/ HTTP/1.1"),
                format!("{long}: x\r\n"),
            ),
            (format!("POST /fn/{function}/ HTTP/1.1"), many.clone()),
            (format!("{long} /fn/{function}/ HTTP/1.1"), String::new()),
        ] {
            let request = format!("{line}\r\nhost: x\r\n{headers}\r\n{HIDDEN}");
            let (statuses, got) = outcome(&daemon, &seen, &request).await;
            let shown: String = line.chars().take(60).collect();
            assert!(
                matches!(statuses[..], [400..=431]),
                "{function} {shown}: {statuses:?}"
            );
            assert!(got.is_empty(), "{function} {shown}: {got:?}");
        }
    }
}

#[tokio::test]
async fn a_head_has_64_kib_at_most_and_a_larger_one_is_431_on_a_kept_connection_too() {
    let (daemon, _) = daemon().await;
    let of_len = |len: usize| {
        let begin = "GET /x HTTP/1.1\r\nhost: x\r\nx: ";
        let value = "\"".repeat(len - begin.len() - 4);
        format!("{begin}{value}\r\n\r\n")
    };
    let mut client = daemon.client().await;
    client.send(of_len(64 * 1024)).await;
    assert_eq!(soon(client.answer()).await.status, 200);
    // More than the daemon reads before it answers.
    client
        .send(of_len(64 * 1024 + 1) + &"x".repeat(1 << 20))
        .await;
    assert_eq!(soon(client.answer()).await.status, 431);
    assert_eq!(soon(client.closed()).await, b"");
}

#[tokio::test]
async fn a_chunked_request_of_http_1_0_is_refused_or_ends_its_connection() {
    // Its sender may be behind a proxy that does not know chunks (RFC 9112 §6.1).
    let (daemon, seen) = daemon().await;
    for function in ["collected", "passed"] {
        let request = format!(
            "POST /fn/{function}/ HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{HIDDEN}"
        );
        let (statuses, got) = outcome(&daemon, &seen, &request).await;
        assert!(statuses.len() <= 1, "{function}: {statuses:?}");
        assert!(!got.contains(&"hidden".to_owned()), "{function}: {got:?}");
    }
}

#[tokio::test]
async fn a_head_that_is_not_http_is_refused() {
    let (daemon, seen) = daemon().await;
    let mut wrong = Vec::new();
    for head in [
        "POST /fn/collected/ HTTP/1.1\r\nhost: x\r\n: empty\r\n\r\n",
        "POST /fn/collected/ HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n",
        "POST /fn/collected/ HTTP/1.1\r\n host: x\r\n\r\n",
        "POST /fn/collected/ HTTP/1.1\r\nho st: x\r\n\r\n",
        "POST  /fn/collected/ HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /fn/collected/\tHTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /fn/coll\0ected/ HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /fn/collected/ HTTP/1.1 x\r\nhost: x\r\n\r\n",
        "POST /fn/collected/ HTTP/2.0\r\nhost: x\r\n\r\n",
        "POST /fn/collected/ http/1.1\r\nhost: x\r\n\r\n",
        "POST /fn/collected/\r\nhost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let (statuses, got) = outcome(&daemon, &seen, &format!("{head}{HIDDEN}")).await;
        let right = matches!(statuses[..], [] | [400..=505]) && got.is_empty();
        if !right {
            wrong.push(format!("{head:?}: {statuses:?} {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
