//! The protocol between the daemon and a language worker: frames on the invocation channel, JSON messages on the control channel.
//! `PROTOCOL.md` describes it; the vectors in `vectors/` test this crate and the workers.
//!
//! Only the codec: bytes in, values out. No I/O, no descriptors.

pub mod calls;
pub mod control;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
pub mod meta;
pub mod script;

pub use frame::{
    Frame, FrameDecoder, FrameError, FrameKind, HEADER_LEN, Header, PIECE_LEN_MAX, WINDOW_COST_MIN,
};
