//! Calls with answers in one piece, valid and invalid ones.

use super::*;
use crate::End;

#[tokio::test]
async fn an_event_reaches_the_runtime_with_its_headers_and_the_answer_its_caller_twice() {
    let mut rig = rig().await;
    let mut first = call("8476a536", r#"{"k": 1}"#);
    let head = Arc::make_mut(&mut first.head);
    head.arn = "arn:x".to_owned();
    head.client_context = Some("{\"custom\":\n{\"foo\":\"b\u{7f}r\"}}".to_owned());
    head.trace = Some("Root=1-5bef4de7".to_owned());
    let worker = Arc::clone(&rig.worker);
    let answer = tokio::spawn(async move { worker.call(first).await });
    let event = rig.runtime.read().await;
    assert_eq!((event.status(), event.text()), (200, r#"{"k": 1}"#));
    for (name, value) in [
        ("Lambda-Runtime-Aws-Request-Id", "8476a536"),
        ("Lambda-Runtime-Deadline-Ms", "1700000000123"),
        ("Lambda-Runtime-Invoked-Function-Arn", "arn:x"),
        ("Lambda-Runtime-Trace-Id", "Root=1-5bef4de7"),
        (
            "Lambda-Runtime-Client-Context",
            r#"{"custom": {"foo":"b\u007fr"}}"#,
        ),
        ("Content-Type", "application/json"),
    ] {
        assert_eq!(event.header(name), Some(value), "{name}");
    }
    rig.instance.print("printed\n");
    let accepted = rig
        .runtime
        .respond("8476a536", "", r#""My lambda ran""#)
        .await;
    assert_eq!(
        (accepted.status(), accepted.text().trim()),
        (202, r#"{"status":"OK"}"#)
    );
    let Answer::Result(body, done) = answer.await.unwrap().unwrap() else {
        panic!("no result");
    };
    assert_eq!(body, r#""My lambda ran""#);
    assert_eq!(done.output, "printed\n");
    assert!(done.started <= done.first_byte && done.started.0 > 0);

    let second = rig.call("2", "{}");
    rig.runtime.poll().await;
    let event = rig.runtime.read().await;
    assert_eq!(event.header("Lambda-Runtime-Trace-Id"), None);
    assert_eq!(event.header("Lambda-Runtime-Client-Context"), None);
    rig.runtime.respond("2", "", "2").await;
    assert_eq!(result(second.await), "2");
}

#[tokio::test]
async fn a_runtime_that_ends_after_an_error_gets_no_other_call() {
    for ends in [true, false] {
        let mut rig = rig().await;
        let answer = rig.call("1", "{}");
        rig.runtime.event().await;
        let path = format!("{API}/invocation/1/error");
        rig.runtime.exchange("POST", &path, "", "{}").await;
        if ends {
            rig.instance.end(End::Exited(1));
        } else {
            rig.runtime.poll().await;
        }
        let Answer::Error(_, done) = answer.await.unwrap().unwrap() else {
            panic!("no error");
        };
        assert_eq!(done.is_last, ends);
    }
}

#[tokio::test]
async fn a_call_that_the_runtime_does_not_ask_for_before_its_end_is_not_taken() {
    let mut rig = rig().await;
    let first = rig.call("1", "{}");
    rig.runtime.event().await;
    rig.runtime.respond("1", "", "1").await;
    first.await.unwrap().unwrap();
    let second = rig.call("2", "{}");
    rig.instance.end(End::Exited(1));
    let fault = second.await.unwrap().unwrap_err();
    assert!(matches!(fault, WorkerFault::NotTaken(_)), "{fault:?}");
    let third = rig.call("3", "{}").await.unwrap().unwrap_err();
    assert!(matches!(third, WorkerFault::NotTaken(_)), "{third:?}");
}

#[tokio::test]
async fn an_error_reaches_the_caller_as_lambdas_error_body() {
    let mut rig = rig().await;
    let first = rig.call("1", "{}");
    rig.runtime.event().await;
    let path = format!("{API}/invocation/1/error");
    let sent =
        r#"{"errorMessage": "Raising an exception", "errorType": "Exception", "stackTrace": []}"#;
    let accepted = rig.runtime.exchange("POST", &path, "", sent).await;
    assert_eq!(accepted.status(), 202);
    let (kind, message) = error(first.await.unwrap().unwrap());
    assert_eq!(
        (kind.as_str(), message.as_str()),
        ("Exception", "Raising an exception")
    );

    let second = rig.call("2", "{}");
    rig.runtime.poll().await;
    rig.runtime.event().await;
    let headers = "Lambda-Runtime-Function-Error-Type: Function.Odd\r\n";
    let path = format!("{API}/invocation/2/error");
    rig.runtime
        .exchange("POST", &path, headers, "no json")
        .await;
    let (kind, message) = error(second.await.unwrap().unwrap());
    assert_eq!(
        (kind.as_str(), message.as_str()),
        ("Function.Odd", "no json")
    );
}

#[tokio::test]
async fn a_response_that_is_no_json_passes_as_it_is() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    rig.runtime.respond("1", "", "{ not json").await;
    assert_eq!(result(answer.await), "{ not json");
}

#[tokio::test]
async fn two_invocations_run_at_once_and_their_answers_may_cross() {
    let mut rig = rig_with(|config| config.concurrency = 2).await;
    let mut other = rig.peer().await;
    other.poll().await;
    let mut calls = vec![("a", rig.call("a", "\"a\"")), ("b", rig.call("b", "\"b\""))];
    let (first, second) = (rig.runtime.event().await, other.event().await);
    assert_ne!(first, second);
    // The answer to one call arrives on the other's connection.
    rig.runtime
        .respond(&second, "", &format!("\"{second}\""))
        .await;
    other.respond(&first, "", &format!("\"{first}\"")).await;
    for (id, answer) in calls.drain(..) {
        assert_eq!(result(answer.await), format!("\"{id}\""));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_invocations_at_once_each_gets_its_own_answer() {
    const AT_ONCE: u32 = 8;
    let rig = rig_with(|config| config.concurrency = AT_ONCE).await;
    let mut runtimes = JoinSet::new();
    let mut first = Some(rig.runtime);
    for _ in 0..AT_ONCE {
        let mut runtime = match first.take() {
            Some(runtime) => runtime,
            None => {
                let mut runtime = Peer::connect(rig.address).await;
                runtime.poll().await;
                runtime
            }
        };
        runtimes.spawn(async move {
            loop {
                let id = runtime.event().await;
                runtime.respond(&id, "", &id).await;
                runtime.poll().await;
            }
        });
    }
    let mut callers = JoinSet::new();
    for caller in 0..AT_ONCE {
        let worker = Arc::clone(&rig.worker);
        callers.spawn(async move {
            for turn in 0..40 {
                let id = format!("{caller}-{turn}");
                let answer = worker.call(call(&id, "{}")).await;
                assert_eq!(result(Ok(answer)), id);
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn an_invocation_is_answered_once_and_unknown_ids_are_refused() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    for path in ["nope/response", "nope/error"] {
        let path = format!("{API}/invocation/{path}");
        let refused = rig.runtime.exchange("POST", &path, "", "{}").await;
        assert_eq!(refused.status(), 400);
        assert_eq!(told(&refused.body).0, "InvalidRequestID");
    }
    rig.runtime.respond("1", "", "1").await;
    let refused = rig.runtime.respond("1", "", "2").await;
    assert_eq!(
        (refused.status(), told(&refused.body).0.as_str()),
        (400, "InvalidRequestID")
    );
    assert_eq!(result(answer.await), "1");
}

#[tokio::test]
async fn a_poll_before_the_answer_is_refused_and_the_invocation_goes_on() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    rig.runtime.poll().await;
    let refused = rig.runtime.read().await;
    assert_eq!(
        (refused.status(), told(&refused.body).0.as_str()),
        (403, "InvalidStateTransition")
    );
    rig.runtime.respond("1", "", "1").await;
    assert_eq!(result(answer.await), "1");
}

#[tokio::test]
async fn an_answer_of_more_than_six_mebibytes_is_refused_and_its_caller_told() {
    let mut rig = rig().await;
    let large = "x".repeat(crate::RESPONSE_LEN_MAX + 1);
    let chunked = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    for (id, framing, body) in [
        ("1", format!("Content-Length: {}", large.len()), &large),
        ("2", "Transfer-Encoding: chunked".to_owned(), &chunked),
    ] {
        let answer = rig.call(id, "{}");
        rig.runtime.event().await;
        let head =
            format!("POST {API}/invocation/{id}/response HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n");
        rig.runtime.write(head).await;
        rig.runtime.write(body).await;
        let refused = rig.runtime.read().await;
        assert_eq!(
            (refused.status(), told(&refused.body).0.as_str()),
            (413, "RequestEntityTooLarge")
        );
        let (kind, message) = error(answer.await.unwrap().unwrap());
        assert_eq!(kind, "Function.ResponseSizeTooLarge");
        assert!(message.contains("6291556 bytes"), "{message}");
        // The connection stays usable.
        rig.runtime.poll().await;
    }
    let whole = "y".repeat(crate::RESPONSE_LEN_MAX);
    let answer = rig.call("3", "{}");
    rig.runtime.event().await;
    assert_eq!(rig.runtime.respond("3", "", &whole).await.status(), 202);
    assert_eq!(result(answer.await), whole);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error_of_that_invocation_alone() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    let head = format!(
        "POST {API}/invocation/1/response HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    );
    rig.runtime.write(head + "four").await;
    drop(rig.runtime);
    let (kind, _) = error(answer.await.unwrap().unwrap());
    assert_eq!(kind, "Runtime.TruncatedResponse");
    rig.runtime = Peer::connect(rig.address).await;
    rig.runtime.poll().await;
    let answer = rig.call("2", "{}");
    rig.runtime.event().await;
    rig.runtime.respond("2", "", "2").await;
    assert_eq!(result(answer.await), "2");
}

#[tokio::test]
async fn an_event_that_no_poll_took_waits_for_the_next() {
    let mut rig = rig().await;
    drop(rig.runtime);
    // When this is answered, the worker has seen that the poll is gone.
    rig.runtime = Peer::connect(rig.address).await;
    rig.runtime
        .exchange("GET", "/2018-06-01/ping", "", "")
        .await;
    let answer = rig.call("1", "{}");
    rig.runtime.poll().await;
    assert_eq!(rig.runtime.event().await, "1");
    rig.runtime.respond("1", "", "1").await;
    assert_eq!(result(answer.await), "1");
}

#[tokio::test]
async fn an_unknown_response_mode_is_refused() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    let headers = "Lambda-Runtime-Function-Response-Mode: sideways\r\n";
    let refused = rig.runtime.respond("1", headers, "{}").await;
    assert_eq!(
        (refused.status(), told(&refused.body).0.as_str()),
        (400, "InvalidFunctionResponseMode")
    );
    let (kind, _) = error(answer.await.unwrap().unwrap());
    assert_eq!(kind, "Runtime.InvalidResponseModeHeader");
}

#[tokio::test]
async fn what_the_runtime_api_has_no_word_for_is_a_fault_of_the_caller() {
    let rig = rig().await;
    let mut http = call("1", "{}");
    Arc::make_mut(&mut http.head).http = Some(pilot_testkit::http_head());
    let bad_id = call("a\nb", "{}");
    for call in [http, bad_id] {
        let fault = rig.worker.call(call).await.unwrap_err();
        assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}");
    }
}
