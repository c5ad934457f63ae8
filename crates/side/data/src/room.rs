//! Who waits for room, and whose turn it is.
//!
//! An invocation with several inputs may have some of them, and wait for room for the others. Two such invocations could wait for what
//! the other one has. So only the one whose turn it is keeps what it has while it waits. All others give back what they have, wait for
//! their turn, and fetch their inputs again; what is in the cache still then is not transferred again. Invocations that have nothing
//! wait without a turn. The same holds for an input of unknown length, which waits with a part of itself.
//!
//! There is a turn for the share of each function, and one for the total of all functions. Whoever has that of the total has the one of its
//! function, too, so nobody waits for a turn that waits for its own.
//!
//! The turn of the total is for functions that do not know each other, so nobody keeps it for a slow store: who has lacked no room in the
//! total for [`TURN_IDLE`] loses it. It is not lost at once, or two invocations could give way to each other without end.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::FunctionName;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// How long an invocation keeps the turn of the total although it lacks no room there.
pub(crate) const TURN_IDLE: Duration = Duration::from_secs(2);

/// What there is no room in. The turn for the later one includes that for the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    /// The share of the function: this many bytes of it are needed.
    Share(usize),
    /// The total.
    Total,
}

/// The inputs of one invocation that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// The index of each, and whether a part of it is there.
    inputs: Mutex<Vec<(usize, Lack, bool)>>,
    changed: Notify,
    had_no_turn: Mutex<Option<Lack>>,
    /// The inputs for which there can never be room.
    refused: watch::Sender<BTreeSet<usize>>,
}

impl Waiting {
    /// The input with this index.
    pub(crate) fn place(&self, index: usize) -> Place<'_> {
        Place {
            waiting: self,
            index,
        }
    }

    /// What the input with this index lacks, or the invocation if it never had its turn.
    pub(crate) fn lack(&self, index: usize) -> Option<Lack> {
        let inputs = self.inputs.lock();
        let input = inputs.iter().find(|(waits, ..)| *waits == index);
        input.map(|(_, lack, _)| *lack).or(*self.had_no_turn.lock())
    }

    /// The invocation waited for its turn until it was too late.
    pub(crate) fn had_no_turn(&self, lack: Lack) {
        *self.had_no_turn.lock() = Some(lack);
    }

    /// Which inputs wait, and what they lack, if the invocation has something meanwhile: other inputs (`has_some`), or a part of one that
    /// waits.
    pub(crate) fn lacks_with_something(&self, has_some: bool) -> Vec<(usize, Lack)> {
        let inputs = self.inputs.lock();
        if !has_some && !inputs.iter().any(|(.., has_part)| *has_part) {
            return Vec::new();
        }
        let lacks = inputs.iter().map(|(index, lack, _)| (*index, *lack));
        lacks.collect()
    }

    /// There can never be room for this input.
    pub(crate) fn refuse(&self, index: usize) {
        self.refused
            .send_if_modified(|refused| refused.insert(index));
    }

    /// Returns when [`Waiting::refuse`] is called for the input.
    pub(crate) async fn refused(&self, index: usize) {
        let mut refused = self.refused.subscribe();
        // The sender is beside it.
        let _ = refused.wait_for(|refused| refused.contains(&index)).await;
    }

    /// Returns when an input begins or ends to wait, also if it was before this call.
    pub(crate) async fn changes(&self) {
        self.changed.notified().await;
    }
}

/// An input of an invocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) waiting: &'a Waiting,
    pub(crate) index: usize,
}

impl<'a> Place<'a> {
    /// It waits until what is returned is dropped. `has_part`: a part of it is there.
    pub(crate) fn waits(self, lack: Lack, has_part: bool) -> Waits<'a> {
        let mut inputs = self.waiting.inputs.lock();
        inputs.push((self.index, lack, has_part));
        drop(inputs);
        self.waiting.changed.notify_one();
        Waits(self)
    }
}

/// An input waits for room, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waits<'a>(Place<'a>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut inputs = self.0.waiting.inputs.lock();
        inputs.retain(|(index, ..)| *index != self.0.index);
        drop(inputs);
        self.0.waiting.changed.notify_one();
    }
}

/// The turns of all functions.
#[derive(Debug)]
pub(crate) struct Turns {
    by_function: Mutex<HashMap<FunctionName, Weak<Semaphore>>>,
    total: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            by_function: Mutex::default(),
            total: one(),
        }
    }
}

fn one() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

impl Turns {
    fn of(&self, function: &FunctionName) -> Arc<Semaphore> {
        let mut by_function = self.by_function.lock();
        if let Some(turn) = by_function.get(function).and_then(Weak::upgrade) {
            return turn;
        }
        by_function.retain(|_, turn| turn.strong_count() > 0);
        let turn = one();
        by_function.insert(function.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// The turns that one invocation has.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    share: Option<OwnedSemaphorePermit>,
    total: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Takes what `lack` needs and is free now. True: the invocation may wait, and keep what it has.
    pub(crate) fn try_take(&mut self, turns: &Turns, function: &FunctionName, lack: Lack) -> bool {
        let free = |semaphore: Arc<Semaphore>| semaphore.try_acquire_owned().ok();
        self.share = self.share.take().or_else(|| free(turns.of(function)));
        if self.share.is_some() && lack == Lack::Total {
            let total = self.total.take();
            self.total = total.or_else(|| free(Arc::clone(&turns.total)));
        }
        match lack {
            Lack::Share(_) => self.share.is_some(),
            Lack::Total => self.total.is_some(),
        }
    }

    /// Waits for what `lack` needs. The invocation must have nothing meanwhile.
    pub(crate) async fn take(&mut self, turns: &Turns, function: &FunctionName, lack: Lack) {
        // Nobody closes these semaphores.
        if self.share.is_none() {
            self.share = turns.of(function).acquire_owned().await.ok();
        }
        if self.total.is_none() && lack == Lack::Total {
            self.total = Arc::clone(&turns.total).acquire_owned().await.ok();
        }
    }

    pub(crate) fn has_total(&self) -> bool {
        self.total.is_some()
    }

    /// Others may take the turn of the total.
    pub(crate) fn leave_total(&mut self) {
        self.total = None;
    }
}
