//! Upgraded connections: one invocation each, as long as they last.

use std::sync::atomic::Ordering;

use http::header::UPGRADE;
use http::{Response as HttpResponse, StatusCode};
use http_body_util::{BodyExt, Empty};
use pilot_invoke::{ResponseBody, Tunnel, TunnelEnd};
use pilot_model::Outcome;
use pilot_model::ports::StreamedBody;

use crate::fixture::{Fixture, ms, pass};
use crate::passing::{at_once, get, server};

async fn opened(fixture: &Fixture) -> Tunnel {
    fixture.engine.serve_http(|request| {
        assert_eq!(request.headers()[UPGRADE], "websocket");
        let body = StreamedBody::new(Empty::new().map_err(|never| match never {}));
        let mut response = HttpResponse::new(body);
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        at_once(response)
    });
    fixture.deploy(server);
    let mut request = get();
    request
        .headers_mut()
        .insert(UPGRADE, "websocket".parse().unwrap());
    let response = fixture.pass(request).await.unwrap();
    assert!(response.timeline.first_byte.is_some() && !response.is_complete());
    match response.body {
        ResponseBody::Upgraded(response) => response.into_body(),
        other => panic!("no tunnel: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_holds_its_worker_past_the_timeout_and_is_one_invocation() {
    let fixture = Fixture::new();
    let tunnel = opened(&fixture).await;
    pass(ms(5000)).await;
    assert_eq!(
        (fixture.workers().busy, fixture.sink.records().len()),
        (1, 0)
    );
    tunnel.traffic().bytes_in.store(7, Ordering::Relaxed);
    tunnel.traffic().bytes_out.store(9, Ordering::Relaxed);
    tunnel.end(TunnelEnd::Closed);
    let records = fixture.sink.records();
    assert_eq!((records.len(), records[0].outcome), (1, Outcome::Ok));
    assert_eq!((records[0].bytes_in, records[0].bytes_out), (7, 9));
    assert!(records[0].timeline.handler().unwrap() >= ms(5000));
    assert_eq!((fixture.workers().idle, fixture.engine.alive()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn however_a_tunnel_ends_a_worker_that_lives_serves_on() {
    for (end, outcome) in [
        (Some(TunnelEnd::Broken), Outcome::Cancelled),
        (Some(TunnelEnd::Silent(ms(600_000))), Outcome::Timeout),
        (None, Outcome::Cancelled),
    ] {
        let fixture = Fixture::new();
        let tunnel = opened(&fixture).await;
        tunnel.traffic().bytes_out.store(1, Ordering::Relaxed);
        match end {
            Some(end) => tunnel.end(end),
            None => drop(tunnel),
        }
        let records = fixture.sink.records();
        assert_eq!((records.len(), records[0].outcome), (1, outcome));
        assert_eq!(records[0].bytes_out, 1);
        let told = !records[0].output.is_empty();
        assert_eq!(told, matches!(end, Some(TunnelEnd::Silent(_))));
        assert_eq!((fixture.workers().idle, fixture.engine.alive()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_loses_its_server_is_a_crash() {
    let fixture = Fixture::new();
    let tunnel = opened(&fixture).await;
    fixture.engine.workers()[0].die();
    tunnel.end(TunnelEnd::Closed);
    assert_eq!(fixture.sink.records()[0].outcome, Outcome::Crash);
    assert_eq!(fixture.workers().busy, 0);
}
