//! A proxy between a daemon and the engine. It passes requests on, except one that it holds, so that the test knows the
//! daemon's exact state when it is killed. The client makes one connection per call.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};

/// A request to hold: its method, and a part of its path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked(pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const CREATE: Asked = Asked("POST ", "/containers/create?");
pub(crate) const START: Asked = Asked("POST ", "/start");
pub(crate) const CHANGES: Asked = Asked("GET ", "/changes");
pub(crate) const REMOVE: Asked = Asked("DELETE ", "/containers/");

/// Where it is held.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Held {
    /// Before the engine receives it.
    Before,
    /// After the engine has executed it and before the daemon gets the answer.
    After,
}

type Plan = Arc<Mutex<Option<(Asked, Held)>>>;

/// See the module. Dropping it releases everything.
pub(crate) struct Gate {
    path: PathBuf,
    plan: Plan,
    held: UnboundedReceiver<()>,
    task: AbortHandle,
}

impl Gate {
    /// Opens one in `folder`, for the engine whose `docker.sock` is in another folder.
    pub(crate) fn open(folder: &Path, engine: &Path) -> Self {
        let path = folder.join("gate.sock");
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, held) = unbounded_channel();
        let plan = Plan::default();
        let work = serve(
            listener,
            engine.join("docker.sock"),
            Arc::clone(&plan),
            tell,
        );
        Self {
            path,
            plan,
            held,
            task: tokio::spawn(work).abort_handle(),
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Holds the next such request.
    pub(crate) fn hold(&self, asked: Asked, at: Held) {
        *self.plan.lock() = Some((asked, at));
    }

    /// Waits until a request is held.
    pub(crate) async fn holds(&mut self) {
        let held = tokio::time::timeout(TIME_MAX, self.held.recv()).await;
        held.expect("such a request").unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: UnixListener, engine: PathBuf, plan: Plan, tell: UnboundedSender<()>) {
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        connections.spawn(pass(
            client,
            engine.clone(),
            Arc::clone(&plan),
            tell.clone(),
        ));
    }
}

async fn pass(
    mut client: UnixStream,
    engine: PathBuf,
    plan: Plan,
    tell: UnboundedSender<()>,
) -> Option<()> {
    let mut begun = Vec::new();
    while !begun.windows(4).any(|end| end == b"\r\n\r\n") {
        // A client that closes its connection made no request.
        if client.read_buf(&mut begun).await.ok()? == 0 {
            return None;
        }
    }
    let line = String::from_utf8_lossy(&begun);
    let line = line.lines().next()?;
    let fits = |(Asked(method, path), _): &mut (Asked, Held)| {
        line.starts_with(*method) && line.contains(*path)
    };
    let held = plan.lock().take_if(fits).map(|(_, at)| at);
    if matches!(held, Some(Held::Before)) {
        tell.send(()).ok()?;
        return std::future::pending().await;
    }
    let mut engine = UnixStream::connect(engine).await.ok()?;
    engine.write_all(&begun).await.ok()?;
    if held.is_none() {
        copy_bidirectional(&mut client, &mut engine).await.ok()?;
        return None;
    }
    let (mut asks, _unheard) = client.split();
    let (mut answers, mut hears) = engine.split();
    let rest = async {
        drop(copy(&mut asks, &mut hears).await);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = rest => {}
        // The first byte of the answer: the engine has executed the request.
        answered = answers.read_u8() => {
            answered.ok()?;
            tell.send(()).ok()?;
        }
    }
    std::future::pending().await
}

/// Longest wait for a request.
const TIME_MAX: Duration = Duration::from_secs(20);
