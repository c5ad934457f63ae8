//! Fuzz target: requests to the control API. Built for tests and with `--cfg fuzzing` only.

use std::sync::OnceLock;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri};
use axum::response::Response;
use http_body_util::BodyExt as _;
use pilot_model::FunctionName;
use pilot_model::access::{Caller, Grant, Role};
use pilot_model::api::ApiError;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

use crate::admin::AdminConfig;
use crate::fakes::{Bench, known};

/// Requests, one after the other, each as lines: who calls, the method and the target; headers as `name: value`; an empty line; a body. A
/// byte 0 ends a request. Each gets an answer. An error is one of the API, and not a fault of the daemon. Nobody without a token is served,
/// and nothing is done with a function that the token is not for.
///
/// # Panics
/// One of this does not hold.
pub fn requests(data: &[u8]) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    });
    let asked: Vec<Asked> = data
        .split(|byte| *byte == 0)
        .filter_map(Asked::of)
        .take(REQUESTS_MAX)
        .collect();
    if asked.is_empty() {
        return;
    }
    runtime.block_on(async {
        let bench = Bench::new(AdminConfig::default());
        bench.control.go_on.add_permits(REQUESTS_MAX);
        for one in asked {
            let what = format!("{} {} {}", one.who, one.method, one.target);
            let answered = timeout(ANSWER_MAX, one.check(&bench)).await;
            answered.unwrap_or_else(|_| panic!("no answer: {what}"));
        }
        bench.admin.finish(Instant::now() + ANSWER_MAX).await;
    });
}

struct Asked<'a> {
    who: &'a str,
    caller: Caller,
    method: Method,
    target: &'a str,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: &'a [u8],
}

impl<'a> Asked<'a> {
    /// `None`: hyper would not pass it on, or nobody has such a name.
    fn of(data: &'a [u8]) -> Option<Self> {
        let end = data.windows(2).position(|pair| pair == b"\n\n");
        let (head, body) = data.split_at(end.unwrap_or(data.len()));
        let mut lines = head.split(|byte| *byte == b'\n');
        let mut words = std::str::from_utf8(lines.next()?).ok()?.splitn(3, ' ');
        let (who, method, target) = (words.next()?, words.next()?, words.next()?);
        let _: Uri = target.parse().ok()?;
        let mut headers = Vec::new();
        for line in lines.take(100) {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            let name = HeaderName::from_bytes(name).ok()?;
            let value = HeaderValue::from_bytes(value.get(1..)?.trim_ascii()).ok()?;
            headers.push((name, value));
        }
        Some(Self {
            who,
            caller: caller(who)?,
            method: Method::from_bytes(method.as_bytes()).ok()?,
            target,
            headers,
            body: body.get(2..).unwrap_or_default(),
        })
    }

    async fn check(&self, bench: &Bench) {
        let what = format!("{} {} {}", self.who, self.method, self.target);
        let mut request = Request::builder().method(&self.method).uri(self.target);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.extension(self.caller.clone());
        let request = request.body(Body::from(self.body.to_vec()));
        let request = request.expect("its parts are valid");
        let path = request.uri().path().to_owned();
        let answer = bench.admin.router().oneshot(request).await;
        let answer = answer.expect("the router has no errors");
        let status = answer.status();
        // What the services behind it say: this daemon is not ready.
        let is_readiness = path == "/readyz";
        assert!(
            !status.is_server_error() || is_readiness,
            "{status}: {what}"
        );
        let is_open = OPEN.contains(&path.as_str());
        let is_known = matches!(self.caller, Caller::Known(_));
        assert!(
            is_known || is_open || status.is_client_error(),
            "{status} without a token: {what}"
        );
        let is_json = answer
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind == "application/json");
        let text = text(&path, answer).await;
        if status.is_client_error() && self.method != Method::HEAD {
            let error: ApiError = serde_json::from_slice(&text).expect("an error of the API");
            assert!(is_json && !error.code.is_empty() && !error.message.is_empty());
        }
        for name in bench.control.touched() {
            assert!(self.may_change(&name), "{name} was touched: {what}");
        }
    }

    fn may_change(&self, function: &FunctionName) -> bool {
        let Caller::Known(grant) = &self.caller else {
            return false;
        };
        let owns = match &grant.owner {
            // The only function there is belongs to the owner of its name.
            Some(owner) => function.as_str() != "known" || owner == "known",
            None => true,
        };
        grant.permits(Role::Deploy, function.as_str()) && owns
    }
}

/// What an answer has. Lines of a log that are followed never end: they are read as far as they are there.
async fn text(path: &str, answer: Response) -> Vec<u8> {
    let mut body = answer.into_body();
    let mut text = Vec::new();
    loop {
        let frame = timeout(STREAM_WAIT, body.frame()).await;
        let frame = match frame {
            Ok(Some(frame)) => frame.expect("a body of ours has no errors"),
            Ok(None) => return text,
            Err(_) if path.ends_with("/logs") => return text,
            // Slow machines have slow disks.
            Err(_) => continue,
        };
        text.extend(frame.into_data().unwrap_or_default());
        assert!(text.len() <= ANSWER_BYTES_MAX, "{} bytes", text.len());
    }
}

fn caller(who: &str) -> Option<Caller> {
    let limited = |function: &str| {
        let mut grant = Grant::of("t", Role::Deploy);
        grant.functions.extend(function.parse());
        grant
    };
    Some(match who {
        "nobody" => Caller::Nobody,
        "wrong" => Caller::WrongToken,
        "invoker" => known(Grant::of("t", Role::Invoke)),
        "deployer" => known(Grant::of("t", Role::Deploy)),
        "of-known" => known(limited("known")),
        "of-other" => known(limited("other")),
        "owner" => known(Grant {
            owner: Some("somebody".to_owned()),
            ..Grant::of("t", Role::Deploy)
        }),
        "admin" => known(Grant::admin("t")),
        _ => return None,
    })
}

const OPEN: [&str; 3] = ["/_pilot/v1/docs", "/healthz", "/readyz"];
const REQUESTS_MAX: usize = 8;
const ANSWER_MAX: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 4 << 20;
const STREAM_WAIT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    #[test]
    fn every_request_to_the_control_api_has_an_answer_that_its_token_permits() {
        corpus("control-requests", super::requests);
    }
}
