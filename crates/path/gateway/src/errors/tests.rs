//! The table as a snapshot: one row per kind of error. To accept a change, run with `UPDATE_SNAPSHOTS=1`.

use std::fmt::Write as _;
use std::time::Duration;

use pilot_invoke::{InvokeError, ThrottleReason};
use pilot_model::access::Role;
use pilot_model::ports::{InputFault, StartError, WorkerFault};

use pilot_model::calls::Refusal;

use super::*;
use crate::signature::SignatureError;
use crate::token::TokenError;

#[test]
fn the_table_is_as_it_was_agreed() {
    let mut table = String::new();
    for error in request_errors() {
        line(&mut table, error.row(), &error.message());
    }
    for error in answer_errors() {
        line(&mut table, error.row(), &error.to_string());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/errors/table.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let agreed = std::fs::read_to_string(path).unwrap();
    assert_eq!(table, agreed, "UPDATE_SNAPSHOTS=1 accepts the change");
}

#[test]
fn an_error_is_rendered_as_lambda_does() {
    let error = RequestError::Invoke(InvokeError::TooManyRequests {
        name: "invert".parse().unwrap(),
        reason: ThrottleReason::QueueFull,
        retry_after_s: 1,
    });
    let reply = error.into_reply(&InvocationId::new("id-1"));
    assert_eq!(reply.status(), 429);
    assert_eq!(
        reply.headers()["x-amzn-errortype"],
        "TooManyRequestsException"
    );
    assert_eq!(reply.headers()["x-amzn-requestid"], "id-1");
    assert_eq!(reply.headers()["retry-after"], "1");
    let ReplyBody::Full(body) = reply.body() else {
        panic!("errors are whole");
    };
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(body["Type"], "User");
    assert_eq!(
        body["Reason"],
        "ReservedFunctionConcurrentInvocationLimitExceeded"
    );
    assert!(
        body["Message"]
            .as_str()
            .unwrap()
            .starts_with("Rate Exceeded.")
    );
}

fn line(table: &mut String, row: Row, message: &str) {
    let _ = writeln!(
        table,
        "{} {} {:?}{}{} | {message}",
        row.status.as_u16(),
        row.name,
        row.kind,
        row.reason
            .map(|reason| format!(" reason={reason}"))
            .unwrap_or_default(),
        row.retry_after_s
            .map(|seconds| format!(" retry-after={seconds}"))
            .unwrap_or_default(),
    );
}

fn request_errors() -> Vec<RequestError> {
    let mut errors = vec![
        RequestError::InvalidName {
            name: "a b".to_owned(),
        },
        RequestError::InvalidQualifier {
            qualifier: "a b".to_owned(),
        },
        RequestError::QualifierMismatch {
            in_name: "1".to_owned(),
            in_query: "2".to_owned(),
        },
        RequestError::InvalidMember {
            member: "invocationType",
            value: "Later".to_owned(),
            allowed: "Event, RequestResponse, DryRun",
        },
        RequestError::InvalidContent {
            problem: "Could not parse request body into json: expected value at line 1 column 1"
                .to_owned(),
        },
        RequestError::Input {
            problem: "write NAME=SCHEME://STORE/KEY".to_owned(),
        },
        RequestError::Target {
            problem: "write NAME, NAME".to_owned(),
        },
        RequestError::TooLarge { limit: 6_291_456 },
        RequestError::Body {
            problem: "no data for 30 s".to_owned(),
        },
        RequestError::Expectation,
        RequestError::BodiesFull,
        RequestError::ConnectionsFull,
        RequestError::WebSocketVersion,
        RequestError::NoDescriptors {
            problem: "Too many open files (os error 24)".to_owned(),
        },
        RequestError::NotSupported {
            feature: "InvocationType Event",
            instead: "use RequestResponse",
        },
        RequestError::UnknownOperation {
            method: "GET".to_owned(),
        },
        RequestError::Token(TokenError::Missing),
        RequestError::Token(TokenError::Wrong),
        RequestError::Token(TokenError::Denied(Role::Invoke)),
        RequestError::Signature(SignatureError::Incomplete {
            problem: "Authorization header requires 'Signature' parameter".to_owned(),
        }),
        RequestError::Signature(SignatureError::UnknownKey),
        RequestError::Signature(SignatureError::Time {
            problem: "Signature expired: A is now earlier than B (C - 900 s.)".to_owned(),
        }),
        RequestError::Signature(SignatureError::Scope {
            problem: "correct service: 'lambda'.".to_owned(),
        }),
        RequestError::Signature(SignatureError::Mismatch),
        RequestError::Signature(SignatureError::Target {
            cause: "Signers disagree.",
        }),
        RequestError::Signature(SignatureError::Body),
        RequestError::NotAccepted(NotAccepted::Full {
            problem: "100000 invocations wait".to_owned(),
        }),
        RequestError::NotAccepted(NotAccepted::Disk {
            problem: "database or disk is full".to_owned(),
        }),
        RequestError::NotAccepted(NotAccepted::KeyReused {
            id: "14495d27-38ef-465e-8ca0-cc7dde11879f".to_owned(),
        }),
        RequestError::NotAccepted(NotAccepted::Stopping),
    ];
    errors.extend(invoke_errors().into_iter().map(RequestError::Invoke));
    errors
}

fn invoke_errors() -> Vec<InvokeError> {
    let name = || "invert".parse().unwrap();
    vec![
        InvokeError::FunctionNotFound {
            name: "nope".to_owned(),
        },
        InvokeError::VersionNotFound {
            name: "invert".to_owned(),
            qualifier: "9".to_owned(),
        },
        InvokeError::Broken {
            name: "invert".to_owned(),
            problem: "its code /var/lib/pilotlight/code/1f is gone; deploy it again".to_owned(),
        },
        throttled(ThrottleReason::QueueFull, 1),
        throttled(ThrottleReason::Late, 7),
        throttled(ThrottleReason::QueueTimeout, 1),
        throttled(ThrottleReason::StartTimeout, 1),
        InvokeError::PayloadTooLarge {
            bytes: 7_000_000,
            bytes_max: 6_291_456,
        },
        InvokeError::StartFailed {
            name: name(),
            error: StartError::Full {
                problem: "a pipe: Too many open files".to_owned(),
            },
        },
        InvokeError::StartFailed {
            name: name(),
            error: StartError::Sandbox {
                problem: "clone: EPERM".to_owned(),
            },
        },
        InvokeError::StartFailed {
            name: name(),
            error: StartError::Runtime {
                problem: "it exited with status 1".to_owned(),
                output: String::new(),
            },
        },
        InvokeError::BodyTimedOut {
            after: Duration::from_secs(1),
        },
        InvokeError::BodyBroken {
            fault: WorkerFault::Signalled {
                signal: 11,
                output: Bytes::new(),
            },
        },
        InvokeError::BodyRaised {
            body: Bytes::from_static(b"{}"),
        },
        InvokeError::UploadBroken {
            problem: "no data for 30 s".to_owned(),
        },
        of_body(
            InputFaultKind::TooLarge,
            "it has 2 GB, and one input may have 1 GB: see data.input_mb",
        ),
        of_body(
            InputFaultKind::Broken,
            "it did not arrive: no data for 30 s",
        ),
        of_body(
            InputFaultKind::Decode,
            "it cannot be decoded as npy: no numpy file",
        ),
        of_body(InputFaultKind::Unavailable, "no memory for it"),
        of_node(Reason::NoRoom),
        of_node(Reason::Unavailable),
        of_node(Reason::NotFound),
        of_node(Reason::Forbidden),
        of_node(Reason::NotSupported),
        InvokeError::ShuttingDown,
    ]
}

fn throttled(reason: ThrottleReason, retry_after_s: u32) -> InvokeError {
    InvokeError::TooManyRequests {
        name: "invert".parse().unwrap(),
        reason,
        retry_after_s,
    }
}

fn of_body(kind: InputFaultKind, problem: &str) -> InvokeError {
    InvokeError::BodyInput {
        fault: InputFault {
            input: "file".to_owned(),
            source_text: "direct://request/body".to_owned(),
            kind,
            problem: problem.to_owned(),
        },
    }
}

fn of_node(reason: Reason) -> InvokeError {
    InvokeError::Elsewhere {
        name: "invert".parse().unwrap(),
        refusal: Refusal::new(reason, "node 'b': so it is"),
    }
}

fn answer_errors() -> Vec<AnswerError> {
    vec![
        AnswerError::Function {
            error_type: "Sandbox.Timedout".to_owned(),
            error_message: "Task timed out after 1.00 seconds".to_owned(),
        },
        AnswerError::Malformed {
            problem: "statusCode is \"abc\", must be 200 to 599".to_owned(),
        },
        AnswerError::TooLarge { limit: 6_291_556 },
    ]
}
