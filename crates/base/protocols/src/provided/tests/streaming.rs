//! Streamed answers.

use super::*;
use crate::End;

const STREAMING: &str =
    "Lambda-Runtime-Function-Response-Mode: streaming\r\nTransfer-Encoding: chunked\r\n";
const PRELUDE: &str = "Content-Type: application/vnd.awslambda.http-integration-response\r\n";

impl Peer {
    /// The head of a streamed answer to invocation `1`.
    async fn begin(&mut self, headers: &str) {
        let head = format!(
            "POST {API}/invocation/1/response HTTP/1.1\r\nHost: x\r\n{STREAMING}{headers}\r\n"
        );
        self.write(head).await;
    }

    async fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let size = format!("{:x}\r\n", bytes.len());
        self.write([size.as_bytes(), bytes, b"\r\n"].concat()).await;
    }
}

/// A call whose event the runtime has taken.
async fn under_way() -> (Rig, tokio::task::JoinHandle<Result<Answer, WorkerFault>>) {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    (rig, answer)
}

#[tokio::test]
async fn a_stream_of_any_type_is_a_response_with_status_200() {
    let (mut rig, answer) = under_way().await;
    rig.runtime
        .begin("Content-Type: text/event-stream\r\n")
        .await;
    rig.runtime.chunk("one").await;
    let Answer::Http {
        head,
        first,
        done: None,
    } = answer.await.unwrap().unwrap()
    else {
        panic!("no stream");
    };
    assert_eq!(head.status, 200);
    let content_type = ("content-type".to_owned(), "text/event-stream".to_owned());
    assert_eq!(head.headers, [content_type]);
    assert_eq!(first, "one");
    rig.runtime.chunk("two").await;
    let part = rig.worker.next(1).await.unwrap();
    assert!(
        matches!(&part, Part::Chunk(bytes) if bytes == "two"),
        "{part:?}"
    );
    rig.instance.print("out");
    rig.runtime.write("0\r\n\r\n").await;
    let Part::End(last, done) = rig.worker.next(1).await.unwrap() else {
        panic!("no end");
    };
    assert_eq!((last.len(), done.output), (0, Bytes::from_static(b"out")));
    assert!(done.started <= done.first_byte && done.first_byte <= done.returned);
    assert_eq!(rig.runtime.read().await.status(), 202);

    // The connection can be used for the next call.
    let answer = rig.call("2", "{}");
    rig.runtime.poll().await;
    rig.runtime.event().await;
    rig.runtime.respond("2", "", "2").await;
    assert_eq!(result(answer.await), "2");
}

#[tokio::test]
async fn pieces_that_arrived_together_are_one_and_those_without_end_have_a_pace() {
    const MANY: usize = 100_000;
    let (mut rig, answer) = under_way().await;
    rig.runtime.begin("Content-Type: text/plain\r\n").await;
    rig.runtime.chunk("x").await;
    let answer = answer.await.unwrap().unwrap();
    assert!(matches!(&answer, Answer::Http { first, .. } if first == "x"));
    let Rig {
        worker, runtime, ..
    } = &mut rig;
    let pieces = ["1\r\nx\r\n".repeat(MANY).as_str(), "0\r\n\r\n"].concat();
    let began = std::time::Instant::now();
    let reading = async {
        let (mut len, mut parts) = (0, 0);
        loop {
            match worker.next(1).await.unwrap() {
                Part::Chunk(bytes) => len += bytes.len(),
                Part::End(last, _) => break (len + last.len(), parts),
                other @ Part::Error(..) => panic!("{other:?}"),
            }
            parts += 1;
            // As a caller that is not always there.
            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
        }
    };
    let ((len, parts), ()) = tokio::join!(reading, runtime.write(pieces));
    assert_eq!(len, MANY);
    assert!(parts < MANY / 20, "{parts}");
    // A fifth is read at once.
    assert!(began.elapsed() >= std::time::Duration::from_millis(700));
}

