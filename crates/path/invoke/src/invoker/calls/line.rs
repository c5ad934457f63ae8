//! The daemon's end of the socket for calls, and how memory reaches the worker: as a descriptor with the answer, or as a path that
//! the worker is shown (decision 0068).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Weak;

use pilot_model::ports::{BlankMemory, Input, InputKind, ShownInputs, Worker};
use pilot_sys::{seqpacket, unnamed};
use pilot_wire::calls::{Reason, Refusal};
use tokio::net::{UnixListener, UnixStream};

/// See the module.
#[derive(Debug)]
pub(super) enum Line {
    /// The worker has the other end, and takes descriptors.
    Connected(UnixStream),
    /// The worker connects once, when its handler first needs it, and takes paths.
    Listening(UnixListener, Weak<dyn Worker>),
}

impl Line {
    /// With the worker's end.
    pub(super) fn connected() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
        let ours = StdUnixStream::from(ours);
        ours.set_nonblocking(true)?;
        Ok((Self::Connected(UnixStream::from_std(ours)?), theirs))
    }

    /// With a descriptor to whose path the worker connects.
    pub(super) fn listening(worker: Weak<dyn Worker>) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = unnamed::listening()?;
        Ok((
            Self::Listening(UnixListener::from_std(ours)?, worker),
            theirs,
        ))
    }

    /// Waits until the worker has connected. Returns the worker too, if it takes paths.
    pub(super) async fn connect(self) -> io::Result<(UnixStream, Option<Weak<dyn Worker>>)> {
        match self {
            Self::Connected(socket) => Ok((socket, None)),
            Self::Listening(ours, worker) => {
                let (theirs, _) = ours.accept().await?;
                // Nobody else can connect.
                drop(ours);
                seqpacket::refuse_descriptors(theirs.as_fd())?;
                Ok((theirs, Some(worker)))
            }
        }
    }
}

/// Shows the worker memory to write to. Returns its path there, which is valid until the rest of the result is dropped. It takes a limited
/// time: see `pilot_protocols::Holders`.
pub(super) async fn shown(
    blank: &dyn BlankMemory,
    len: u64,
    worker: &Weak<dyn Worker>,
) -> Result<(String, ShownInputs), Refusal> {
    let failed = |problem: String| {
        let problem = format!("the memory cannot be shown to the worker: {problem}");
        Refusal::new(Reason::Unavailable, problem)
    };
    let opened = blank.open_for_paths();
    let descriptor = opened.map_err(|error| failed(error.to_string()))?;
    let Some(worker) = worker.upgrade() else {
        return Err(failed("it has ended".to_owned()));
    };
    let input = Input {
        name: String::new(),
        kind: InputKind::Memory { len },
        descriptor,
        object: None,
        decoded: None,
    };
    let mut shown = worker.show(vec![input]).await.map_err(failed)?;
    let path = shown.paths.pop();
    let path = path.ok_or_else(|| failed("it has no path".to_owned()))?;
    Ok((path, shown))
}
