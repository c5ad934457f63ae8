//! A connection that was upgraded (RFC 9110, section 7.8; WebSocket for one): one invocation that lasts for as long as the tunnel. The
//! bytes are the gateway's to carry; here is what they cost, and who is held meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pilot_model::{EndReason, Outcome};

use super::held::{Held, Then};
use crate::fault::Failure;

/// A tunnel's invocation. Dropped before [`Tunnel::end`], it was cut; its worker serves on.
#[derive(Debug)]
pub struct Tunnel {
    traffic: Arc<TunnelTraffic>,
    /// Boxed, or every response would be as large.
    held: Box<Held>,
}

/// What has passed so far, bytes. Counted by who carries it.
#[derive(Debug, Default)]
pub struct TunnelTraffic {
    /// From the client to the server.
    pub bytes_in: AtomicU64,
    /// From the server to the client.
    pub bytes_out: AtomicU64,
}

/// How a tunnel came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// Both sides have closed.
    Closed,
    /// One of them went away without.
    Broken,
    /// Nothing passed for so long.
    Silent(Duration),
}

impl Tunnel {
    pub(super) fn new(held: Held) -> Self {
        Self {
            traffic: Arc::default(),
            held: Box::new(held),
        }
    }

    /// Where what passes is to be counted.
    #[must_use]
    pub fn traffic(&self) -> &Arc<TunnelTraffic> {
        &self.traffic
    }

    /// It is over.
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
            TunnelEnd::Closed | TunnelEnd::Broken => Bytes::new(),
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
