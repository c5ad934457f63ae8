//! Whether the other node of a link lives. A process that is stopped, or a machine whose user space hangs, still acknowledges what the
//! kernel receives for it, so the kernel's own limits ([`crate::link::prepare`]) do not notice it. Pings of HTTP/2 do: the other process
//! has to answer them.
//!
//! Everything that comes counts as a sign, and so does each write that had to wait for room: it shows that a slow network moves. A handler
//! that takes its time gives no sign, but its node answers pings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::tasks::Tasks;

/// The last sign of the other node.
#[derive(Debug, Clone)]
pub(crate) struct Signs(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    /// Held to read or write it.
    last: Mutex<Instant>,
    is_silent: AtomicBool,
}

impl Default for Signs {
    fn default() -> Self {
        Self(Arc::new(Seen {
            last: Mutex::new(Instant::now()),
            is_silent: AtomicBool::new(false),
        }))
    }
}

impl Signs {
    /// Notes one.
    pub(crate) fn sign(&self) {
        *self.0.last.lock() = Instant::now();
    }

    /// Whether the link was closed because there was none.
    pub(crate) fn is_silent(&self) -> bool {
        self.0.is_silent.load(Ordering::Acquire)
    }

    /// Resolves when there was no sign for this time.
    async fn silence(&self, silence_max: Duration) {
        loop {
            let last = *self.0.last.lock();
            sleep_until(last + silence_max).await;
            if *self.0.last.lock() == last {
                return;
            }
        }
    }

    /// Ends the tasks of a connection when nothing came for `silence_max`, and nothing for the same time after the ping that is sent then.
    /// Before that, it calls `told`.
    pub(crate) async fn end_when_silent(
        self,
        silence_max: Duration,
        tasks: Tasks,
        told: impl FnOnce() + Send,
    ) {
        self.silence(silence_max * 2).await;
        self.0.is_silent.store(true, Ordering::Release);
        told();
        tasks.end();
    }
}

/// Sends a ping when nothing came for this time. Whether an answer comes in time, [`Signs`] decide: hyper would not count what comes before
/// the answer.
pub(crate) fn with_pings(builder: &mut http2::Builder<Tasks>, silence_max: Duration) {
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(silence_max)
        .keep_alive_timeout(NEVER)
        // Also before the first call: the next one then goes to another node at once.
        .keep_alive_while_idle(true);
}

/// Longer than any link is silent.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{Empty, Full};
    use hyper::body::Incoming;
    use hyper::client::conn::http2::SendRequest;
    use hyper::rt::Executor;
    use hyper::server::conn::http2::Builder as Server;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{DuplexStream, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::link::InTurns;
    use crate::tasks::EndTasks;

    const SILENCE: Duration = Duration::from_secs(3);
    /// How long the handler of `/slow` takes.
    const SLOW: Duration = Duration::from_secs(1000);

    struct Bench {
        sender: SendRequest<Empty<Bytes>>,
        signs: Signs,
        told: Arc<AtomicBool>,
        is_stopped: Arc<AtomicBool>,
        _tasks: EndTasks,
    }

    async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        if request.uri().path() == "/slow" {
            sleep(SLOW).await;
        }
        Ok(Response::new(Full::from("done")))
    }

    /// Serves until it is stopped. Then it does nothing, and its socket stays open.
    async fn serve(stream: DuplexStream, tasks: Tasks, is_stopped: Arc<AtomicBool>) {
        let serving =
            Server::new(tasks).serve_connection(TokioIo::new(stream), service_fn(respond));
        let mut serving = pin!(serving);
        poll_fn(|cx| match is_stopped.load(Ordering::Acquire) {
            true => Poll::Pending,
            false => serving.as_mut().poll(cx).map(drop),
        })
        .await;
    }

    impl Bench {
        async fn new() -> Self {
            let (ours, theirs) = duplex(64 << 10);
            let (tasks, signs) = (Tasks::default(), Signs::default());
            let (is_stopped, told) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
            let served = serve(theirs, tasks.clone(), Arc::clone(&is_stopped));
            // Not one of the tasks that a silent link ends.
            tokio::spawn(served);
            let mut builder = http2::Builder::new(tasks.clone());
            with_pings(&mut builder, SILENCE);
            let stream = TokioIo::new(InTurns::noting(ours, signs.clone()));
            let (sender, connection) = builder.handshake(stream).await.unwrap();
            tasks.execute(connection);
            let tell = Arc::clone(&told);
            let ends = tasks.clone();
            let silent = signs
                .clone()
                .end_when_silent(SILENCE, ends, move || tell.store(true, Ordering::Release));
            tasks.execute(silent);
            Self {
                sender,
                signs,
                told,
                is_stopped,
                _tasks: EndTasks(tasks),
            }
        }

        async fn call(&self, path: &str) -> hyper::Result<Response<Incoming>> {
            let request = Request::get(format!("http://h{path}"));
            let request = request.body(Empty::new()).unwrap();
            self.sender.clone().send_request(request).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_a_node_that_is_stopped_end_after_a_ping_without_an_answer() {
        let bench = Bench::new().await;
        bench.call("/").await.unwrap();
        bench.is_stopped.store(true, Ordering::Release);
        let began = Instant::now();
        let ended = timeout(SILENCE * 3, bench.call("/")).await.unwrap();
        assert!(ended.is_err());
        let took = began.elapsed();
        assert!(
            took > SILENCE && took < SILENCE * 2 + SILENCE / 10,
            "{took:?}"
        );
        assert!(bench.signs.is_silent() && bench.told.load(Ordering::Acquire));
        sleep(Duration::from_millis(1)).await;
        assert!(bench.sender.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_handler_on_a_node_that_lives_is_waited_for() {
        let bench = Bench::new().await;
        let began = Instant::now();
        bench.call("/slow").await.unwrap();
        assert!(began.elapsed() >= SLOW);
        // A link without calls stays, too.
        sleep(SLOW).await;
        bench.call("/").await.unwrap();
        assert!(!bench.signs.is_silent() && !bench.told.load(Ordering::Acquire));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_sent_to_a_stopped_node_are_no_signs_of_it() {
        let bench = Bench::new().await;
        bench.is_stopped.store(true, Ordering::Release);
        let calls = (0..20).map(|at| {
            let bench = &bench;
            async move {
                sleep(SILENCE / 4 * at).await;
                bench.call("/").await.map(drop)
            }
        });
        let ended = timeout(SILENCE * 6, futures_util::future::join_all(calls));
        assert!(ended.await.unwrap().iter().all(Result::is_err));
    }
}
