//! The functions in examples/.

use pilot_harness::{Need, Project, Request, needs};
use serde_json::json;

use crate::apps::bytes;
use crate::{answer, daemon};

#[test]
fn the_image_example_answers_a_photograph_both_ways() {
    needs!(Need::Network);
    use base64::Engine as _;
    let daemon = daemon();
    daemon.deploy_dir(&Project::examples().join("image"));
    let photograph = std::fs::read(Project::examples().join("image/astronaut.jpg")).unwrap();
    let request = Request::new("POST", "/fn/image/?size=96")
        .header("content-type", "image/jpeg")
        .body(photograph.clone());
    let response = daemon.send(&request).ok();
    assert_eq!(response.header("content-type"), Some("image/png"));
    assert!(
        response.body.starts_with(b"\x89PNG"),
        "{:?}",
        &response.body[..8]
    );
    assert_eq!(response.header("x-size"), Some("96x96"));
    let engine = base64::engine::general_purpose::STANDARD;
    let event = json!({"image": engine.encode(&photograph), "size": 96, "format": "jpeg"});
    let result = answer(&daemon, "image", event);
    assert_eq!(
        (&result["width"], &result["height"]),
        (&json!(96), &json!(96))
    );
    let jpeg = engine.decode(result["image"].as_str().unwrap()).unwrap();
    assert!(jpeg.starts_with(&[0xff, 0xd8, 0xff]));
    let rubbish = daemon.send(
        &Request::new("POST", "/fn/image/")
            .header("content-type", "image/jpeg")
            .body("no picture"),
    );
    assert_eq!(rubbish.status, 400, "{}", rubbish.text());
}

#[test]
fn the_fastapi_example_runs_unchanged() {
    needs!(Need::Network);
    let daemon = daemon();
    daemon.deploy_dir(&Project::examples().join("fastapi"));
    let index = daemon.get("/fn/fastapi/").ok().json();
    assert_eq!(
        index,
        json!({"application": "Orders", "root_path": "/fn/fastapi", "up": true})
    );
    let receipt = daemon.post(
        "/fn/fastapi/orders",
        &json!({"customer": "Ada", "lines": [{"article": "pear", "pieces": 3}]}),
    );
    assert_eq!(receipt.status, 201, "{}", receipt.text());
    assert_eq!(
        receipt.json(),
        json!({"customer": "Ada", "pieces": 3, "total": 1.35})
    );
    assert_eq!(
        daemon
            .post("/fn/fastapi/orders", &json!({"customer": ""}))
            .status,
        422
    );
    assert_eq!(
        daemon.get("/fn/fastapi/articles/plum").ok().json()["price"],
        0.2
    );
    assert_eq!(daemon.get("/fn/fastapi/articles/none").status, 404);
    let count = daemon.get("/fn/fastapi/count?to=3&pause_ms=1000").ok();
    assert_eq!(count.text(), "1\n2\n3\n");
    assert!(
        (count.body_after - count.head_after).as_millis() > 1000,
        "not streamed: {:?}",
        count.chunks_after
    );
    assert!(
        daemon
            .get("/fn/fastapi/docs")
            .ok()
            .text()
            .contains("/fn/fastapi/openapi.json")
    );
}

#[test]
fn the_flask_example_runs_unchanged() {
    needs!(Need::Network);
    let daemon = daemon();
    daemon.deploy_dir(&Project::examples().join("flask"));
    assert_eq!(
        daemon.get("/fn/flask/").ok().json()["upload"],
        "/fn/flask/upload"
    );
    let photograph = std::fs::read(Project::examples().join("image/astronaut.jpg")).unwrap();
    let (kind, body) = pilot_harness::multipart(&[("photo", "image/jpeg", &photograph)]);
    let upload = daemon
        .send(
            &Request::new("POST", "/fn/flask/upload")
                .header("content-type", &kind)
                .body(body),
        )
        .ok()
        .json();
    assert_eq!(upload["photo"]["bytes"], photograph.len());
    assert_eq!(upload["photo"]["content_type"], "image/jpeg");
    let first = daemon.get("/fn/flask/visits").ok();
    assert_eq!(first.json()["visits"], 1);
    let cookies: Vec<&str> = first
        .all("set-cookie")
        .iter()
        .map(|cookie| cookie.split(';').next().unwrap())
        .collect();
    assert_eq!(cookies.len(), 2, "{cookies:?}");
    let second = daemon
        .send(&Request::new("GET", "/fn/flask/visits").header("cookie", &cookies.join("; ")))
        .ok();
    assert_eq!(second.json()["visits"], 2);
    let echo = daemon
        .send(&Request::new("POST", "/fn/flask/echo").body(bytes()))
        .ok();
    assert!(echo.body == bytes());
    assert_eq!(
        daemon.get("/fn/flask/numbers").ok().text(),
        "1\n2\n3\n4\n5\n"
    );
}

#[test]
fn the_hello_example_greets() {
    let daemon = daemon();
    daemon.deploy_dir(&Project::examples().join("hello"));
    assert_eq!(
        answer(&daemon, "hello", json!({"name": "Ada"}))["message"],
        "Hello, Ada!"
    );
    assert_eq!(
        daemon.get("/fn/hello/?name=Bob").ok().json()["message"],
        "Hello, Bob!"
    );
}

#[test]
fn all_examples_deploy_at_once() {
    needs!(Need::Network);
    let daemon = daemon();
    daemon.cli_ok(&["up", &Project::examples().display().to_string()]);
    let list = daemon.get("/_pilot/v1/functions").ok().json();
    let mut names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|function| function["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["fastapi", "flask", "hello", "image"]);
}
