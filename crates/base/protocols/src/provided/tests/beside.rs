//! Requests other than invocations: extensions, restore, telemetry, and unknown paths.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use pilot_model::Stop;

use super::*;
use crate::End;

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
async fn how_it_ends_is_the_functions_choice() {
    let usual = rig().await;
    usual.worker.retire();
    assert_eq!(usual.instance.let_go(), ["at once"]);
    let asked = rig_with(|config| {
        config.keep_alive.stop = Some(Stop::Sigterm);
        config.keep_alive.grace = Some(Duration::from_secs(7));
    });
    let asked = asked.await;
    asked.worker.retire();
    assert_eq!(asked.instance.let_go(), ["gracefully"]);
    assert_eq!(asked.instance.grace(), Some(Duration::from_secs(7)));
    let killed = rig_with(|config| config.keep_alive.stop = Some(Stop::Kill)).await;
    let _extension = registered(&killed, r#"{"events": ["SHUTDOWN"]}"#).await;
    killed.worker.retire();
    assert_eq!(killed.instance.let_go(), ["at once"]);
}

#[tokio::test]
async fn what_a_program_prints_while_it_ends_is_its_last_output() {
    let retired = rig_with(|config| config.keep_alive.stop = Some(Stop::Sigterm)).await;
    retired.instance.print("before ");
    retired.worker.retire();
    let mut said = retired.worker.last_output();
    assert!((&mut said).now_or_never().is_none());
    retired.instance.print("and after the signal");
    retired.instance.end(End::Exited(0));
    assert_eq!(said.await, "before and after the signal");
    // Nobody waits for one that is killed.
    let killed = rig().await;
    killed.instance.print("last words");
    killed.worker.kill();
    assert_eq!(
        killed.worker.last_output().now_or_never().unwrap(),
        "last words"
    );
}

/// A call with a deadline in one minute.
fn long_call(rig: &Rig, id: &str) -> tokio::task::JoinHandle<Result<Answer, WorkerFault>> {
    let mut call = call(id, "{}");
    Arc::make_mut(&mut call.head).deadline_unix_ms = unix_ms(SystemTime::now()) + 60_000;
    let worker = Arc::clone(&rig.worker);
    tokio::spawn(async move { worker.call(call).await })
}

/// A ready worker with an extension of this name that registered in time and has asked for its first event.
async fn rig_with_extension() -> (Rig, Peer, String) {
    let (listener, address) = listener().await;
    let instance = FakeInstance::new();
    let (mut runtime, mut extension) = (Peer::connect(address).await, Peer::connect(address).await);
    let dynamic: Arc<dyn Instance> = Arc::clone(&instance) as _;
    let when_ready = ProvidedWorker::when_ready(start(|_| ()), listener, dynamic);
    let has_asked = AtomicBool::new(false);
    let script = async {
        let answer = extension
            .exchange(
                "POST",
                &format!("{EXTENSION}/register"),
                "Lambda-Extension-Name: sidecar\r\n",
                r#"{"events": ["INVOKE", "SHUTDOWN"]}"#,
            )
            .await;
        let id = answer.header("Lambda-Extension-Identifier").unwrap();
        let id = format!("Lambda-Extension-Identifier: {id}\r\n");
        runtime.poll().await;
        pinged(address).await;
        has_asked.store(true, Ordering::SeqCst);
        extension
            .ask("GET", &format!("{EXTENSION}/event/next"), &id, "")
            .await;
        id
    };
    let up = async {
        let worker = when_ready.await.unwrap();
        assert!(
            has_asked.load(Ordering::SeqCst),
            "it was up before its extension"
        );
        worker
    };
    let (worker, id) = tokio::join!(up, script);
    let rig = Rig {
        worker: Arc::new(worker),
        instance,
        address,
        runtime,
    };
    (rig, extension, id)
}

/// After this answer, earlier requests on other connections have been handled, too.
async fn pinged(address: SocketAddr) {
    let mut other = Peer::connect(address).await;
    let pong = other.exchange("GET", "/2018-06-01/ping", "", "").await;
    assert_eq!(pong.text(), "pong");
}

fn event_of(told: &Message) -> serde_json::Value {
    serde_json::from_slice(&told.body).unwrap()
}

#[tokio::test]
async fn an_initialisation_lasts_until_each_extension_has_asked_for_its_first_event() {
    let (rig, _extension, _) = rig_with_extension().await;
    assert!(rig.worker.is_alive());
}

#[tokio::test]
async fn an_answer_is_not_held_back_by_an_extension_and_the_next_event_is() {
    let (mut rig, mut extension, id) = rig_with_extension().await;
    let first = long_call(&rig, "1");
    rig.runtime.event().await;
    rig.runtime.respond("1", "", "1").await;
    assert_eq!(result(first.await), "1");
    let second = long_call(&rig, "2");
    rig.runtime.poll().await;
    assert_eq!(event_of(&extension.read().await)["requestId"], "1");
    pinged(rig.address).await;
    assert!(rig.runtime.event().now_or_never().is_none());
    extension
        .ask("GET", &format!("{EXTENSION}/event/next"), &id, "")
        .await;
    assert_eq!(rig.runtime.event().await, "2");
    rig.runtime.respond("2", "", "2").await;
    assert_eq!(result(second.await), "2");
    assert_eq!(event_of(&extension.read().await)["requestId"], "2");
}

#[tokio::test]
async fn an_extension_that_never_asks_is_named_by_the_start_that_failed() {
    let (listener, address) = listener().await;
    let mut both = Peer::connect(address).await;
    // Both on one connection, in order: the runtime polls after the extension has registered.
    let headers = "Lambda-Extension-Name: sidecar\r\n";
    both.ask("POST", &format!("{EXTENSION}/register"), headers, "{}")
        .await;
    both.poll().await;
    let mut start = start(|_| ());
    start.ready_max = Duration::from_secs(2);
    let error = ProvidedWorker::when_ready(start, listener, FakeInstance::new())
        .await
        .unwrap_err();
    let StartError::Runtime { problem, .. } = error else {
        panic!("{error:?}");
    };
    assert!(problem.contains("its extension \"sidecar\""), "{problem}");
}

#[tokio::test]
async fn an_extension_that_gives_up_is_not_waited_for() {
    let (mut rig, mut extension, id) = rig_with_extension().await;
    let first = long_call(&rig, "1");
    rig.runtime.event().await;
    rig.runtime.respond("1", "", "1").await;
    assert_eq!(result(first.await), "1");
    extension.read().await;
    let path = format!("{EXTENSION}/exit/error");
    extension.exchange("POST", &path, &id, "{}").await;
    let second = long_call(&rig, "2");
    rig.runtime.poll().await;
    assert_eq!(rig.runtime.event().await, "2");
    rig.runtime.respond("2", "", "2").await;
    assert_eq!(result(second.await), "2");
}

#[tokio::test]
async fn an_extension_of_a_process_of_its_own_hears_of_the_end_after_the_runtime_has_ended() {
    let (rig, mut extension, id) = rig_with_extension().await;
    let first = long_call(&rig, "1");
    extension.read().await;
    rig.worker.retire();
    rig.instance.end(End::Signalled(15));
    drop(rig.runtime);
    assert!(first.await.unwrap().is_err());
    let next = format!("{EXTENSION}/event/next");
    let told = extension.exchange("GET", &next, &id, "").await;
    assert_eq!(event_of(&told)["eventType"], "SHUTDOWN");
    pinged(rig.address).await;
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
    let when_ready = ProvidedWorker::when_ready(start(|_| ()), listener, instance);
    let restore = async {
        for method in ["GET", "POST"] {
            let path = format!("{API}/restore/next");
            assert_eq!(runtime.exchange(method, &path, "", "").await.status(), 200);
        }
        runtime.poll().await;
    };
    let (worker, ()) = tokio::join!(when_ready, restore);
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
