//! Cases of HTTP/1.1 in which two programs could disagree where a request ends (RFC 9112, sections 2.2, 5.2, 6.1, 6.3, 11.2). Each
//! is sent to a function whose body is collected, and to one whose requests pass to a server of its own. Behind it comes a request
//! that an attacker wants to hide in it. Either the request is refused and the connection closed, or the function gets exactly one body.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use pilot_model::ports::PassedRequest;
use pilot_testkit::Deed;
use support::{Daemon, Function, soon, upstream};

/// What the functions got: `body` of the first one, and `hidden` if the hidden request was served as one of its own.
type Seen = Arc<Mutex<Vec<String>>>;

const HIDDEN: &str = "GET /fn/hidden/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

async fn daemon() -> (Daemon, Seen) {
    let seen = Seen::default();
    let (collected, passed, hidden) = (seen.clone(), seen.clone(), seen.clone());
    let daemon = Daemon::with(vec![
        Function::event("collected", move |call| {
            let event: serde_json::Value = serde_json::from_slice(&call.payload).unwrap();
            let body = event["body"].as_str().unwrap_or_default().to_owned();
            collected.lock().unwrap().push(body);
            Deed::Return(Duration::ZERO, Bytes::from_static(b"\"ok\""), Bytes::new())
        }),
        Function::server("passed", move |request: PassedRequest| {
            let seen = passed.clone();
            async move {
                let body = request.into_body().collect().await;
                let body = body.map_err(|error| upstream::fault(&*error))?.to_bytes();
                let body = String::from_utf8_lossy(&body).into_owned();
                seen.lock().unwrap().push(body);
                Ok(upstream::response("ok"))
            }
        }),
        Function::event("hidden", move |_| {
            hidden.lock().unwrap().push("hidden".to_owned());
            Deed::Return(Duration::ZERO, Bytes::from_static(b"\"ok\""), Bytes::new())
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
