//! The JSON metas of frames that a worker sends. (`InvokeMeta` and `HttpMeta`, which the daemon sends, are written where
//! an invocation is made: `path/invoke`.)

use serde::Deserialize;

/// Of `READY`. Nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ReadyMeta {
    /// The child's first instruction.
    pub forked_ns: u64,
    /// Isolated.
    pub sandboxed_ns: u64,
    /// Initialised.
    pub initialised_ns: u64,
}

/// Of `RESULT`, `ERROR` and `END`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct DoneMeta {
    /// The handler was called.
    pub started_ns: u64,
    /// The handler returned.
    pub finished_ns: u64,
}

/// Of `HEAD`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HeadMeta {
    /// 100-599.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The application was called.
    pub started_ns: u64,
    /// The response is complete with this frame: no `CHUNK`, no `END`.
    #[serde(default)]
    pub finished_ns: Option<u64>,
}
