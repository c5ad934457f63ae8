//! What the threads of `pilot dev` send to its main thread.

use std::path::PathBuf;
use std::process::ExitStatus;

/// What the main thread waits for.
#[derive(Debug)]
pub(super) enum Message {
    /// A file was written, created or removed.
    Changed(PathBuf),
    /// The daemon has ended.
    Ended(Ended),
}

/// How the daemon ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ended {
    /// It was told to stop.
    AsTold,
    /// It was not told to stop.
    ByItself(ExitStatus),
}
