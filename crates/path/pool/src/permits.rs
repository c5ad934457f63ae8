//! The permits of all workers, for which functions compete: the driver around [`pilot_rules::FairPermits`].
//!
//! The mutex guards the decisions. It is never held together with the lock of a pool, nor while a permit is handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::FunctionName;
use pilot_rules::{FairPermits, Ticket};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// See the module.
#[derive(Debug)]
pub(crate) struct WorkerPermits {
    state: Mutex<FairPermits<FunctionName, WaitingRequest>>,
    /// Permits of workers that were told to end. They come back.
    leaving: AtomicUsize,
}

/// A waiting request: whose it is, and where its permit goes.
type WaitingRequest = (FunctionName, oneshot::Sender<WorkerPermit>);

/// The permit of one worker. Dropping it gives the permit to the next one that waits.
#[derive(Debug)]
pub(crate) struct WorkerPermit {
    permits: Arc<WorkerPermits>,
    function: FunctionName,
    /// Its worker was told to end.
    is_leaving: AtomicBool,
}

/// A request for a permit. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Asked {
    permits: Arc<WorkerPermits>,
    function: FunctionName,
    ticket: Ticket,
    answer: oneshot::Receiver<WorkerPermit>,
}

impl WorkerPermits {
    pub(crate) fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(FairPermits::new(permits)),
            leaving: AtomicUsize::new(0),
        })
    }

    /// A permit of this function, or a request for one.
    pub(crate) fn ask(self: &Arc<Self>, function: &FunctionName) -> Result<WorkerPermit, Asked> {
        let (sender, answer) = oneshot::channel();
        let handle = || (function.clone(), sender);
        let ticket = self.state.lock().ask(function, handle);
        match ticket {
            None => Ok(self.permit(function.clone())),
            Some(ticket) => Err(Asked {
                permits: Arc::clone(self),
                function: function.clone(),
                ticket,
                answer,
            }),
        }
    }

    /// Other functions leave this many permits to this one.
    pub(crate) fn reserve(self: &Arc<Self>, function: &FunctionName, permits: usize) {
        let granted = self.state.lock().reserve(function, permits);
        self.hand_over(granted);
    }

    /// Whether this function has fewer permits than it is entitled to.
    pub(crate) fn is_short(&self, function: &FunctionName) -> bool {
        self.state.lock().is_short(function)
    }

    /// Whether this function may lose an unused permit to another one.
    pub(crate) fn may_lose_one(&self, function: &FunctionName) -> bool {
        self.state.lock().may_lose_one(function)
    }

    /// Permits that will come back soon, because their workers were told to end.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Whether more requests wait than `coming` permits can serve.
    pub(crate) fn lacks(&self, coming: usize) -> bool {
        self.state.lock().waiting() > coming
    }

    /// The function that should give a permit up next, if functions wait for more permits than `coming` that are entitled to them.
    pub(crate) fn debtor(&self, coming: usize) -> Option<FunctionName> {
        let permits = self.state.lock();
        let owes = permits.claims() > coming;
        permits.richest().filter(|_| owes).cloned()
    }

    fn permit(self: &Arc<Self>, function: FunctionName) -> WorkerPermit {
        WorkerPermit {
            permits: Arc::clone(self),
            function,
            is_leaving: AtomicBool::new(false),
        }
    }

    fn hand_over(self: &Arc<Self>, granted: Vec<WaitingRequest>) {
        for (function, waiting) in granted {
            // If it waits no more, the permit comes back and is dropped here.
            let _ = waiting.send(self.permit(function));
        }
    }
}

impl WorkerPermit {
    /// Its worker was told to end. A server may take its time.
    pub(crate) fn leaves(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.permits.leaving.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if *self.is_leaving.get_mut() {
            self.permits.leaving.fetch_sub(1, Ordering::Relaxed);
        }
        let granted = self.permits.state.lock().release(&self.function);
        self.permits.hand_over(granted);
    }
}

impl Asked {
    /// Waits for the permit, so long. `None`: there was none. `look` is called now and then: others may have become able to give one up.
    pub(crate) async fn within(
        mut self,
        patience: Duration,
        look: impl Fn(),
    ) -> Option<WorkerPermit> {
        let until = Instant::now() + patience;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            if let Ok(permit) = timeout(left.min(LOOK_EVERY), &mut self.answer).await {
                return permit.ok();
            }
            look();
        }
        // Leave first: after that, either the permit is in the channel or it never comes.
        let _handle = self.permits.state.lock().leave(&self.function, self.ticket);
        self.answer.try_recv().ok()
    }
}

/// Between two looks for somebody who can give a permit up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Drop for Asked {
    fn drop(&mut self) {
        // Dropped after the lock is released. A permit that was given meanwhile is in the channel and comes back with it.
        let _handle = self.permits.state.lock().leave(&self.function, self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FunctionName {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_goes_to_the_function_that_holds_fewest_and_one_that_nobody_takes_to_the_next()
    {
        let permits = WorkerPermits::new(2);
        let (many, one) = (name("many"), name("one"));
        let held = [permits.ask(&many).unwrap(), permits.ask(&many).unwrap()];
        let more: Vec<_> = (0..3).map(|_| permits.ask(&many).unwrap_err()).collect();
        let gone = permits.ask(&one).unwrap_err();
        let asked = permits.ask(&one).unwrap_err();
        assert_eq!(permits.debtor(0), Some(many.clone()));
        assert_eq!(permits.debtor(1), None, "that one is coming");
        drop(gone);
        let [first, second] = held;
        drop(first);
        let permit = asked.within(Duration::ZERO, || {}).await.unwrap();
        assert_eq!(permit.function, one);
        drop(second);
        let mut more = more.into_iter();
        let next = more.next().unwrap().within(Duration::ZERO, || {}).await;
        assert_eq!(next.as_ref().map(|permit| &permit.function), Some(&many));
        let late = more
            .next()
            .unwrap()
            .within(Duration::from_secs(1), || {})
            .await;
        assert!(late.is_none());
        drop((permit, next, more));
        assert_eq!(permits.state.lock().claims(), 0);
        let again = [permits.ask(&one).unwrap(), permits.ask(&one).unwrap()];
        assert!(permits.ask(&one).is_err());
        drop(again);
    }

    #[tokio::test]
    async fn permits_that_come_back_are_counted_until_they_are_back() {
        let permits = WorkerPermits::new(1);
        let (one, other) = (name("one"), name("other"));
        let held = permits.ask(&one).unwrap();
        let asked = permits.ask(&other).unwrap_err();
        assert!(permits.lacks(permits.leaving()));
        held.leaves();
        held.leaves();
        assert_eq!(permits.leaving(), 1);
        assert!(!permits.lacks(permits.leaving()), "one for one");
        drop(held);
        let permit = asked.within(Duration::ZERO, || {}).await.unwrap();
        assert_eq!((permit.function.as_str(), permits.leaving()), ("other", 0));
        assert!(!permits.lacks(0));
    }
}
