//! What the daemon and a language worker say to each other: frames on the invocation channel, JSON messages on the
//! control channel. The text is `PROTOCOL.md`; the vectors in `vectors/` hold this crate and the workers to it.
//!
//! Codec only: bytes in, values out. No I/O, no descriptors.

pub mod control;
pub mod frame;
pub mod meta;

pub use frame::{Frame, FrameDecoder, FrameError, HEADER_LEN, Header, Kind};
