//! The arrivals of all functions, ordered by time: a merge of streams, each of which knows only its next arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

use crate::azure::minutes::MinuteStream;
use crate::azure::recorded::RecordedStream;
use crate::schedule::PhaseStream;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the start of the run.
    pub at: Duration,
    /// The index of the function in [`Profile::functions`](crate::Profile::functions).
    pub function: u32,
    /// How long it takes, if the trace says it.
    pub service: Option<Duration>,
}

/// See [`Profile::arrivals`](crate::Profile::arrivals).
#[derive(Debug, Clone)]
pub struct Arrivals<'a> {
    streams: Vec<Stream<'a>>,
    next: BinaryHeap<Reverse<Pending>>,
}

/// A stream's next arrival. Ordered by time, then by function, so that arrivals with equal times always have the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    at: Duration,
    function: u32,
    service: Option<Duration>,
}

/// One function's arrivals, ordered by time.
#[derive(Debug, Clone)]
pub(crate) enum Stream<'a> {
    Phases(PhaseStream<'a>),
    Minutes(MinuteStream<'a>),
    Recorded(RecordedStream<'a>),
}

impl<'a> Arrivals<'a> {
    /// The n-th stream belongs to function n.
    pub(crate) fn merge(mut streams: Vec<Stream<'a>>) -> Self {
        let firsts = (0_u32..).zip(&mut streams);
        let next = firsts
            .filter_map(|(function, stream)| stream.pending(function))
            .map(Reverse)
            .collect();
        Self { streams, next }
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let mut top = self.next.peek_mut()?;
        let Reverse(Pending {
            at,
            function,
            service,
        }) = *top;
        match self.streams[function as usize].pending(function) {
            // Where two phases meet, the two inversions of Λ may be rounded differently.
            Some(pending) => {
                *top = Reverse(Pending {
                    at: pending.at.max(at),
                    ..pending
                })
            }
            None => drop(PeekMut::pop(top)),
        }
        Some(Arrival {
            at,
            function,
            service,
        })
    }
}

impl Stream<'_> {
    fn pending(&mut self, function: u32) -> Option<Pending> {
        let (at, service) = match self {
            Self::Phases(stream) => (stream.next()?, None),
            Self::Minutes(stream) => stream.next()?,
            Self::Recorded(stream) => stream.next()?,
        };
        Some(Pending {
            at,
            function,
            service,
        })
    }
}
