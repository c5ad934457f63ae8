//! Readiness of a server.

use std::time::Duration;

use super::*;
use crate::{End, Start};

async fn when_ready(
    start: Start,
    ready: Option<&str>,
    reach: &Arc<FakeReach>,
    instance: &Arc<FakeInstance>,
) -> Result<HttpWorker, StartError> {
    let ready = ready.map(str::to_owned);
    HttpWorker::when_ready(
        start,
        8080,
        ready,
        Arc::clone(reach) as _,
        Arc::clone(instance) as _,
    )
    .await
}

fn web() -> Start {
    start(|config| {
        config.runtime = pilot_model::Runtime::Http(pilot_model::runtime::http::HttpRuntime {
            command: vec!["serve".to_owned()],
            ready: None,
        });
    })
}

fn problem(error: StartError) -> String {
    let StartError::Runtime { problem, .. } = error else {
        panic!("{error:?}");
    };
    problem
}

#[tokio::test]
async fn a_port_is_asked_until_it_accepts() {
    let (listener, address) = listener().await;
    let (reach, instance) = (FakeReach::to(None), FakeInstance::new());
    let listens = async {
        while reach.tries() < 3 {
            tokio::task::yield_now().await;
        }
        reach.listens(address);
        listener.accept().await.unwrap()
    };
    let (worker, _) = tokio::join!(when_ready(web(), None, &reach, &instance), listens);
    let worker = worker.unwrap();
    assert!(worker.is_alive());
    let stamps = worker.stamps();
    assert!(stamps.initialised > stamps.sandboxed);
}

#[tokio::test]
async fn a_path_is_asked_until_it_answers_2xx() {
    let (listener, address) = listener().await;
    let (reach, instance) = (FakeReach::to(Some(address)), FakeInstance::new());
    let serves = async {
        for answer in [
            "HTTP/1.1 503 Not Yet\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        ] {
            let mut server = Peer::over(listener.accept().await.unwrap().0);
            let request = server.read().await;
            assert_eq!(request.line, "GET /healthz HTTP/1.1");
            assert_eq!(request.header("host"), Some("localhost:8080"));
            server.write(answer).await;
            if answer.contains("200") {
                return server;
            }
        }
        unreachable!()
    };
    let when_ready = when_ready(web(), Some("/healthz"), &reach, &instance);
    let (worker, mut server) = tokio::join!(when_ready, serves);
    let worker = Arc::new(worker.unwrap());
    // The first request uses the connection of the readiness check.
    let passing = Arc::clone(&worker);
    let response = tokio::spawn(async move { passing.pass(get("/first")).await });
    assert_eq!(server.read().await.line, "GET /first HTTP/1.1");
    server
        .write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await;
    assert_eq!(text(response.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn a_server_that_ends_before_it_is_ready_is_told_with_what_it_printed() {
    let (reach, instance) = (FakeReach::to(None), FakeInstance::new());
    instance.print("no module");
    instance.end(End::Exited(1));
    let error = when_ready(web(), None, &reach, &instance)
        .await
        .unwrap_err();
    let StartError::Runtime { problem, output } = error else {
        panic!("{error:?}");
    };
    assert!(
        problem.starts_with("`serve` exited with status 1 before it accepted on port 8080"),
        "{problem}"
    );
    assert_eq!(output, "no module");
    assert_eq!(instance.let_go(), ["at once"]);
}

#[tokio::test]
async fn a_server_that_takes_too_long_is_told_what_was_missing() {
    let mut slow = web();
    slow.ready_max = Duration::from_millis(30);
    let (reach, instance) = (FakeReach::to(None), FakeInstance::new());
    let error = when_ready(slow.clone(), None, &reach, &instance).await;
    let said = problem(error.unwrap_err());
    assert!(
        said.contains("did not accept on port 8080") && said.contains("within 0.03 s"),
        "{said}"
    );

    let (listener, address) = listener().await;
    let (reach, instance) = (FakeReach::to(Some(address)), FakeInstance::new());
    let serves = async {
        loop {
            let mut server = Peer::over(listener.accept().await.unwrap().0);
            server.read().await;
            server
                .write("HTTP/1.1 503 Not Yet\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .await;
        }
    };
    let error = tokio::select! {
        error = when_ready(slow.clone(), Some("/up"), &reach, &instance) => error,
        () = serves => unreachable!(),
    };
    let said = problem(error.unwrap_err());
    assert!(
        said.contains("did not answer GET /up with 2xx") && said.contains("503"),
        "{said}"
    );

    for no_path in ["healthz", "/no path"] {
        let error = when_ready(slow.clone(), Some(no_path), &reach, &instance).await;
        let said = problem(error.unwrap_err());
        assert!(said.contains("not a path"), "{said}");
    }
}
