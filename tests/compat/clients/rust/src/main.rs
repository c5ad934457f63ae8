//! The function under test on AWS's crate `lambda_runtime`: what it does is in `tests/compat/README.md`.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use lambda_runtime::streaming::{Body, Response, channel};
use lambda_runtime::{Diagnostic, FunctionResponse, LambdaEvent, run_concurrent, service_fn};
use serde_json::{Value, json};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    run_concurrent(service_fn(handler)).await
}

async fn handler(event: LambdaEvent<Value>) -> Result<FunctionResponse<Value, Body>, Diagnostic> {
    let (event, context) = event.into_parts();
    // A function URL's event asks in its query.
    let asked = event.get("queryStringParameters").unwrap_or(&event);
    let value = asked["value"].clone();
    let answer = match asked["do"].as_str().unwrap_or_default() {
        "echo" => value,
        "raise" => {
            return Err(Diagnostic {
                error_type: "OutOfStock".to_owned(),
                error_message: "no pears left".to_owned(),
            });
        }
        "print" => {
            println!("{}", value.as_str().unwrap_or_default());
            json!("printed")
        }
        "sleep" => {
            sleep(Duration::from_secs_f64(value.as_f64().unwrap_or_default())).await;
            json!("awake")
        }
        "exit" => std::process::exit(
            value
                .as_i64()
                .and_then(|status| status.try_into().ok())
                .unwrap_or(1),
        ),
        "context" => json!({
            "request_id": context.request_id,
            "arn": context.invoked_function_arn,
            "deadline_ms": context.deadline().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            "name": context.env_config.function_name,
            "memory": context.env_config.memory.to_string(),
            "custom": context.client_context.map(|client| client.custom),
        }),
        "meet" => json!(meet(&context.request_id, value.as_u64().unwrap_or(1)).await),
        "stream" => return Ok(FunctionResponse::StreamingResponse(stream())),
        "release" => {
            fs::write("/tmp/released", "").map_err(|error| Diagnostic::from(error.to_string()))?;
            json!("released")
        }
        other => return Err(Diagnostic::from(format!("there is no {other}"))),
    };
    Ok(FunctionResponse::BufferedResponse(answer))
}

/// Waits until as many invocations are here.
async fn meet(request: &str, many: u64) -> u64 {
    let _ = fs::create_dir_all("/tmp/meeting");
    let _ = fs::write(format!("/tmp/meeting/{request}"), "");
    loop {
        let here = fs::read_dir("/tmp/meeting").map_or(0, |entries| entries.count() as u64);
        if here >= many {
            return here;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// "one", then, once it has been released, "two".
fn stream() -> Response<Body> {
    let (mut sender, body) = channel();
    tokio::spawn(async move {
        // An error means that the client has disconnected.
        let _ = sender.send_data("one\n".into()).await;
        while !Path::new("/tmp/released").exists() {
            sleep(Duration::from_millis(5)).await;
        }
        let _ = sender.send_data("two\n".into()).await;
    });
    let mut response = Response::from(body);
    response.metadata_prelude.status_code = 201u16.try_into().expect("201 is a status");
    response
        .metadata_prelude
        .headers
        .insert("x-made", "here".parse().expect("a header's value"));
    response
}
