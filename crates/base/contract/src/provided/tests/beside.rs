//! What is asked beside invocations: extensions, restore, telemetry, and what nobody should ask.

use super::*;

const EXTENSION: &str = "/2020-01-01/extension";

async fn registered(rig: &Rig, events: &str) -> (Peer, String) {
    let mut extension = rig.peer().await;
    let answer = extension
        .exchange(
            "POST",
            &format!("{EXTENSION}/register"),
            "Lambda-Extension-Name: sidecar\r\nLambda-Extension-Accept-Feature: accountId\r\n",
            events,
        )
        .await;
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.text(),
        r#"{"functionName":"hello","functionVersion":"3","handler":"app.handler","accountId":"000000000000"}"#
    );
    let id = answer.header("Lambda-Extension-Identifier").unwrap();
    let id = format!("Lambda-Extension-Identifier: {id}\r\n");
    (extension, id)
}

#[tokio::test]
async fn an_extension_is_told_of_invocations_and_of_the_end() {
    let mut rig = rig().await;
    let (mut extension, id) = registered(&rig, r#"{"events": ["INVOKE", "SHUTDOWN"]}"#).await;
    let next = format!("{EXTENSION}/event/next");
    extension.ask("GET", &next, &id, "").await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    let told = extension.read().await;
    assert_eq!(told.status(), 200);
    assert!(told.header("Lambda-Extension-Event-Identifier").is_some());
    let event: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!(event["eventType"], "INVOKE");
    assert_eq!(event["requestId"], "1");
    assert_eq!(event["deadlineMs"], 1_700_000_000_123_u64);
    rig.runtime.respond("1", "", "1").await;
    assert_eq!(result(answer.await), "1");

    extension.ask("GET", &next, &id, "").await;
    rig.worker.retire();
    drop(rig.worker);
    assert_eq!(rig.instance.let_go(), ["gracefully"]);
    let told = extension.read().await;
    let event: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!(event["eventType"], "SHUTDOWN");
    assert_eq!(event["shutdownReason"], "spindown");
    let goes = extension
        .exchange("POST", &format!("{EXTENSION}/exit/error"), &id, "{}")
        .await;
    assert_eq!(goes.status(), 202);
}

#[tokio::test]
async fn an_extension_must_say_who_it_is() {
    let rig = rig().await;
    let (mut extension, id) = registered(&rig, "{}").await;
    let next = format!("{EXTENSION}/event/next");
    let unknown = "Lambda-Extension-Identifier: 00000000-0000-4000-8000-00000000ffff\r\n";
    for (headers, kind) in [
        ("", "Extension.MissingExtensionIdentifier"),
        (unknown, "Extension.UnknownExtensionIdentifier"),
    ] {
        let refused = extension.exchange("GET", &next, headers, "").await;
        assert_eq!(
            (refused.status(), told(&refused.body).0.as_str()),
            (403, kind)
        );
    }
    let path = format!("{EXTENSION}/init/error");
    let headers = format!("{id}Lambda-Extension-Function-Error-Type: Extension.Odd\r\n");
    let accepted = extension.exchange("POST", &path, &headers, "{}").await;
    assert_eq!(accepted.status(), 202);
    assert!(rig.worker.is_alive());
}

#[tokio::test]
async fn logs_and_telemetry_are_refused_softly() {
    let rig = rig().await;
    let mut extension = rig.peer().await;
    for (path, kind) in [
        ("/2020-08-15/logs", "Logs.NotSupported"),
        ("/2022-07-01/telemetry", "Telemetry.NotSupported"),
    ] {
        let answer = extension
            .exchange("PUT", path, "", r#"{"types": []}"#)
            .await;
        assert_eq!(
            (answer.status(), told(&answer.body).0.as_str()),
            (202, kind)
        );
    }
}

#[tokio::test]
async fn a_restore_goes_on_at_once_and_does_not_end_the_initialisation() {
    let (listener, address) = listener().await;
    let instance = FakeInstance::new();
    let mut runtime = Peer::connect(address).await;
    let come_up = ProvidedWorker::come_up(start(|_| ()), listener, instance);
    let restore = async {
        for method in ["GET", "POST"] {
            let path = format!("{API}/restore/next");
            assert_eq!(runtime.exchange(method, &path, "", "").await.status(), 200);
        }
        runtime.poll().await;
    };
    let (worker, ()) = tokio::join!(come_up, restore);
    assert!(worker.unwrap().is_alive());
}

#[tokio::test]
async fn an_init_error_after_the_first_poll_is_refused() {
    let rig = rig().await;
    let mut late = rig.peer().await;
    let path = format!("{API}/init/error");
    let refused = late.exchange("POST", &path, "", "{}").await;
    assert_eq!(
        (refused.status(), told(&refused.body).0.as_str()),
        (403, "InvalidStateTransition")
    );
    assert!(rig.worker.is_alive());
    let pong = late.exchange("GET", "/2018-06-01/ping", "", "").await;
    assert_eq!((pong.status(), pong.text()), (200, "pong"));
}

#[tokio::test]
async fn what_nobody_should_ask_is_answered_and_harms_nobody() {
    let mut rig = rig().await;
    let mut stranger = rig.peer().await;
    for (method, path) in [
        ("GET", "/"),
        ("POST", "/2018-06-01/runtime/invocation/next"),
        ("GET", "/2018-06-01/runtime/invocation/1/response"),
        ("POST", "/2018-06-01/runtime/invocation/1"),
        ("DELETE", "/2020-01-01/extension/register"),
    ] {
        assert_eq!(stranger.exchange(method, path, "", "").await.status(), 404);
    }
    stranger.write("\0\0\0 no http\r\n\r\n").await;
    stranger.read_to_end().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    rig.runtime.respond("1", "", "1").await;
    assert_eq!(result(answer.await), "1");
}
