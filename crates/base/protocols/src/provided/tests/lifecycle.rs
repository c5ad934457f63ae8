//! Start, end and release of a worker.

use super::*;
use crate::End;
use pilot_model::ports::MemoryShortage;
use std::time::Duration;

/// Starts a worker whose runtime does not poll.
async fn not_up(
    start: Start,
    listener: TcpListener,
    instance: &Arc<FakeInstance>,
) -> (StartError, Vec<&'static str>) {
    let dynamic: Arc<dyn Instance> = Arc::clone(instance) as _;
    let error = ProvidedWorker::when_ready(start, listener, dynamic)
        .await
        .unwrap_err();
    (error, instance.let_go())
}

fn provided(config: &mut FunctionConfig) {
    config.runtime =
        pilot_model::Runtime::Provided(pilot_model::runtime::provided::ProvidedRuntime {
            command: vec!["./bootstrap".to_owned(), "x".to_owned()],
        });
}

#[tokio::test]
async fn the_first_poll_ends_the_initialisation() {
    let rig = rig().await;
    let stamps = rig.worker.stamps();
    assert_eq!(
        (stamps.asked, stamps.forked, stamps.sandboxed),
        (Instant(1), Instant(2), Instant(3))
    );
    assert!(stamps.initialised > stamps.sandboxed);
    assert!(rig.worker.is_alive());
    assert_eq!(rig.worker.id(), WorkerId(7));
}

#[tokio::test]
async fn an_init_error_is_an_import_error_even_if_the_process_ends_right_after_it() {
    let sent = r#"{"errorType":"Runtime.ImportModuleError","errorMessage":"No module named 'x'","stackTrace":[]}"#;
    for end in [None, Some(End::Exited(1))] {
        for path in ["init/error", "restore/error"] {
            let (listener, address) = listener().await;
            let instance = FakeInstance::new();
            instance.print("traceback\n");
            let mut runtime = Peer::connect(address).await;
            runtime
                .ask("POST", &format!("{API}/{path}"), "", sent)
                .await;
            if let Some(end) = end {
                instance.end(end);
            }
            let (error, let_go) = not_up(start(provided), listener, &instance).await;
            let expected = StartError::Import {
                body: sent.to_owned(),
                output: "traceback\n".to_owned(),
            };
            assert_eq!((error, let_go), (expected, vec!["at once"]));
        }
    }
}

#[tokio::test]
async fn an_init_error_without_json_is_named_by_its_header() {
    let (listener, address) = listener().await;
    let mut runtime = Peer::connect(address).await;
    let headers = "Lambda-Runtime-Function-Error-Type: Runtime.BadHandler\r\n";
    runtime
        .ask("POST", &format!("{API}/init/error"), headers, "no handler")
        .await;
    let (error, _) = not_up(start(provided), listener, &FakeInstance::new()).await;
    let StartError::Import { body, .. } = error else {
        panic!("{error:?}");
    };
    let (kind, message) = told(body.as_bytes());
    assert_eq!(
        (kind.as_str(), message.as_str()),
        ("Runtime.BadHandler", "no handler")
    );
}

#[tokio::test]
async fn a_process_that_ends_before_it_polls_is_told_with_what_it_printed_and_what_to_look_at() {
    for (end, says) in [
        (
            End::Exited(127),
            "`./bootstrap x` exited with status 127 before it polled the Runtime API: can its program be found",
        ),
        (End::Exited(1), "AWS_LAMBDA_RUNTIME_API"),
        (End::Signalled(11), "was ended by signal 11"),
        (End::OutOfMemory(MemoryShortage::Own), "memory_mb"),
        (End::Unknown, "unknown reason"),
    ] {
        let (listener, _) = listener().await;
        let instance = FakeInstance::new();
        instance.print("last words");
        instance.end(end);
        let (error, _) = not_up(start(provided), listener, &instance).await;
        let StartError::Runtime { problem, output } = error else {
            panic!("{error:?}");
        };
        assert!(problem.contains(says), "{problem}");
        assert_eq!(output, "last words");
    }
}

