//! How many decoders there may be, and how many of them may compute.
//!
//! A decoder has a permit from its start to its end, and a turn only while it starts, gets bytes, or is asked for its result. While it
//! waits for the store it has no turn, so a slow store delays nobody. The decoders of one function never have all permits or turns.

use std::sync::Arc;

use pilot_model::FunctionName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shares::Shares;

/// The permits of all functions.
#[derive(Debug)]
pub(crate) struct DecoderPermits {
    all: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    /// How many permits one function may have.
    shares: Shares,
}

/// A decoder's permit, until it is dropped.
#[derive(Debug)]
pub(crate) struct DecoderPermit {
    _of_all: OwnedSemaphorePermit,
    _of_function: OwnedSemaphorePermit,
    turns: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
}

impl DecoderPermits {
    /// `cpus`: the processors of this machine.
    pub(crate) fn new(cpus: usize) -> Self {
        let share = cpus.max(SHARE_MIN);
        Self {
            all: Arc::new(Semaphore::new(share * SHARES)),
            turns: Arc::new(Semaphore::new(share + 1)),
            shares: Shares::new(share),
        }
    }

    /// A permit, if there is one now.
    pub(crate) fn take(&self, function: &FunctionName) -> Option<DecoderPermit> {
        let of_function = self.shares.of(function).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(of_all, of_function))
    }

    /// Waits for a permit.
    pub(crate) async fn wait(&self, function: &FunctionName) -> Option<DecoderPermit> {
        let of_function = self.shares.of(function).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(self.permit(of_all, of_function))
    }

    fn permit(
        &self,
        of_all: OwnedSemaphorePermit,
        of_function: OwnedSemaphorePermit,
    ) -> DecoderPermit {
        DecoderPermit {
            _of_all: of_all,
            _of_function: of_function,
            turns: Arc::clone(&self.turns),
            turn: None,
        }
    }
}

impl DecoderPermit {
    /// Waits for a turn, unless it has one.
    pub(crate) async fn take_turn(&mut self) {
        if self.turn.is_none() {
            self.turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        }
    }

    /// Others may compute.
    pub(crate) fn give_turn(&mut self) {
        self.turn = None;
    }
}

/// Permits that a function may always have.
const SHARE_MIN: usize = 2;
/// All permits, in shares of one function. Each is a process with its own memory.
pub(super) const SHARES: usize = 8;
