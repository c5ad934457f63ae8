//! One instance: made for a request, run until its handler returns, and gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::yield_now;
use wasmtime::{Store, UpdateDeadline};
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::body::HyperOutgoingBody;

use crate::artefact::Linked;
use crate::in_words;
use crate::state::{InstanceParts, InstanceState};

/// What a component sends as its response.
pub(crate) type Sent = Result<Response<HyperOutgoingBody>, ErrorCode>;

/// An instance that runs. It makes progress when it is polled. Dropping it ends it, also in the middle of its code.
pub(crate) type Guest = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Why an instance failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// In one line, for the client.
    pub(crate) reason: String,
    /// With the functions that it was in, for the function's log.
    pub(crate) detail: String,
}

/// An instance that has begun.
pub(crate) struct Begun {
    pub(crate) guest: Guest,
    /// Its response arrives here.
    pub(crate) response: oneshot::Receiver<Sent>,
    /// How long its start took: from the request's head to the call of its handler.
    pub(crate) start: Arc<OnceLock<Duration>>,
}

/// Begins an instance.
///
/// # Errors
/// The request cannot be given to a component.
pub(crate) fn begin(
    linked: &Linked,
    shared: &Arc<InstanceParts>,
    request: Request<Incoming>,
    asked: Instant,
    deadline: Instant,
    place: OwnedSemaphorePermit,
) -> Result<Begun, String> {
    let mut store = Store::new(linked.engine(), InstanceState::new(shared, deadline));
    store.limiter(|state| &mut state.memory);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|store| match store.data().deadline <= Instant::now() {
        true => Err(wasmtime::Error::msg(OUT_OF_TIME)),
        // Other requests, and its client's hang-up, have their turn: sockets and timers are looked at before it goes on.
        false => Ok(UpdateDeadline::YieldCustom(1, Box::pin(yield_now()))),
    });
    let (sender, receiver) = oneshot::channel();
    let state = store.data_mut();
    let begun = state
        .new_incoming_request(Scheme::Http, request)
        .and_then(|request| Ok((request, state.new_response_outparam(sender)?)));
    let (request, response) = begun.map_err(|error| in_words(&error))?;
    let linked = linked.clone();
    let start = Arc::new(OnceLock::new());
    let started = Arc::clone(&start);
    let guest = Box::pin(async move {
        let _place = place;
        let ran = async {
            let proxy = linked.instantiate_async(&mut store).await?;
            let handler = proxy.wasi_http_incoming_handler();
            let _ = started.set(asked.elapsed());
            handler.call_handle(&mut store, request, response).await
        }
        .await;
        ran.map_err(|error| {
            let refused = match store.data().memory.refused {
                true => MEMORY_REFUSED,
                false => "",
            };
            let detail: String = format!("{error:?}").chars().take(DETAIL_MAX).collect();
            Failure {
                reason: format!("{}{refused}", error.root_cause()),
                detail,
            }
        })
    });
    Ok(Begun {
        guest,
        response: receiver,
        start,
    })
}

const DETAIL_MAX: usize = 4000;
const OUT_OF_TIME: &str = "it computed until its time was over";
const MEMORY_REFUSED: &str = ": it was refused memory: the instances of a worker share the function's memory_mb; raise it, or lower \
                              concurrency";

/// The time of a component: a little less than the daemon waits, so that the daemon need not end the worker with its other requests.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout - (timeout / 10).min(Duration::from_millis(250))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_answers_before_the_daemon_gives_up() {
        assert_eq!(
            patience(Duration::from_secs(30)),
            Duration::from_millis(29_750)
        );
        assert_eq!(
            patience(Duration::from_millis(10)),
            Duration::from_millis(9)
        );
    }
}
