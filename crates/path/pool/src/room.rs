//! The places of all workers, for which functions compete: the driver around [`pilot_rules::Places`].
//!
//! The mutex guards the decisions. It is never held together with the lock of a pool, nor while a place is handed over.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::FunctionName;
use pilot_rules::{Places, Ticket};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// See the module.
#[derive(Debug)]
pub(crate) struct Room(Mutex<Places<FunctionName, WaitingRequest>>);

/// A waiting request: whose it is, and where its place goes.
type WaitingRequest = (FunctionName, oneshot::Sender<Place>);

/// The place of one worker. Dropping it gives the place to the next one that waits.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<Room>,
    function: FunctionName,
}

/// A request for a place. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Asked {
    room: Arc<Room>,
    function: FunctionName,
    ticket: Ticket,
    answer: oneshot::Receiver<Place>,
}

impl Room {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Places::new(places))))
    }

    /// A place of this function, or a request for one.
    pub(crate) fn ask(self: &Arc<Self>, function: &FunctionName) -> Result<Place, Asked> {
        let (sender, answer) = oneshot::channel();
        let handle = || (function.clone(), sender);
        let ticket = self.0.lock().ask(function, handle);
        match ticket {
            None => Ok(self.place(function.clone())),
            Some(ticket) => Err(Asked {
                room: Arc::clone(self),
                function: function.clone(),
                ticket,
                answer,
            }),
        }
    }

    /// Other functions leave this many places to this one.
    pub(crate) fn reserve(self: &Arc<Self>, function: &FunctionName, places: usize) {
        let granted = self.0.lock().reserve(function, places);
        self.hand_over(granted);
    }

    /// Whether this function has fewer places than it is entitled to.
    pub(crate) fn is_short(&self, function: &FunctionName) -> bool {
        self.0.lock().is_short(function)
    }

    /// Whether this function may lose an unused place to another one.
    pub(crate) fn may_lose_one(&self, function: &FunctionName) -> bool {
        self.0.lock().may_lose_one(function)
    }

    /// The function that should give a place up next, if functions wait for more places than `coming` that are entitled to them.
    pub(crate) fn debtor(&self, coming: usize) -> Option<FunctionName> {
        let places = self.0.lock();
        let owes = places.claims() > coming;
        places.richest().filter(|_| owes).cloned()
    }

    fn place(self: &Arc<Self>, function: FunctionName) -> Place {
        Place {
            room: Arc::clone(self),
            function,
        }
    }

    fn hand_over(self: &Arc<Self>, granted: Vec<WaitingRequest>) {
        for (function, waiting) in granted {
            // If it waits no more, the place comes back and is dropped here.
            let _ = waiting.send(self.place(function));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let granted = self.room.0.lock().release(&self.function);
        self.room.hand_over(granted);
    }
}

impl Asked {
    /// Waits for the place, so long. `None`: there was none.
    pub(crate) async fn within(mut self, patience: Duration) -> Option<Place> {
        if let Ok(place) = timeout(patience, &mut self.answer).await {
            return place.ok();
        }
        // Leave first: after that, either the place is in the channel or it never comes.
        let _handle = self.room.0.lock().leave(&self.function, self.ticket);
        self.answer.try_recv().ok()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Dropped after the lock is released. A place that was given meanwhile is in the channel and comes back with it.
        let _handle = self.room.0.lock().leave(&self.function, self.ticket);
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
        let room = Room::new(2);
        let (many, one) = (name("many"), name("one"));
        let held = [room.ask(&many).unwrap(), room.ask(&many).unwrap()];
        let more: Vec<_> = (0..3).map(|_| room.ask(&many).unwrap_err()).collect();
        let gone = room.ask(&one).unwrap_err();
        let asked = room.ask(&one).unwrap_err();
        assert_eq!(room.debtor(0), Some(many.clone()));
        assert_eq!(room.debtor(1), None, "that one is coming");
        drop(gone);
        let [first, second] = held;
        drop(first);
        let place = asked.within(Duration::ZERO).await.unwrap();
        assert_eq!(place.function, one);
        drop(second);
        let mut more = more.into_iter();
        let next = more.next().unwrap().within(Duration::ZERO).await;
        assert_eq!(next.as_ref().map(|place| &place.function), Some(&many));
        let late = more.next().unwrap().within(Duration::from_secs(1)).await;
        assert!(late.is_none());
        drop((place, next, more));
        assert_eq!(room.0.lock().claims(), 0);
        let again = [room.ask(&one).unwrap(), room.ask(&one).unwrap()];
        assert!(room.ask(&one).is_err());
        drop(again);
    }
}
