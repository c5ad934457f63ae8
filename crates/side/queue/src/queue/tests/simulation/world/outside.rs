//! The functions and destinations of the simulation: the test says how each attempt ends.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::asynchronous::Destination;
use pilot_model::ports::{AsyncRequest, AsyncRunner, AsyncTarget, AttemptEnd, Deliver, NoTarget};
use pilot_model::{AsyncConfig, BoxFuture, FunctionName};
use tokio::sync::oneshot;

use super::{CONCURRENCY, FUNCTIONS};

/// What the functions and the destinations are asked, and how they are.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// Attempts and deliveries that wait for their end, by id.
    pub(super) waiting: Vec<(String, oneshot::Sender<AttemptEnd>)>,
    /// Those that have begun since the last look: their ids, and whether it is a delivery.
    pub(super) begun: Vec<(String, bool)>,
    pub(super) gone: [bool; FUNCTIONS],
}

#[derive(Debug, Default)]
pub(super) struct Functions(pub(super) Mutex<Outside>);

impl Functions {
    fn begin(&self, id: &str, delivers: bool) -> oneshot::Receiver<AttemptEnd> {
        let (end, ended) = oneshot::channel();
        let mut outside = self.0.lock();
        outside.waiting.push((id.to_owned(), end));
        outside.begun.push((id.to_owned(), delivers));
        ended
    }
}

/// `f0` has Lambda's defaults. `f1` keeps nothing that fails, and tells `f0`. `f2` delivers. `f3` leads to itself.
pub(super) fn config_of(function: &str) -> AsyncConfig {
    let usual = AsyncConfig::default();
    match function {
        "f1" => AsyncConfig {
            retries: 0,
            dead_letter: false,
            on_failure: Some("f0".parse().unwrap()),
            ..usual
        },
        "f2" => AsyncConfig {
            retries: 1,
            retry_wait: Duration::from_secs(1),
            max_age: Duration::from_secs(120),
            on_success: Some("https://example.com/ended".parse().unwrap()),
            ..usual
        },
        "f3" => AsyncConfig {
            on_success: Some("f3".parse().unwrap()),
            ..usual
        },
        _ => usual,
    }
}

fn number_of(function: &str) -> usize {
    function[1..].parse().unwrap()
}

impl AsyncRunner for Functions {
    fn target(&self, function: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        if self.0.lock().gone[number_of(function.as_str())] {
            return Err(NoTarget::Gone);
        }
        Ok(AsyncTarget {
            config: config_of(function.as_str()),
            owner: "us".to_owned(),
            concurrency: CONCURRENCY,
            arn: format!("arn:{function}"),
        })
    }

    fn run(&self, request: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        let ended = self.begin(request.id.as_str(), false);
        Box::pin(async move { ended.await.unwrap_or(AttemptEnd::Stopping) })
    }
}

impl Deliver for Functions {
    fn deliver(
        &self,
        _: &FunctionName,
        _: &Destination,
        id: &str,
        _: Bytes,
    ) -> BoxFuture<'static, Result<(), String>> {
        let ended = self.begin(id, true);
        Box::pin(async move {
            match ended.await {
                Ok(AttemptEnd::Done { .. }) => Ok(()),
                _ => Err("it does not answer".to_owned()),
            }
        })
    }
}

pub(super) fn done() -> AttemptEnd {
    AttemptEnd::Done {
        version: 1,
        body: None,
    }
}
