//! Who may do what, and clients that are slow.

use super::*;
use crate::access::RouteAccess;

/// Every route with the status that each caller gets, as a table: the handler's own status is not 401 or 403.
#[tokio::test]
async fn every_route_wants_its_role() {
    let bench = Bench::new(AdminConfig::default());
    let limited = |role, function: &str| {
        let mut grant = Grant::of("t", role);
        grant.functions.insert(function.parse().unwrap());
        known(grant)
    };
    let callers = [
        Caller::Nobody,
        Caller::WrongToken,
        known(Grant::of("t", Role::Invoke)),
        limited(Role::Deploy, "other"),
        limited(Role::Deploy, "known"),
        known(Grant::of("t", Role::Deploy)),
        known(Grant::admin("t")),
    ];
    for route in rows() {
        let path = route
            .path
            .replace("{name}", "known")
            .replace("{token}", "none");
        let mut refused = Vec::new();
        for caller in &callers {
            let request = Request::builder().method(route.method.clone()).uri(&path);
            let request = request.extension(caller.clone()).body(Body::empty());
            let response = bench.send(request.unwrap()).await;
            let status = response.status();
            assert_eq!(
                response.headers().contains_key(header::WWW_AUTHENTICATE),
                status == StatusCode::UNAUTHORIZED
            );
            refused.push(match status.as_u16() {
                401 => '1',
                403 => '3',
                _ => '.',
            });
        }
        let refused: String = refused.into_iter().collect();
        let wanted = match (route.access, path.contains("/known")) {
            (RouteAccess::Open, _) => ".......",
            (RouteAccess::Known, _) => "11.....",
            (RouteAccess::Whole, _) => "11.33..",
            (RouteAccess::WholeRole(_), _) => "11333..",
            (RouteAccess::Role(Role::Deploy), true) => "1133...",
            (RouteAccess::Role(Role::Deploy), false) => "113....",
            (RouteAccess::Role(_), _) => "113333.",
        };
        assert_eq!(refused, wanted, "{} {path}", route.method);
    }
    let open: Vec<&str> = rows()
        .filter(|route| route.access == RouteAccess::Open)
        .map(|route| route.path)
        .collect();
    assert_eq!(open, ["/_pilot/v1/docs", "/healthz", "/readyz"]);
    // Not through the gateway: nobody is known.
    let request = Request::get("/_pilot/v1/functions").body(Body::empty());
    let response = bench.admin.router().oneshot(request.unwrap()).await;
    assert_eq!(response.unwrap().status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn the_owner_of_a_deployment_is_the_tokens() {
    let mut bench = Bench::new(AdminConfig::default());
    bench.control.go_on.add_permits(10);
    let mut of_team = Grant::of("t", Role::Deploy);
    of_team.owner = Some("team".to_owned());
    let deploy = async |grant: &Grant, name: &str, spec: &'static [u8]| {
        let mut request = form(&[("spec", spec), ("code", b"1")]);
        *request.uri_mut() = format!("/_pilot/v1/functions/{name}").parse().unwrap();
        request.extensions_mut().insert(known(grant.clone()));
        let response = bench.send(request).await;
        let status = response.status().as_u16();
        text(response).await;
        status
    };
    let plain = Grant::of("t", Role::Deploy);
    let claims = br#"{"owner": "victim"}"#;
    for (grant, name) in [(&of_team, "new"), (&plain, "new")] {
        assert_eq!(deploy(grant, name, claims).await, 403);
    }
    // `known` is its own owner.
    assert_eq!(deploy(&of_team, "known", b"{}").await, 403);
    assert_eq!(deploy(&of_team, "new", b"{}").await, 200);
    assert_eq!(deploy(&plain, "new", b"{}").await, 200);
    assert_eq!(deploy(&Grant::admin("a"), "new", claims).await, 200);
    let mut owners = Vec::new();
    for _ in 0..3 {
        owners.push(bench.deployed.recv().await.unwrap().1.owner);
    }
    let owners: Vec<Option<&str>> = owners.iter().map(Option::as_deref).collect();
    assert_eq!(owners, [Some("team"), None, Some("victim")]);
}

#[tokio::test]
async fn a_token_is_made_used_and_revoked() {
    let bench = Bench::new(AdminConfig::default());
    let make = r#"{"name": "ci", "roles": ["deploy", "invoke"], "functions": ["known"]}"#;
    let (status, text) = bench.call("POST", "/_pilot/v1/tokens", make).await;
    assert_eq!(status, 200, "{text}");
    let made: serde_json::Value = serde_json::from_str(&text).unwrap();
    let token = made["token"].as_str().unwrap();
    let tokens = Arc::clone(&bench.admin.inner.parts.tokens);
    let grant = pilot_model::ports::Tokens::grant(&*tokens, token.as_bytes()).unwrap();
    assert!(grant.permits(Role::Deploy, "known") && !grant.permits(Role::Deploy, "other"));
    let (_, list) = bench.call("GET", "/_pilot/v1/tokens", "").await;
    assert!(list.contains("\"ci\"") && !list.contains(token), "{list}");
    assert_eq!(
        bench.call("DELETE", "/_pilot/v1/tokens/ci", "").await.0,
        204
    );
    assert_eq!(
        bench.call("DELETE", "/_pilot/v1/tokens/ci", "").await.0,
        404
    );
    assert!(pilot_model::ports::Tokens::grant(&*tokens, token.as_bytes()).is_none());
    let (status, text) = bench
        .call(
            "POST",
            "/_pilot/v1/tokens",
            r#"{"name": "x", "roles": ["root"]}"#,
        )
        .await;
    assert_eq!(status, 400, "{text}");
}

/// Four uploads that have not arrived must not stop a fifth one.
#[tokio::test]
async fn slow_uploads_stop_nobody_elses() {
    let mut bench = Bench::new(AdminConfig::default());
    bench.control.go_on.add_permits(1);
    let mut slow = Vec::new();
    for _ in 0..8 {
        let whole = form(&[("spec", b"{}"), ("code", b"never")]);
        let (mut head, _) = whole.into_parts();
        head.extensions.insert(known(Grant::admin("test")));
        let begin = "--b\r\ncontent-disposition: form-data; name=\"code\"\r\n\r\nhalf";
        let begin = futures_util::stream::once(async move { Ok::<_, std::io::Error>(begin) });
        let body = Body::from_stream(begin.chain(futures_util::stream::pending()));
        let router = bench.admin.router();
        slow.push(tokio::spawn(
            router.oneshot(Request::from_parts(head, body)),
        ));
    }
    tokio::task::yield_now().await;
    let honest = bench.send(form(&[("spec", b"{}"), ("code", b"1")])).await;
    let _ = events(honest).await;
    assert_eq!(&bench.deployed.recv().await.unwrap().2[..], b"1");
    for slow in slow {
        assert!(!slow.is_finished());
        slow.abort();
    }
}

/// A slow disk would stop all that runs there.
#[tokio::test]
async fn the_file_of_an_upload_is_not_made_on_a_thread_that_serves() {
    let bench = Bench::new(AdminConfig::default());
    bench.control.go_on.add_permits(1);
    let deployed = bench.send(form(&[("spec", b"{}"), ("code", b"1")])).await;
    let _ = events(deployed).await;
    let path = format!("/_pilot/v1/layers/{}", layer_id());
    let (status, text) = bench.call("PUT", &path, "layer").await;
    assert_eq!(status, 200, "{text}");
    let spooled_on = bench.control.spooled_on.lock().clone();
    assert_eq!(spooled_on.len(), 2);
    assert!(!spooled_on.contains(&std::thread::current().id()));
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_stops_or_trickles_is_cut_off() {
    for trickles in [false, true] {
        let bench = Bench::new(AdminConfig::default());
        let (head, _) = form(&[("spec", b"{}")]).into_parts();
        let begin = "--b\r\ncontent-disposition: form-data; name=\"code\"\r\n\r\nhalf";
        let begin = futures_util::stream::once(async move { Ok::<_, std::io::Error>(begin) });
        let drops = futures_util::stream::unfold((), move |()| async move {
            if !trickles {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok("x"), ()))
        });
        let body = Body::from_stream(begin.chain(drops));
        let sent = tokio::time::Instant::now();
        let response = bench.send(Request::from_parts(head, body)).await;
        assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
        assert!(
            sent.elapsed() < Duration::from_secs(35),
            "{:?}",
            sent.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_that_goes_on_is_not_cut_off() {
    let bench = Bench::new(AdminConfig::default());
    bench.control.go_on.add_permits(1);
    let (mut head, _) = form(&[("spec", b"{}")]).into_parts();
    head.extensions.insert(known(Grant::admin("test")));
    let part =
        |name: &str| format!("\r\n--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n");
    let mut pieces = vec![part("spec")[2..].to_owned() + "{}" + &part("code")];
    pieces.extend(std::iter::repeat_n("x".repeat(8 << 10), 100));
    pieces.push("\r\n--b--\r\n".to_owned());
    let stream = futures_util::stream::iter(pieces).then(|piece| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, std::io::Error>(piece)
    });
    let sent = tokio::time::Instant::now();
    let response = bench
        .send(Request::from_parts(head, Body::from_stream(stream)))
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(sent.elapsed() > Duration::from_secs(100));
}

#[tokio::test]
async fn uploads_that_arrive_share_a_limit() {
    let bench = Bench::new(AdminConfig {
        arriving_bytes_max: 512 * 1024,
        ..AdminConfig::default()
    });
    let large = vec![0; 300 * 1024];
    let response = bench.send(form(&[("spec", b"{}"), ("code", &large)])).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key(header::RETRY_AFTER));
    // What it had is free again.
    bench.control.go_on.add_permits(1);
    let small = vec![0; 250 * 1024];
    let response = bench.send(form(&[("spec", b"{}"), ("code", &small)])).await;
    assert_eq!(response.status(), StatusCode::OK);
}

/// A caller with a token of this owner, whose deployment of a new function has not ended.
async fn deploy_of(bench: &Bench, owner: &str, name: &str) -> Response {
    let mut grant = Grant::of("t", Role::Deploy);
    grant.owner = Some(owner.to_owned());
    let mut request = form(&[("spec", b"{}"), ("code", b"1")]);
    *request.uri_mut() = format!("/_pilot/v1/functions/{name}").parse().unwrap();
    request.extensions_mut().insert(known(grant));
    bench.send(request).await
}

#[tokio::test]
async fn deployments_of_one_owner_that_do_not_end_leave_places_for_others() {
    let bench = Bench::new(AdminConfig {
        deployments_max: 8,
        ..AdminConfig::default()
    });
    let mut running = Vec::new();
    for number in 0..4 {
        let response = deploy_of(&bench, "evil", &format!("evil-{number}")).await;
        assert_eq!(response.status(), StatusCode::OK);
        running.push(response);
    }
    let refused = deploy_of(&bench, "evil", "evil-5").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    let refused = text(refused).await;
    assert!(refused.contains("of the owner 'evil'"), "{refused}");
    running.push(deploy_of(&bench, "honest", "mine").await);
    bench.control.go_on.add_permits(5);
    for response in running {
        let events = events(response).await;
        assert!(matches!(events.last(), Some(DeployEvent::Done(_))));
    }
    assert_eq!(bench.admin.inner.deployments.lock().len(), 5);
    let again = deploy_of(&bench, "evil", "evil-5").await;
    assert_eq!(again.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_change_is_in_the_name_of_its_token_as_long_as_that_is_valid() {
    let bench = Bench::new(AdminConfig::default());
    bench.control.go_on.add_permits(10);
    let tokens = Arc::clone(&bench.admin.inner.parts.tokens);
    let make = r#"{"name": "ci", "roles": ["deploy"], "owner": "team"}"#;
    let made = async || {
        let (_, text) = bench.call("POST", "/_pilot/v1/tokens", make).await;
        let made: serde_json::Value = serde_json::from_str(&text).unwrap();
        let token = made["token"].as_str().unwrap().to_owned();
        pilot_model::ports::Tokens::grant(&*tokens, token.as_bytes()).unwrap()
    };
    let grant = made().await;
    // Another token changes nothing.
    let other = r#"{"name": "other", "roles": ["deploy"]}"#;
    bench.call("POST", "/_pilot/v1/tokens", other).await;
    for (method, path) in [
        ("PUT", "/_pilot/v1/functions/new"),
        ("DELETE", "/_pilot/v1/functions/new"),
        ("POST", "/_pilot/v1/functions/new/rollback"),
    ] {
        let mut request = match method {
            "PUT" => form(&[("spec", b"{}"), ("code", b"1")]),
            _ => Request::new(Body::empty()),
        };
        *request.method_mut() = method.parse().unwrap();
        *request.uri_mut() = path.parse().unwrap();
        let caller = Caller::Known(Arc::clone(&grant));
        request.extensions_mut().insert(caller);
        let _ = text(bench.send(request).await).await;
    }
    let actors = std::mem::take(&mut *bench.control.actors.lock());
    assert_eq!(actors.len(), 3);
    for actor in &actors {
        assert_eq!(actor.share, "the owner 'team'");
        assert_eq!(actor.only_of.as_deref(), Some("team"));
        assert!((actor.is_permitted)());
    }
    bench.call("DELETE", "/_pilot/v1/tokens/ci", "").await;
    let _same_name = made().await;
    assert!(actors.iter().all(|actor| !(actor.is_permitted)()));
}

/// For those that it deploys for, and itself.
#[tokio::test]
async fn an_administrators_deployments_count_for_the_owners_that_it_names() {
    let bench = Bench::new(AdminConfig::default());
    bench.control.go_on.add_permits(2);
    for spec in [&br#"{"owner": "team"}"#[..], b"{}"] {
        let response = bench.send(form(&[("spec", spec), ("code", b"1")])).await;
        let _ = events(response).await;
    }
    let shares: Vec<String> = bench
        .control
        .actors
        .lock()
        .iter()
        .map(|actor| actor.share.clone())
        .collect();
    assert_eq!(shares, ["the owner 'team'", "the token 'test'"]);
}
