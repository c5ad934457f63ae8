//! Pieces of a streamed answer that have arrived together become one: passing each on costs the daemon more than it costs the worker to
//! write many.

use bytes::{Bytes, BytesMut};

/// Pieces that become one.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    first: Bytes,
    /// All of them, if there are several.
    whole: BytesMut,
    pieces: usize,
    is_last_long: bool,
}

impl Joined {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces == 0
    }

    pub(crate) fn takes_more(&self) -> bool {
        !self.is_last_long && self.pieces < PIECES_MAX && self.whole.len() < WHOLE_LEN_MAX
    }

    pub(crate) fn add(&mut self, piece: Bytes) {
        self.pieces += 1;
        self.is_last_long = piece.len() >= LONG_LEN;
        if self.pieces == 1 {
            self.first = piece;
            return;
        }
        if self.whole.is_empty() {
            self.whole.extend_from_slice(&self.first);
        }
        self.whole.extend_from_slice(&piece);
    }

    /// All of them. One piece is not copied.
    pub(crate) fn end(self) -> Bytes {
        match self.pieces {
            0 | 1 => self.first,
            _ => self.whole.freeze(),
        }
    }
}

/// Nothing is joined to a piece of at least so many bytes: to copy what follows would take as long as to pass it on.
const LONG_LEN: usize = 16 * 1024;
/// Whoever has so many bytes gets no further piece, so a whole is longer by less than one piece.
const WHOLE_LEN_MAX: usize = 64 * 1024;
const PIECES_MAX: usize = 256;
