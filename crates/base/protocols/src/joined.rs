//! Short pieces of a streamed answer that have arrived together become one: passing each on costs the daemon more than it costs the worker to
//! write many.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::PiecePace;

/// Pieces that become one.
#[derive(Debug)]
pub(crate) struct Joined {
    first: Bytes,
    /// `None`: there is only the first one.
    whole: Option<BytesMut>,
    pieces: usize,
    /// What they take of the worker's pace.
    cost: Duration,
    /// What each of the others takes by its length.
    cost_of_more: fn(usize) -> Duration,
    is_last_long: bool,
}

impl Joined {
    /// Whether others are joined to a piece.
    pub(crate) fn is_short(piece: &Bytes) -> bool {
        piece.len() < SHORT_LEN
    }

    /// `cost_of_more`: what each of the others takes of the worker's pace, by its length.
    pub(crate) fn new(first: Bytes, cost_of_more: fn(usize) -> Duration) -> Self {
        Self {
            cost: PiecePace::cost(first.len()),
            cost_of_more,
            first,
            whole: None,
            pieces: 1,
            is_last_long: false,
        }
    }

    pub(crate) fn takes_more(&self) -> bool {
        !self.is_last_long && self.pieces < PIECES_MAX
    }

    pub(crate) fn add(&mut self, piece: &Bytes) {
        self.cost += (self.cost_of_more)(piece.len());
        self.pieces += 1;
        self.is_last_long = !Self::is_short(piece);
        self.whole
            .get_or_insert_with(|| BytesMut::from(&self.first[..]))
            .extend_from_slice(piece);
    }

    /// All of them. They count in the pace of their worker.
    pub(crate) fn end(self, pace: &PiecePace) -> Bytes {
        pace.came(self.cost);
        self.whole.map_or(self.first, BytesMut::freeze)
    }
}

/// A piece of at least so many bytes is passed on as it is.
const SHORT_LEN: usize = 1024;
const PIECES_MAX: usize = 256;