#[tokio::test]
async fn a_runtime_that_does_not_poll_in_time_is_retired() {
    let (listener, address) = listener().await;
    // Connected, but sends nothing.
    let _runtime = Peer::connect(address).await;
    let mut start = start(provided);
    start.ready_max = Duration::from_millis(20);
    let (error, let_go) = not_up(start, listener, &FakeInstance::new()).await;
    let StartError::Runtime { problem, .. } = error else {
        panic!("{error:?}");
    };
    assert!(
        problem.contains("did not poll the Runtime API within 0.02 s"),
        "{problem}"
    );
    assert_eq!(let_go, ["at once"]);
}

#[tokio::test]
async fn a_process_that_ends_during_an_invocation_is_a_fault_with_its_output() {
    let output = || Bytes::from_static(b"last words");
    for (end, expected) in [
        (
            End::Exited(3),
            WorkerFault::Exited {
                code: 3,
                output: output(),
            },
        ),
        (
            End::Signalled(11),
            WorkerFault::Signalled {
                signal: 11,
                output: output(),
            },
        ),
        (
            End::OutOfMemory(MemoryShortage::Own),
            WorkerFault::OutOfMemory {
                shortage: MemoryShortage::Own,
                limit_bytes: 64 << 20,
                output: output(),
            },
        ),
    ] {
        let mut rig = rig().await;
        let taken = rig.call("1", "{}");
        rig.runtime.event().await;
        rig.instance.print("last words");
        rig.instance.end(end);
        drop(rig.runtime);
        assert_eq!(taken.await.unwrap().unwrap_err(), expected);
        assert!(!rig.worker.is_alive());
        let late = rig.worker.call(call("2", "{}")).await.unwrap_err();
        let WorkerFault::NotTaken(fault) = late else {
            panic!("{late:?}");
        };
        assert_eq!(
            std::mem::discriminant(&*fault),
            std::mem::discriminant(&expected)
        );
    }
}

#[tokio::test]
async fn a_process_that_ends_in_the_middle_of_its_answer_is_a_fault() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    let head = format!(
        "POST {API}/invocation/1/response HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    );
    rig.runtime.write(head + "four").await;
    rig.instance.end(End::Exited(1));
    drop(rig.runtime);
    let fault = answer.await.unwrap().unwrap_err();
    assert!(
        matches!(fault, WorkerFault::Exited { code: 1, .. }),
        "{fault}"
    );
}

#[tokio::test]
async fn an_answer_that_lies_in_the_socket_when_its_process_has_ended_counts() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    let path = format!("{API}/invocation/1/response");
    rig.runtime.ask("POST", &path, "", "\"the last\"").await;
    rig.instance.end(End::Exited(0));
    drop(rig.runtime);
    assert_eq!(result(answer.await), "\"the last\"");
}

#[tokio::test]
async fn a_killed_worker_faults_what_it_was_doing() {
    let mut rig = rig().await;
    let answer = rig.call("1", "{}");
    rig.runtime.event().await;
    rig.worker.kill();
    assert!(!rig.worker.is_alive());
    let fault = answer.await.unwrap().unwrap_err();
    assert!(
        matches!(fault, WorkerFault::Signalled { signal: 9, .. }),
        "{fault}"
    );
    rig.worker.retire();
    assert_eq!(rig.instance.let_go(), ["kill"]);
}

#[tokio::test]
async fn a_worker_is_let_go_once_and_dropping_it_lets_it_go() {
    let mut rig = rig().await;
    rig.worker.retire();
    rig.worker.retire();
    assert!(!rig.worker.is_alive());
    drop(rig.worker);
    assert_eq!(rig.instance.let_go(), ["at once"]);
    // The worker's connections are closed with it.
    assert!(rig.runtime.read_to_end().await.is_empty());

    let rig = self::rig().await;
    drop(rig.worker);
    assert_eq!(rig.instance.let_go(), ["at once"]);
}
