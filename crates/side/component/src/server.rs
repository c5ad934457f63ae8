//! A worker: an HTTP server on loopback for its daemon, with an instance per request.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pilot_model::runtime::wasm::{COMPILED, VARIABLE, WorkerSettings};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use wasmtime::Engine;

use crate::answer::{Answer, head_of, refused};
use crate::artefact::{Linked, load};
use crate::engine;
use crate::in_words;
use crate::instance::{begin, patience};
use crate::memory::WorkerMemory;
use crate::outgoing::Outgoing;
use crate::state::InstanceParts;

/// Between two epochs, at which an instance that computes gives way to others.
const TICK: Duration = Duration::from_millis(5);
/// The ticker rests after so many epochs without a request.
const IDLE_TICKS_MAX: u32 = 20;
/// Threads of a worker.
const THREADS_MAX: u32 = 16;

/// Serves until the process is ended.
///
/// # Errors
/// The component cannot be loaded, or the port cannot be used.
pub fn serve(settings: &WorkerSettings) -> Result<(), String> {
    let (engine, said) = engine::serving(settings).map_err(|error| in_words(&error))?;
    if let Some(said) = said {
        eprintln!("{said}");
    }
    let folder = Path::new(&settings.folder);
    let source = folder.join(&settings.component);
    let (linked, said) = load(&engine, &folder.join(COMPILED), &source)
        .map_err(|problem| format!("component \"{}\": {problem}", settings.component))?;
    if let Some(said) = said {
        eprintln!("{said}");
    }
    let places = Arc::new(Semaphore::new(engine::places(settings) as usize));
    let worker = Arc::new(Worker {
        linked,
        shared: Arc::new(InstanceParts {
            variables: variables(),
            memory: WorkerMemory::of(settings.memory_bytes),
            outgoing: Outgoing::new(settings.network),
        }),
        patience: patience(settings.timeout),
        epochs: Epochs::start(&engine, &places)?,
        places,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads(settings.cpu_milli))
        .max_blocking_threads(8)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    runtime.block_on(accept(worker, settings.port))
}

/// The variables of the process that are the component's.
fn variables() -> Vec<(String, String)> {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let name = name.strip_prefix(VARIABLE)?.to_owned();
        Some((name, value.into_string().ok()?))
    });
    all.collect()
}

/// As many as it has CPUs.
fn threads(cpu_milli: u32) -> usize {
    let most = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let wanted = cpu_milli.div_ceil(1000).clamp(1, THREADS_MAX);
    most.min(wanted as usize)
}

async fn accept(worker: Arc<Worker>, port: u16) -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}"))?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors: until a connection ends.
            tokio::time::sleep(TICK).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let worker = Arc::clone(&worker);
        tokio::spawn(async move {
            let service = service_fn(|request| Worker::answer(Arc::clone(&worker), request));
            // The daemon, which is the client, has the error.
            let _ = http1::Builder::new()
                .header_read_timeout(None)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

struct Worker {
    linked: Linked,
    shared: Arc<InstanceParts>,
    /// For instances.
    places: Arc<Semaphore>,
    patience: Duration,
    epochs: Arc<Epochs>,
}

impl Worker {
    async fn answer(
        worker: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, Infallible> {
        let asked = Instant::now();
        let deadline = asked + worker.patience;
        worker.epochs.needed();
        let place = Arc::clone(&worker.places).acquire_owned().await;
        let Ok(place) = place else {
            return Ok(refused(STOPPED, "the worker is stopping"));
        };
        let is_head = *request.method() == Method::HEAD;
        let (linked, shared) = (&worker.linked, &worker.shared);
        let begun = begin(linked, shared, request, asked, deadline, place);
        Ok(match begun {
            Ok(begun) => head_of(begun, is_head, deadline.into()).await,
            Err(problem) => refused(StatusCode::BAD_REQUEST, &problem),
        })
    }
}

const STOPPED: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

/// Advances the epoch while requests come.
#[derive(Debug, Default)]
struct Epochs {
    /// Set by requests.
    is_needed: AtomicBool,
    /// Whether the ticker rests.
    rests: AtomicBool,
    ticker: OnceLock<thread::Thread>,
}

impl Epochs {
    fn start(engine: &Engine, places: &Arc<Semaphore>) -> Result<Arc<Self>, String> {
        let epochs = Arc::new(Self::default());
        let (engine, places, of_ticker) = (engine.clone(), Arc::clone(places), Arc::clone(&epochs));
        let all = places.available_permits();
        let ticker = thread::Builder::new()
            .name("epochs".to_owned())
            .spawn(move || of_ticker.tick(&engine, || places.available_permits() < all))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let _ = epochs.ticker.set(ticker.thread().clone());
        Ok(epochs)
    }

    fn needed(&self) {
        self.is_needed.store(true, Ordering::SeqCst);
        if self.rests.load(Ordering::SeqCst)
            && self.rests.swap(false, Ordering::SeqCst)
            && let Some(ticker) = self.ticker.get()
        {
            ticker.unpark();
        }
    }

    fn tick(&self, engine: &Engine, any_runs: impl Fn() -> bool) {
        let mut idle = 0;
        loop {
            thread::sleep(TICK);
            engine.increment_epoch();
            if self.is_needed.swap(false, Ordering::SeqCst) || any_runs() {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < IDLE_TICKS_MAX {
                continue;
            }
            idle = 0;
            self.rests.store(true, Ordering::SeqCst);
            if self.is_needed.load(Ordering::SeqCst) {
                // Whoever set it may not have seen that it rests.
                self.rests.store(false, Ordering::SeqCst);
            }
            while self.rests.load(Ordering::SeqCst) {
                thread::park();
            }
        }
    }
}
