//! An upgraded connection (RFC 9110, section 7.8), for example a WebSocket: one invocation that lasts as long as the tunnel. The
//! gateway carries the bytes; this module keeps the lease and the record.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pilot_model::{EndReason, Outcome};

use super::held::{Held, Then};
use crate::fault::{Failure, LastOutput};
use crate::traffic::TunnelTraffic;

/// The invocation of a tunnel. If it is dropped before [`Tunnel::end`], the tunnel was cut; its worker can still be used.
#[derive(Debug)]
pub struct Tunnel {
    traffic: Arc<TunnelTraffic>,
    /// Boxed, because otherwise every response would have its size.
    held: Box<Held>,
}

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both sides have closed.
    Closed,
    /// One side went away without closing.
    Broken,
    /// Nothing passed for this time.
    Silent(Duration),
}

impl Tunnel {
    pub(crate) fn new(held: Held) -> Self {
        Self {
            traffic: Arc::default(),
            held: Box::new(held),
        }
    }

    /// The counters of the passed bytes.
    #[must_use]
    pub fn traffic(&self) -> &Arc<TunnelTraffic> {
        &self.traffic
    }

    /// It has ended.
    pub fn end(mut self, end: TunnelEnd) {
        let gone = !self.held.worker().is_some_and(|worker| worker.is_alive());
        let (then, outcome) = match end {
            _ if gone => (Then::Ends(EndReason::Crash), Outcome::Crash),
            TunnelEnd::Closed => (Then::ServesOn, Outcome::Ok),
            TunnelEnd::Broken => (Then::ServesOn, Outcome::Cancelled),
            TunnelEnd::Silent(_) => (Then::ServesOn, Outcome::Timeout),
        };
        let output = match end {
            TunnelEnd::Silent(after) => Failure::silence(&self.held.invocation().id, after),
            TunnelEnd::Closed | TunnelEnd::Broken => LastOutput::default(),
        };
        self.count();
        self.held.end(then, outcome, output);
    }

    fn count(&mut self) {
        let TunnelTraffic {
            bytes_in,
            bytes_out,
        } = &*self.traffic;
        self.held.tunnelled(
            bytes_in.load(Ordering::Relaxed),
            bytes_out.load(Ordering::Relaxed),
        );
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.count();
    }
}
