//! The messages of shared scripts: they do not depend on a request, so one run serves all invocations of the node until they are too old.
//!
//! A run before that time replaces them while they are still used, so a busy function never waits. What is too old is given up, whether
//! or not anybody asks again: its memory is an input's, and another run asks the stores whether it has changed. A run that fails is not
//! repeated for a moment, and its messages, or their absence, are used meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::initscript::{SHARED_NAME, ScriptEnd, ScriptRun};
use pilot_model::ports::{Fetched, Initialised, InputMemory, StoreObject, StoreRead};
use pilot_model::{Instant, Transfer, TransferWay, Version, VersionId};
use tokio::sync::watch;

/// The slots of the versions that have a shared script.
#[derive(Debug, Default)]
pub(crate) struct SharedScripts {
    /// Guards the map; held for one look-up or change. A slot goes after its version.
    slots: Mutex<HashMap<VersionId, Arc<Slot>>>,
}

/// What one version has.
#[derive(Debug)]
pub(crate) struct Slot {
    version: Weak<Version>,
    kept: watch::Sender<Option<Arc<Kept>>>,
    is_running: AtomicBool,
}

/// The messages of one run.
#[derive(Debug)]
pub(crate) struct Kept {
    messages: Vec<Message>,
    /// Of the run.
    transfers: Vec<Transfer>,
    ended: Instant,
    /// They are used for this long.
    valid: Duration,
    /// Guards only the value. From then on, the next invocation begins another run.
    due: Mutex<Instant>,
    /// Guards only the value. For the first invocation that uses them: its log and its record.
    told: Mutex<Option<(Option<String>, Option<ScriptRun>)>>,
}

#[derive(Debug)]
struct Message {
    name: String,
    memory: Arc<dyn InputMemory>,
    object: Option<Arc<StoreRead>>,
}

impl SharedScripts {
    pub(crate) fn slot(&self, version: &Arc<Version>) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&version.id)
            && slot.version.strong_count() > 0
        {
            return Arc::clone(slot);
        }
        slots.retain(|_, slot| slot.version.strong_count() > 0);
        let slot = Arc::new(Slot {
            version: Arc::downgrade(version),
            kept: watch::Sender::new(None),
            is_running: AtomicBool::new(false),
        });
        slots.insert(version.id.clone(), Arc::clone(&slot));
        slot
    }
}

/// The right to run the script of a slot. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Slot>);

impl Slot {
    /// The messages, if they are not too old.
    pub(crate) fn kept(&self, now: Instant) -> Option<Arc<Kept>> {
        let kept = self.kept.borrow().clone();
        kept.filter(|kept| kept.is_valid(now))
    }

    /// For those who wait for the next messages.
    pub(crate) fn follow(&self) -> watch::Receiver<Option<Arc<Kept>>> {
        self.kept.subscribe()
    }

    /// `None`: the script is running.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Turn> {
        let is_running = self.is_running.swap(true, Ordering::SeqCst);
        (!is_running).then(|| Turn(Arc::clone(self)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::SeqCst);
    }
}

impl Turn {
    /// The script has run. Waits until its messages are too old, or its version is gone, and gives them up.
    pub(crate) async fn ended(self, run: Initialised, now: Instant, max_age: Duration) {
        let slot = Arc::clone(&self.0);
        let kept = Arc::new(Kept::new(run, now, max_age));
        let is_used = slot.kept.send_if_modified(|before| {
            if let Some(before) = before.as_ref().filter(|before| before.is_valid(now))
                && kept.has_failed()
            {
                // What there is stays, until it is too old.
                *before.due.lock() = now.after(FAILED_AGE);
                *before.told.lock() = kept.told.lock().take();
                return false;
            }
            *before = Some(Arc::clone(&kept));
            true
        });
        drop(self);
        if !is_used {
            return;
        }
        let end = tokio::time::Instant::now() + kept.valid;
        // A version that is gone has no use for them.
        while tokio::time::Instant::now() < end && slot.version.strong_count() > 0 {
            let look = tokio::time::Instant::now() + LOOK;
            tokio::time::sleep_until(end.min(look)).await;
        }
        slot.kept.send_if_modified(|now| {
            let is_mine = now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &kept));
            if is_mine {
                *now = None;
            }
            is_mine
        });
    }
}

impl Kept {
    fn new(run: Initialised, now: Instant, max_age: Duration) -> Self {
        let Initialised {
            fetched, said, run, ..
        } = run;
        let valid = match run {
            Some(ScriptRun {
                end: ScriptEnd::Ok, ..
            }) => max_age,
            _ => max_age.min(FAILED_AGE),
        };
        // The descriptors are closed: each invocation gets its own.
        let messages = fetched.inputs.into_iter().zip(fetched.memory);
        let messages = messages.map(|(input, memory)| Message {
            name: input.name,
            memory,
            // Each invocation would get the same message of a queue as if it was the only one.
            object: input
                .object
                .filter(|read| !matches!(read.object, StoreObject::Sqs { .. })),
        });
        Self {
            messages: messages.collect(),
            transfers: fetched.transfers,
            ended: now,
            valid,
            due: Mutex::new(now.after(valid / 4 * 3)),
            told: Mutex::new(Some((said, run))),
        }
    }

    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        now.since(self.ended) < self.valid
    }

    /// Whether the script should run again, while these messages are used.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= *self.due.lock()
    }

    fn has_failed(&self) -> bool {
        self.transfers
            .iter()
            .any(|transfer| transfer.error.is_some())
    }

    /// The messages for an invocation that waited for the run.
    pub(crate) fn awaited(&self) -> Initialised {
        self.given(self.transfers.clone())
    }

    /// The messages for an invocation that found them here at this time.
    pub(crate) fn found(&self, now: Instant) -> Initialised {
        let transfers = self.transfers.iter();
        let shown = transfers.filter(|one| one.error.is_some() || one.input != SHARED_NAME);
        let shown = shown.map(|transfer| Transfer {
            way: TransferWay::Kept,
            began: now,
            ended: now,
            ..transfer.clone()
        });
        self.given(shown.collect())
    }

    fn given(&self, mut transfers: Vec<Transfer>) -> Initialised {
        let mut fetched = Fetched::default();
        for Message {
            name,
            memory,
            object,
        } in &self.messages
        {
            match memory.input(name) {
                Ok(mut input) => {
                    input.object.clone_from(object);
                    fetched.memory.push(Arc::clone(memory));
                    fetched.inputs.push(input);
                }
                Err(error) => {
                    if let Some(transfer) = transfers.iter_mut().find(|one| one.input == *name) {
                        transfer.error = Some(format!("no descriptor for it: {error}"));
                    }
                }
            }
        }
        fetched.transfers = transfers;
        let (said, run) = self.told.lock().take().unwrap_or_default();
        Initialised {
            fetched,
            connections: Vec::new(),
            said,
            run,
        }
    }
}

/// How often it is seen whether a version is gone.
const LOOK: Duration = Duration::from_secs(10);
/// The messages of a run that failed are used for this long at most.
const FAILED_AGE: Duration = Duration::from_secs(1);
