//! Tests the codec with the vectors that Rust, Python and Node.js share.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read its vectors fails"
)]

use std::sync::Arc;

use pilot_model::ports::{Input, InputKind, StoreObject, StoreRead};
use pilot_model::{FailedInput, HttpRequestHead, Instant, InvocationHead, InvocationId};
use pilot_wire::{Frame, FrameDecoder, FrameError, FrameKind, Header, meta};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../vectors/frames.json")).unwrap()
}

fn bytes(vector: &Value) -> Vec<u8> {
    let hex = vector["hex"].as_str().unwrap();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn kind(name: &Value) -> FrameKind {
    match name.as_str().unwrap() {
        "INVOKE" => FrameKind::Invoke,
        "HTTP" => FrameKind::Http,
        "SECRETS" => FrameKind::Secrets,
        "CANCEL" => FrameKind::Cancel,
        "WINDOW" => FrameKind::Window,
        "READY" => FrameKind::Ready,
        "RESULT" => FrameKind::Result,
        "ERROR" => FrameKind::Error,
        "HEAD" => FrameKind::Head,
        "CHUNK" => FrameKind::Chunk,
        "END" => FrameKind::End,
        "INIT_ERROR" => FrameKind::InitError,
        other => panic!("{other}"),
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = FrameDecoder::default();
    decoder.space(bytes.len()).extend_from_slice(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn a_valid_frame_is_decoded_and_encoded_again() {
    for vector in vectors()["valid"].as_array().unwrap() {
        let hex = bytes(vector);
        let frames = decode(&hex).unwrap();
        let [frame] = &frames[..] else {
            panic!("{}: {} frames", vector["name"], frames.len());
        };
        assert_eq!(frame.kind, kind(&vector["kind"]));
        assert_eq!(u64::from(frame.stream), vector["stream"]);
        assert_eq!(frame.body, vector["body"].as_str().unwrap());
        let meta: Value = match &frame.meta[..] {
            b"" => Value::Null,
            json => serde_json::from_slice(json).unwrap(),
        };
        assert_eq!(meta, vector["meta"]);
        let header = Header::new(frame.kind, frame.stream, &frame.meta, &frame.body).unwrap();
        assert_eq!(
            [&header.encode()[..], &frame.meta, &frame.body].concat(),
            hex
        );
    }
}

#[test]
fn an_invalid_frame_is_refused_with_its_reason() {
    for vector in vectors()["invalid"].as_array().unwrap() {
        let reason = match decode(&bytes(vector)) {
            Ok(frames) => {
                assert!(frames.is_empty(), "{vector}");
                "truncated"
            }
            Err(FrameError::FrameKind { .. }) => "unknown_kind",
            Err(FrameError::TooLong { part: "meta", .. }) => "meta_too_long",
            Err(FrameError::TooLong { .. }) => "body_too_long",
            Err(FrameError::Descriptors { .. }) => "too_many_descriptors",
            Err(FrameError::Reserved { .. }) => "reserved_not_zero",
        };
        assert_eq!(reason, vector["error"], "{vector}");
    }
}

#[test]
fn a_sequence_is_taken_apart() {
    for vector in vectors()["sequences"].as_array().unwrap() {
        let frames = decode(&bytes(vector)).unwrap();
        let expected = vector["frames"].as_array().unwrap();
        assert_eq!(frames.len(), expected.len());
        for (frame, expected) in frames.iter().zip(expected) {
            assert_eq!(frame.kind, kind(&expected[0]));
            assert_eq!(u64::from(frame.stream), expected[1]);
            assert_eq!(frame.body, expected[2].as_str().unwrap());
        }
    }
}

fn text(meta: &Value, key: &str) -> String {
    meta[key].as_str().unwrap().to_owned()
}

/// The head for a meta of the vectors.
fn head(meta: &Value) -> InvocationHead {
    let http = meta.get("method").map(|_| HttpRequestHead {
        method: text(meta, "method"),
        path: text(meta, "path"),
        query: text(meta, "query"),
        root_path: text(meta, "root_path"),
        headers: serde_json::from_value(meta["headers"].clone()).unwrap(),
        client: {
            let client = &meta["client"];
            let text = format!("{}:{}", client[0].as_str().unwrap(), client[1]);
            text.parse().unwrap()
        },
        scheme: "http",
    });
    InvocationHead {
        id: InvocationId::new(meta["id"].as_str().unwrap()),
        arn: text(meta, "arn"),
        version: text(meta, "version").parse().unwrap(),
        deadline_unix_ms: meta["deadline_ms"].as_u64().unwrap(),
        client_context: meta
            .get("client_context")
            .map(|_| text(meta, "client_context")),
        trace: meta.get("trace").map(|_| text(meta, "trace")),
        trace_state: meta
            .get("trace_state")
            .map(|_| text(meta, "trace_state").into()),
        failed_inputs: meta
            .get("failed_inputs")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|failed| FailedInput {
                name: text(failed, "name"),
                problem: text(failed, "problem"),
            })
            .collect(),
        http,
    }
}

fn read(store: &Value) -> StoreRead {
    let object = match text(store, "kind").as_str() {
        "s3" => StoreObject::S3 {
            endpoint: store.get("endpoint").map(|_| text(store, "endpoint")),
            bucket: text(store, "bucket"),
            key: text(store, "key"),
            headers: serde_json::from_value(store["headers"].clone()).unwrap(),
        },
        _ => StoreObject::Redis {
            host: text(store, "host"),
            port: u16::try_from(store["port"].as_u64().unwrap()).unwrap(),
            database: store["database"].as_i64().unwrap(),
            key: text(store, "key"),
        },
    };
    StoreRead {
        object,
        asked: Instant(store["asked_ns"].as_u64().unwrap()),
    }
}

fn inputs(meta: &Value) -> Vec<Input> {
    let described = meta.get("inputs").and_then(Value::as_array);
    let input = |entry: &Value| Input {
        name: text(entry, "name"),
        kind: match (text(entry, "kind").as_str(), entry["len"].as_u64()) {
            ("memory", Some(len)) => InputKind::Memory { len },
            ("growing", len) => InputKind::Growing { len },
            ("progress", None) => InputKind::Progress,
            ("socket", None) => InputKind::Socket,
            _ => panic!("{entry}"),
        },
        descriptor: std::sync::Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
        object: entry.get("store").map(|store| Arc::new(read(store))),
        decoded: entry
            .get("decoded")
            .map(|it| Arc::new(serde_json::from_value(it.clone()).unwrap())),
    };
    described.into_iter().flatten().map(input).collect()
}

fn paths(meta: &Value) -> Vec<String> {
    let described = meta.get("inputs").and_then(Value::as_array);
    let path = |entry: &Value| entry.get("path").map(|_| text(entry, "path"));
    described.into_iter().flatten().filter_map(path).collect()
}

#[test]
fn an_invocation_is_written_as_the_vectors_have_it() {
    let vectors = vectors();
    let valid = vectors["valid"].as_array().unwrap().iter();
    let invocations =
        valid.filter(|vector| ["INVOKE", "HTTP"].contains(&vector["kind"].as_str().unwrap()));
    let mut seen = 0;
    for vector in invocations
        .chain(vectors["with_inputs"].as_array().unwrap())
        .chain(vectors["with_decoded"].as_array().unwrap())
        .chain(vectors["with_growing"].as_array().unwrap())
        .chain(vectors["with_paths"].as_array().unwrap())
    {
        let expected = &vector["meta"];
        let paths = paths(expected);
        let inputs = inputs(expected);
        let (_, json) = meta::of_invocation(&head(expected), &inputs, &paths);
        let written: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(&written, expected, "{}", vector["name"]);
        let header = Header::new(FrameKind::Invoke, 1, &json, b"").unwrap();
        let descriptors = if paths.is_empty() { inputs.len() } else { 0 };
        let header = header.with_descriptors(descriptors).unwrap();
        assert_eq!(
            u64::from(header.flags),
            vector["descriptors"].as_u64().unwrap_or(0)
        );
        seen += 1;
    }
    assert!(seen >= 8);
}

#[test]
fn a_frame_has_64_descriptors_at_most() {
    let header = Header::new(FrameKind::Invoke, 1, b"", b"").unwrap();
    assert_eq!(header.with_descriptors(64).unwrap().flags, 64);
    assert!(header.with_descriptors(65).is_err());
    assert!(header.with_descriptors(256).is_err());
}

#[test]
fn objects_of_stores_never_make_a_call_too_long() {
    let meta: Value =
        serde_json::from_str(r#"{"id":"i","arn":"a","version":"1","deadline_ms":1}"#).unwrap();
    let of_key = |key: &str| Input {
        name: "x".to_owned(),
        kind: InputKind::Memory { len: 1 },
        descriptor: Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
        object: Some(Arc::new(StoreRead {
            object: StoreObject::Redis {
                host: "h".to_owned(),
                port: 1,
                database: 0,
                key: key.to_owned(),
            },
            asked: Instant(u64::MAX),
        })),
        decoded: None,
    };
    // Each of these characters takes two bytes in JSON.
    let mut inputs = vec![of_key(&"\"".repeat(5000)); 31];
    inputs.push(of_key("a\u{1}b"));
    let (_, json) = meta::of_invocation(&head(&meta), &inputs, &[]);
    assert!(json.len() < 128 * 1024, "{}", json.len());
    let written: Value = serde_json::from_slice(&json).unwrap();
    let named: Vec<bool> = written["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|input| input.get("store").is_some())
        .collect();
    assert_eq!(named.iter().filter(|named| **named).count(), 9);
    assert!(named[0] && !named[31], "control characters are not named");
}
