//! The turns of deployments: how many run at the same time, and whose is next. A deployment's installers and imports may take as long as
//! their limits, so nobody's deployments take all turns (`pilot_rules::FairPermits::leaving_room`).
//!
//! The mutex guards the decisions. It is not held while a turn is handed over.

use std::sync::Arc;

use parking_lot::Mutex;
use pilot_rules::{FairPermits, Ticket};
use tokio::sync::oneshot;

/// See the module.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<FairPermits<String, Waiting>>,
}

/// Who waits, and where its turn goes.
type Waiting = (String, oneshot::Sender<Turn>);

/// The turn of one deployment. Dropping it gives it to the next one.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    share: String,
}

/// A deployment that waits. Dropping it gives up its place.
struct Place<'a> {
    turns: &'a Turns,
    share: &'a str,
    ticket: Ticket,
}

impl Turns {
    pub(super) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(FairPermits::leaving_room(total)),
        })
    }

    /// Waits for a turn of this share. `waits` is called if there is none yet.
    pub(super) async fn take(self: &Arc<Self>, share: &str, waits: impl FnOnce()) -> Turn {
        let (sender, turn) = oneshot::channel();
        let of = share.to_owned();
        let ticket = self.state.lock().ask(&of, || (of.clone(), sender));
        let Some(ticket) = ticket else {
            return self.turn(of);
        };
        let _place = Place {
            turns: self,
            share,
            ticket,
        };
        waits();
        match turn.await {
            Ok(turn) => turn,
            // The sender is dropped with the place only.
            Err(_) => std::future::pending().await,
        }
    }

    fn turn(self: &Arc<Self>, share: String) -> Turn {
        Turn {
            turns: Arc::clone(self),
            share,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let share = self.share.to_owned();
        let left = self.turns.state.lock().leave(&share, self.ticket);
        drop(left);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let granted = self.turns.state.lock().release(&self.share);
        for (share, waiting) in granted {
            // If it waits no more, the turn comes back and is dropped here.
            let _ = waiting.send(self.turns.turn(share));
        }
    }
}

/// How many deployments run at the same time. One owner has at most a quarter of them.
pub(super) const TURNS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    fn waits<F: Future>(future: Pin<&mut F>) -> bool {
        future
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    }

    #[tokio::test]
    async fn one_owners_turns_leave_some_for_others_and_come_back() {
        let turns = Turns::new(16);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(turns.take("a", || panic!("there is one")).await);
        }
        let mut fifth = Box::pin(turns.take("a", || ()));
        assert!(waits(fifth.as_mut()));
        let _of_another = turns.take("b", || panic!("there is one")).await;
        held.pop();
        let fifth = fifth.await;
        // One that does not wait any more gets none.
        let mut gone = Box::pin(turns.take("a", || ()));
        assert!(waits(gone.as_mut()));
        drop(gone);
        drop(fifth);
        let _again = turns.take("a", || panic!("there is one")).await;
    }
}
