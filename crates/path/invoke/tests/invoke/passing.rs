//! Requests that are passed through to the function's own HTTP server.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response as HttpResponse, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use pilot_invoke::{InvokeError, PassedBody, Response, ResponseBody};
use pilot_model::ports::{
    BodyError, MemoryShortage, PassedRequest, PassedResponse, StreamedBody, WorkerFault,
};
use pilot_model::{EndReason, FunctionConfig, Interface, Outcome};
use pilot_testkit::Served;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::fixture::{Fixture, function_error, ms, pass};

pub(crate) fn server(config: &mut FunctionConfig) {
    config.interface = Interface::Http;
}

pub(crate) fn get() -> PassedRequest {
    Request::new(full(""))
}

fn post(body: StreamedBody) -> PassedRequest {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    request
}

fn full(text: &'static str) -> StreamedBody {
    StreamedBody::new(Full::new(Bytes::from(text)).map_err(|never| match never {}))
}

type Part = Result<Frame<Bytes>, BodyError>;

/// A body that the test sends in parts; it ends when the sender is dropped.
fn sent() -> (UnboundedSender<Part>, StreamedBody) {
    let (sender, parts) = unbounded_channel();
    let parts = stream::unfold(parts, async |mut parts| {
        let part = parts.recv().await?;
        Some((part, parts))
    });
    (sender, StreamedBody::new(StreamBody::new(Box::pin(parts))))
}

fn data(text: &'static str) -> Part {
    Ok(Frame::data(Bytes::from(text)))
}

pub(crate) fn at_once(response: PassedResponse) -> Served {
    Box::pin(std::future::ready(Ok(response)))
}

/// Answers every request with the body that `body` returns.
fn answering(fixture: &Fixture, body: impl Fn() -> StreamedBody + Send + Sync + 'static) {
    fixture
        .engine
        .serve_http(move |_| at_once(HttpResponse::new(body())));
    fixture.deploy(server);
}

/// A response whose body the test sends.
fn streaming(fixture: &Fixture) -> UnboundedSender<Part> {
    let (sender, body) = sent();
    let body = parking_lot::Mutex::new(Some(body));
    answering(fixture, move || body.lock().take().unwrap());
    sender
}

fn passed(response: Response) -> HttpResponse<PassedBody> {
    match response.body {
        ResponseBody::Passed(passed) => passed,
        other => panic!("not passed: {other:?}"),
    }
}

async fn next(body: &mut PassedBody) -> Option<Result<Bytes, InvokeError>> {
    let frame = body.frame().await?;
    Some(frame.map(|frame| frame.into_data().unwrap()))
}