#[tokio::test]
async fn an_answer_in_one_piece_that_comes_in_many_has_that_pace() {
    const MANY: usize = 20_000;
    let (mut rig, answer) = under_way().await;
    let head = format!(
        "POST {API}/invocation/1/response HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let pieces = "1\r\n7\r\n".repeat(MANY);
    let began = std::time::Instant::now();
    rig.runtime
        .write([&head, &pieces, "0\r\n\r\n"].concat())
        .await;
    assert_eq!(result(answer.await).len(), MANY);
    // A fifth is read at once.
    assert!(began.elapsed() >= std::time::Duration::from_millis(700));
}

#[tokio::test]
async fn a_prelude_gives_status_headers_and_cookies_however_it_is_split() {
    let prelude = r#"{"statusCode": 418, "headers": {"x-a": "1"}, "cookies": ["c=d"]}"#;
    let bytes = [prelude.as_bytes(), &[0; 8], b"body"].concat();
    for size in [1, 7, bytes.len()] {
        let (mut rig, answer) = under_way().await;
        rig.runtime.begin(PRELUDE).await;
        for chunk in bytes.chunks(size) {
            rig.runtime.chunk(chunk).await;
        }
        rig.runtime.write("0\r\n\r\n").await;
        let Answer::Http { head, first, done } = answer.await.unwrap().unwrap() else {
            panic!("no stream");
        };
        assert_eq!(head.status, 418);
        let headers = [("x-a", "1"), ("set-cookie", "c=d")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(head.headers, headers);
        let mut body = first.to_vec();
        let mut over = done.is_some();
        while !over {
            match rig.worker.next(1).await.unwrap() {
                Part::Chunk(bytes) => body.extend_from_slice(&bytes),
                Part::End(bytes, _) => {
                    body.extend_from_slice(&bytes);
                    over = true;
                }
                Part::Error(..) => panic!("raised"),
            }
        }
        assert_eq!(body, b"body");
    }
}

/// The way aws-lambda-go writes every answer.
async fn begin_without_mode(runtime: &mut Peer, content_type: &str) {
    let head = format!(
        "POST {API}/invocation/1/response HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: {content_type}\r\n\
         Trailer: Lambda-Runtime-Function-Error-Type,Lambda-Runtime-Function-Error-Body\r\n\r\n"
    );
    runtime.write(head).await;
}

#[tokio::test]
async fn a_prelude_is_streamed_although_no_mode_is_named() {
    let (mut rig, answer) = under_way().await;
    let content_type = "application/vnd.awslambda.http-integration-response";
    begin_without_mode(&mut rig.runtime, content_type).await;
    let begins = [r#"{"statusCode": 201}"#.as_bytes(), &[0; 8], b"one"].concat();
    rig.runtime.chunk(begins).await;
    let Answer::Http { head, first, done } = answer.await.unwrap().unwrap() else {
        panic!("no stream");
    };
    assert_eq!((head.status, first.as_ref()), (201, b"one".as_ref()));
    assert!(done.is_none());
}

#[tokio::test]
async fn an_answer_in_one_piece_may_end_with_an_error_in_its_trailers() {
    let (mut rig, answer) = under_way().await;
    begin_without_mode(&mut rig.runtime, "application/octet-stream").await;
    rig.runtime.chunk("half of i").await;
    rig.runtime
        .write("0\r\nLambda-Runtime-Function-Error-Type: errorString\r\nLambda-Runtime-Function-Error-Body: ")
        .await;
    // {"errorType": "errorString", "errorMessage": "torn"}
    let body = "eyJlcnJvclR5cGUiOiAiZXJyb3JTdHJpbmciLCAiZXJyb3JNZXNzYWdlIjogInRvcm4ifQ==";
    rig.runtime.write(format!("{body}\r\n\r\n")).await;
    let raised = error(answer.await.unwrap().unwrap());
    assert_eq!(raised, ("errorString".to_owned(), "torn".to_owned()));
    assert_eq!(rig.runtime.read().await.status(), 202);
}

#[tokio::test]
async fn what_is_no_prelude_is_an_error_for_both() {
    for bytes in ["no json\0\0\0\0\0\0\0\0", "{}\0\0", ""] {
        let (mut rig, answer) = under_way().await;
        rig.runtime.begin(PRELUDE).await;
        // In one piece: unread bytes after the refusal would reset the connection.
        let chunk = match bytes.len() {
            0 => String::new(),
            len => format!("{len:x}\r\n{bytes}\r\n"),
        };
        rig.runtime.write(chunk + "0\r\n\r\n").await;
        let (kind, _) = error(answer.await.unwrap().unwrap());
        assert_eq!(kind, "Runtime.InvalidPrelude");
        assert_eq!(rig.runtime.read().await.status(), 400);
    }
}

#[tokio::test]
async fn a_function_that_raises_in_the_middle_says_so_in_trailers() {
    let body = r#"{"errorType":"E","errorMessage":"in the middle"}"#;
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, body);
    let trailers = format!(
        "0\r\nLambda-Runtime-Function-Error-Type: E\r\nLambda-Runtime-Function-Error-Body: {encoded}\r\n\r\n"
    );
    let declared =
        "Trailer: Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body\r\n";
    let (mut rig, answer) = under_way().await;
    rig.runtime.begin(declared).await;
    rig.runtime.chunk("some").await;
    assert!(matches!(
        answer.await.unwrap().unwrap(),
        Answer::Http { done: None, .. }
    ));
    rig.runtime.write(&trailers).await;
    let Part::Error(told_body, _) = rig.worker.next(1).await.unwrap() else {
        panic!("no error");
    };
    assert_eq!(told(&told_body).1, "in the middle");
    assert_eq!(rig.runtime.read().await.status(), 202);

    // An error before the first byte replaces the answer.
    let (mut rig, answer) = under_way().await;
    rig.runtime.begin(declared).await;
    rig.runtime.write(&trailers).await;
    let (kind, message) = error(answer.await.unwrap().unwrap());
    assert_eq!((kind.as_str(), message.as_str()), ("E", "in the middle"));
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_an_error_and_the_worker_goes_on() {
    let (mut rig, answer) = under_way().await;
    rig.runtime.begin("").await;
    rig.runtime.chunk("some").await;
    drop(answer.await.unwrap().unwrap());
    drop(rig.runtime);
    let Part::Error(body, _) = rig.worker.next(1).await.unwrap() else {
        panic!("no error");
    };
    assert_eq!(told(&body).0, "Runtime.TruncatedResponse");
    assert!(rig.worker.is_alive());
}

#[tokio::test]
async fn a_stream_whose_process_ends_is_a_fault() {
    let (mut rig, answer) = under_way().await;
    rig.runtime.begin("").await;
    rig.runtime.chunk("some").await;
    drop(answer.await.unwrap().unwrap());
    drop(rig.runtime);
    rig.instance.end(End::Signalled(6));
    let fault = rig.worker.next(1).await.unwrap_err();
    assert!(
        matches!(fault, WorkerFault::Signalled { signal: 6, .. }),
        "{fault}"
    );
    let fault = rig.worker.next(1).await.unwrap_err();
    assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}");
}

#[tokio::test]
async fn nothing_is_read_ahead_of_whoever_takes_the_stream() {
    let (mut rig, answer) = under_way().await;
    rig.runtime.begin("").await;
    rig.runtime.chunk("first").await;
    drop(answer.await.unwrap().unwrap());
    // More than the sockets' buffers hold: the writer waits until somebody reads.
    let chunk = vec![b'x'; 1 << 20];
    let mut runtime = rig.runtime;
    let mut writer = tokio::spawn(async move {
        for _ in 0..32 {
            runtime.chunk(&chunk).await;
        }
        runtime.write("0\r\n\r\n").await;
        runtime
    });
    let blocked = tokio::time::timeout(std::time::Duration::from_millis(50), &mut writer).await;
    assert!(blocked.is_err(), "32 MiB were taken by nobody");
    let mut len = 0;
    loop {
        match rig.worker.next(1).await.unwrap() {
            Part::Chunk(bytes) => len += bytes.len(),
            Part::End(bytes, _) => break len += bytes.len(),
            Part::Error(..) => panic!("raised"),
        }
    }
    assert_eq!(len, 32 << 20);
    assert_eq!(writer.await.unwrap().read().await.status(), 202);
}