#[tokio::test(start_paused = true)]
async fn the_server_gets_the_request_and_its_response_comes_back() {
    let fixture = Fixture::new();
    fixture.engine.serve_http(|request| {
        Box::pin(async move {
            let told = format!("{} {}", request.method(), request.uri());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "body");
            let mut response = HttpResponse::new(StreamedBody::new(
                Full::from(told).map_err(|never| match never {}),
            ));
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response.headers_mut().insert("x-own", "1".parse().unwrap());
            Ok(response)
        })
    });
    fixture.deploy(server);
    let mut request = post(full("body"));
    *request.uri_mut() = "/a%20b?x=1".parse().unwrap();
    let response = fixture.pass(request).await.unwrap();
    assert!(!response.is_complete());
    assert!(response.timeline.first_byte.is_some());
    let (head, body) = passed(response).into_parts();
    assert_eq!(
        (head.status, &head.headers["x-own"]),
        (StatusCode::IM_A_TEAPOT, &"1".parse().unwrap())
    );
    assert_eq!(body.size_hint().exact(), Some(15));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "POST /a%20b?x=1");
    let record = &fixture.sink.records()[0];
    assert_eq!(record.outcome, Outcome::Ok);
    assert_eq!((record.bytes_in, record.bytes_out), (4, 15));
    assert!(record.timeline.handler().is_some());
    assert_eq!(fixture.workers().idle, 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_without_a_body_gives_the_worker_back_at_once() {
    let fixture = Fixture::new();
    for (method, status) in [
        (Method::GET, StatusCode::OK),
        (Method::HEAD, StatusCode::OK),
        (Method::GET, StatusCode::NO_CONTENT),
        (Method::GET, StatusCode::NOT_MODIFIED),
    ] {
        let body = if status == StatusCode::OK && method == Method::GET {
            ""
        } else {
            "what nobody wants"
        };
        fixture.engine.serve_http(move |_| {
            let mut response = HttpResponse::new(full(body));
            *response.status_mut() = status;
            at_once(response)
        });
        fixture.deploy(server);
        fixture
            .engine
            .workers()
            .iter()
            .for_each(|worker| worker.die());
        let mut request = get();
        *request.method_mut() = method.clone();
        let response = fixture.pass(request).await.unwrap();
        assert!(response.is_complete(), "{method} {status}");
        assert_eq!(fixture.workers().idle, 1, "{method} {status}");
        assert!(passed(response).body().is_end_stream());
    }
    assert_eq!(fixture.sink.records().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_body_holds_the_worker_until_its_end_and_trailers_come_behind_it() {
    let fixture = Fixture::new();
    let parts = streaming(&fixture);
    let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
    for text in ["a", "bc"] {
        parts.send(data(text)).unwrap();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), text);
        assert_eq!(fixture.workers().busy, 1);
    }
    let trailers = http::HeaderMap::from_iter([("x-sum".parse().unwrap(), "3".parse().unwrap())]);
    parts.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
    let last = body.frame().await.unwrap().unwrap();
    assert_eq!(last.into_trailers().unwrap(), trailers);
    assert!(body.frame().await.is_none());
    assert_eq!(fixture.workers().idle, 1);
    assert_eq!(fixture.sink.records()[0].bytes_out, 3);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_a_body_ends_the_exchange_and_not_the_worker() {
    let fixture = Fixture::new();
    let parts = streaming(&fixture);
    let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
    parts.send(data("a")).unwrap();
    next(&mut body).await.unwrap().unwrap();
    drop(body);
    assert!(parts.is_closed(), "the server is told");
    assert_eq!((fixture.workers().idle, fixture.engine.alive()), (1, 1));
    let record = &fixture.sink.records()[0];
    assert_eq!((record.outcome, record.bytes_out), (Outcome::Cancelled, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_before_the_head_ends_the_exchange_and_not_the_worker() {
    let fixture = Fixture::new();
    let (guard, dropped) = oneshot::channel::<()>();
    let guard = parking_lot::Mutex::new(Some(guard));
    fixture.engine.serve_http(move |request| {
        let held = guard.lock().take().map(|guard| (guard, request));
        Box::pin(async move {
            if held.is_some() {
                std::future::pending::<()>().await;
            }
            Ok(HttpResponse::new(full("second")))
        })
    });
    fixture.deploy(|config| {
        server(config);
        config.concurrency = 8;
        config.scale.max = 1;
    });
    let (upload, body) = sent();
    let waiting = tokio::spawn(fixture.pass(post(body)));
    pass(ms(1)).await;
    let beside = passed(fixture.pass(get()).await.unwrap());
    assert_eq!(fixture.workers().busy, 1);
    waiting.abort();
    pass(ms(1)).await;
    assert!(dropped.await.is_err(), "the server is told");
    assert!(upload.is_closed());
    assert_eq!(beside.collect().await.unwrap().to_bytes(), "second");
    assert_eq!((fixture.workers().idle, fixture.engine.starts()), (1, 1));
    let outcomes: Vec<_> = fixture.sink.records().iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [Outcome::Cancelled, Outcome::Ok]);
}

#[tokio::test(start_paused = true)]
async fn no_head_within_the_timeout_is_a_server_that_is_stuck() {
    let fixture = Fixture::new();
    fixture
        .engine
        .serve_http(|_| Box::pin(std::future::pending()));
    fixture.deploy(server);
    let begun = tokio::time::Instant::now();
    let answer = fixture.pass(get()).await.unwrap();
    assert!((ms(1000)..ms(1010)).contains(&begun.elapsed()));
    assert_eq!(answer.outcome, Outcome::Timeout);
    assert_eq!(function_error(Ok(answer))["errorType"], "Sandbox.Timedout");
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 0);
    assert_eq!(fixture.sink.ended()[0], EndReason::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_lasts_too_long_is_cut_and_the_worker_serves_on() {
    let fixture = Fixture::new();
    let parts = streaming(&fixture);
    let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
    parts.send(data("a")).unwrap();
    next(&mut body).await.unwrap().unwrap();
    pass(ms(900)).await;
    let error = next(&mut body).await.unwrap().unwrap_err();
    assert_eq!(error, InvokeError::BodyTimedOut { after: ms(1000) });
    assert!(next(&mut body).await.is_none());
    assert!(parts.is_closed());
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Timeout);
    assert_eq!((fixture.workers().idle, fixture.engine.alive()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_pauses_does_not_outrun_its_timeout() {
    let fixture = Fixture::new();
    answering(&fixture, || {
        StreamedBody::new(StreamBody::new(stream::repeat_with(|| data("x"))))
    });
    let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
    assert!(next(&mut body).await.unwrap().is_ok());
    pass(ms(1001)).await;
    let error = next(&mut body).await.unwrap().unwrap_err();
    assert_eq!(error, InvokeError::BodyTimedOut { after: ms(1000) });
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_before_its_head_is_an_error_that_names_the_function() {
    let output = Bytes::from_static(b"last words");
    let cases = [
        (
            WorkerFault::Protocol {
                problem: "the connection was closed before a response".to_owned(),
                output: output.clone(),
            },
            Outcome::Crash,
            "Runtime.ServerError",
            "the HTTP server of function 'f' failed: the connection was closed",
        ),
        (
            WorkerFault::Exited { code: 3, output },
            Outcome::Crash,
            "Runtime.ExitError",
            "exit status 3",
        ),
        (
            WorkerFault::OutOfMemory {
                shortage: MemoryShortage::Own,
                limit_bytes: 256 << 20,
                output: Bytes::new(),
            },
            Outcome::OutOfMemory,
            "Runtime.OutOfMemory",
            "256 MB",
        ),
    ];
    for (fault, outcome, kind, words) in cases {
        let fixture = Fixture::new();
        fixture
            .engine
            .serve_http(move |_| Box::pin(std::future::ready(Err(fault.clone()))));
        fixture.deploy(server);
        let answer = fixture.pass(get()).await.unwrap();
        assert_eq!(answer.outcome, outcome);
        let error = function_error(Ok(answer));
        assert_eq!(error["errorType"], kind);
        let message = error["errorMessage"].as_str().unwrap();
        assert!(message.contains("function 'f'"), "{message}");
        assert!(message.contains(words), "{message}");
        pass(ms(1)).await;
        assert_eq!(fixture.engine.alive(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_sent_goes_to_another_worker_once() {
    for refusals in [1, 2] {
        let fixture = Fixture::new();
        answering(&fixture, || full("served"));
        let left = AtomicUsize::new(refusals);
        fixture.engine.refuse_http(move || {
            let refused = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            refused.ok().map(|_| WorkerFault::Protocol {
                problem: "connection refused".to_owned(),
                output: Bytes::new(),
            })
        });
        let answer = fixture.pass(post(full("an order"))).await.unwrap();
        if refusals == 1 {
            let body = passed(answer).into_body();
            assert_eq!(body.collect().await.unwrap().to_bytes(), "served");
        } else {
            let error = function_error(Ok(answer));
            let message = error["errorMessage"].as_str().unwrap();
            assert!(message.contains("connection refused"), "{message}");
        }
        pass(ms(1)).await;
        assert_eq!(fixture.sink.ended(), vec![EndReason::Crash; refusals]);
        assert_eq!(fixture.engine.alive(), 2 - refusals);
        assert_eq!(fixture.sink.records().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_a_kept_connection_serves_on() {
    let fixture = Fixture::new();
    fixture.engine.serve_http(move |_| {
        let fault = WorkerFault::Unanswered {
            problem: "the connection was closed".to_owned(),
            output: Bytes::new(),
        };
        Box::pin(std::future::ready(Err(fault)))
    });
    fixture.deploy(server);
    let answer = fixture.pass(get()).await.unwrap();
    assert_eq!(answer.outcome, Outcome::FunctionError);
    let error = function_error(Ok(answer));
    assert_eq!(error["errorType"], "Runtime.ServerError");
    let message = error["errorMessage"].as_str().unwrap();
    assert!(message.contains("function 'f'"), "{message}");
    pass(ms(1)).await;
    assert_eq!(fixture.engine.alive(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_breaks_its_body_off_serves_on_unless_it_is_gone() {
    let gone = WorkerFault::Exited {
        code: 3,
        output: Bytes::new(),
    };
    let cases: [(BodyError, Outcome, usize); 2] = [
        ("connection reset".into(), Outcome::FunctionError, 1),
        (gone.into(), Outcome::Crash, 0),
    ];
    for (error, outcome, alive) in cases {
        let fixture = Fixture::new();
        let parts = streaming(&fixture);
        let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
        parts.send(data("a")).unwrap();
        parts.send(Err(error)).unwrap();
        assert!(next(&mut body).await.unwrap().is_ok());
        let error = next(&mut body).await.unwrap().unwrap_err();
        assert!(matches!(error, InvokeError::BodyBroken { .. }), "{error}");
        assert!(next(&mut body).await.is_none());
        pass(ms(1)).await;
        assert_eq!(fixture.sink.records()[0].outcome, outcome);
        assert_eq!(fixture.engine.alive(), alive);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_server_prints_meanwhile_is_the_exchanges() {
    let fixture = Fixture::new();
    let parts = streaming(&fixture);
    let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
    fixture.engine.workers()[0].print("a line\nhalf a line");
    parts.send(Err("connection reset".into())).unwrap();
    assert!(next(&mut body).await.unwrap().is_err());
    let output = fixture.sink.records()[0].output.clone();
    let output = String::from_utf8(output.to_vec()).unwrap();
    let begins = "a line\nhalf a line\nRequestId: ";
    assert!(output.starts_with(begins), "{output}");
}

#[tokio::test(start_paused = true)]
async fn a_switch_of_protocols_that_nobody_asked_for_is_the_functions_error() {
    let fixture = Fixture::new();
    fixture.engine.serve_http(|_| {
        let mut response = HttpResponse::new(full(""));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        at_once(response)
    });
    fixture.deploy(server);
    let error = function_error(fixture.pass(get()).await);
    assert_eq!(error["errorType"], "Runtime.ServerError");
}

/// Counts how often it is polled.
struct Asked(Arc<AtomicUsize>, StreamedBody);

impl Body for Asked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.1).poll_frame(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_body_waits_unread_while_the_worker_starts() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(20), ms(0));
    fixture
        .engine
        .serve_http(|request| at_once(HttpResponse::new(request.into_body())));
    fixture.deploy(server);
    let asked = Arc::new(AtomicUsize::new(0));
    let body = StreamedBody::new(Asked(asked.clone(), full("body")));
    let answer = tokio::spawn(fixture.pass(post(body)));
    pass(ms(19)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let body = passed(answer.await.unwrap().unwrap()).into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "body");
}

#[tokio::test(start_paused = true)]
async fn a_request_body_that_breaks_off_is_the_clients_fault() {
    let fixture = Fixture::new();
    fixture.engine.serve_http(|request| {
        Box::pin(async move {
            match request.into_body().collect().await {
                Ok(body) => panic!("whole: {body:?}"),
                Err(error) => Err(WorkerFault::Protocol {
                    problem: error.to_string(),
                    output: Bytes::new(),
                }),
            }
        })
    });
    fixture.deploy(server);
    let (upload, body) = sent();
    upload.send(data("half a")).unwrap();
    upload.send(Err("nothing came for 30 s".into())).unwrap();
    let error = fixture.pass(post(body)).await.unwrap_err();
    let problem = "nothing came for 30 s".to_owned();
    assert_eq!(error, InvokeError::UploadBroken { problem });
    let record = &fixture.sink.records()[0];
    assert_eq!((record.outcome, record.bytes_in), (Outcome::Cancelled, 6));
    assert_eq!((fixture.workers().idle, fixture.engine.alive()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_request_passes_once_its_exchange_is_over() {
    let fixture = Fixture::new();
    let (rest, reader) = oneshot::channel();
    let rest = parking_lot::Mutex::new(Some(rest));
    fixture.engine.serve_http(move |request| {
        // The server answers early and continues to read.
        let rest = rest.lock().take().unwrap();
        let reading = tokio::spawn(request.into_body().collect());
        let _ = rest.send(reading);
        at_once(HttpResponse::new(full("early")))
    });
    fixture.deploy(server);
    let (upload, body) = sent();
    upload.send(data("first")).unwrap();
    let response = passed(fixture.pass(post(body)).await.unwrap());
    pass(ms(1)).await;
    assert_eq!(response.collect().await.unwrap().to_bytes(), "early");
    let read = reader.await.unwrap().await.unwrap();
    let error = read.unwrap_err().to_string();
    assert!(error.contains("the exchange is over"), "{error}");
    assert!(upload.is_closed());
    assert_eq!(fixture.sink.records()[0].bytes_in, 5);
}

#[tokio::test(start_paused = true)]
async fn a_body_dropped_behind_its_declared_length_was_not_cancelled() {
    struct Known(StreamedBody, u64);
    impl Body for Known {
        type Data = Bytes;
        type Error = BodyError;
        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
            let polled = Pin::new(&mut self.0).poll_frame(cx);
            if let Poll::Ready(Some(Ok(frame))) = &polled {
                self.1 -= frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            polled
        }
        fn is_end_stream(&self) -> bool {
            self.1 == 0
        }
        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.1)
        }
    }
    let fixture = Fixture::new();
    answering(&fixture, || {
        let (sender, body) = sent();
        sender.send(data("abc")).unwrap();
        StreamedBody::new(Known(body, 3))
    });
    let mut body = passed(fixture.pass(get()).await.unwrap()).into_body();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "abc");
    assert!(body.is_end_stream());
    assert_eq!(fixture.workers().idle, 1);
    drop(body);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_gibibyte_passes_both_ways_with_one_part_in_flight() {
    const PART: usize = 64 * 1024;
    const PARTS: usize = (1 << 30) / PART;
    let fixture = Fixture::new();
    fixture
        .engine
        .serve_http(|request| at_once(HttpResponse::new(request.into_body())));
    fixture.deploy(|config| {
        server(config);
        config.timeout = ms(60_000);
    });
    let zeros = Bytes::from(vec![0; PART]);
    let given = Arc::new(AtomicUsize::new(0));
    let gives = given.clone();
    let parts = stream::iter(0..PARTS).map(move |_| {
        gives.fetch_add(1, Ordering::Relaxed);
        Ok(Frame::data(zeros.clone()))
    });
    let request = post(StreamedBody::new(StreamBody::new(parts)));
    let mut body = passed(fixture.pass(request).await.unwrap()).into_body();
    let mut taken = 0;
    while let Some(part) = next(&mut body).await {
        assert_eq!(part.unwrap().len(), PART);
        taken += 1;
        assert_eq!(given.load(Ordering::Relaxed), taken);
    }
    assert_eq!(taken, PARTS);
    let record = &fixture.sink.records()[0];
    assert_eq!((record.bytes_in, record.bytes_out), (1 << 30, 1 << 30));
}
