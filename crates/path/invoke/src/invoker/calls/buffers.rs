//! The buffers of one invocation: memory that its handler fills to hand it to other functions.
//!
//! A number means a buffer only in this table, so an invocation cannot name a buffer of another one. The table ends with the
//! invocation. A call keeps its own reference, so memory is never given back while a target uses it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::ports::{BlankMemory, InputMemory, ShownInputs, There};
use pilot_wire::calls::{Reason, Refusal};
use tokio::sync::{SetOnce, watch};

/// Most buffers of an invocation at a time.
pub(super) const BUFFERS_MAX: usize = 16;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Buffers(BTreeMap<u32, Arc<Slot>>);

/// One buffer.
#[derive(Debug)]
pub(super) struct Slot {
    /// Bytes.
    len: u64,
    /// What is read while it is filled. `None`: it is sealed or released. Guards only the value, and is dropped before `blank`, which
    /// then finds out whether a worker still has the memory.
    file: Mutex<Option<Arc<OwnedFd>>>,
    /// Of a worker that takes paths: what it writes through. As long as `file`.
    shown: Mutex<Option<ShownInputs>>,
    blank: Arc<dyn BlankMemory>,
    /// So many bytes are there, as the worker says.
    filled: watch::Sender<u64>,
    /// An error if it was released before.
    sealed: SetOnce<Result<Arc<dyn InputMemory>, Refusal>>,
}

impl Buffers {
    /// Whether one more may be made under this number.
    pub(super) fn has_room_for(&self, number: u32) -> Result<(), Refusal> {
        if self.0.contains_key(&number) {
            let problem = format!("there is a buffer {number} already");
            return Err(Refusal::new(Reason::Invalid, problem));
        }
        if self.0.len() < BUFFERS_MAX {
            return Ok(());
        }
        let problem = format!(
            "an invocation has at most {BUFFERS_MAX} buffers at a time: release one, or hand one buffer to several functions"
        );
        Err(Refusal::new(Reason::NoRoom, problem))
    }

    /// `shown`: what a worker that takes paths writes through.
    pub(super) fn insert(
        &mut self,
        number: u32,
        len: u64,
        blank: Arc<dyn BlankMemory>,
        shown: Option<ShownInputs>,
    ) {
        let slot = Slot {
            len,
            file: Mutex::new(blank.descriptor()),
            shown: Mutex::new(shown),
            blank,
            filled: watch::Sender::new(0),
            sealed: SetOnce::new(),
        };
        self.0.insert(number, Arc::new(slot));
    }

    pub(super) fn find(&self, number: u32) -> Result<Arc<Slot>, Refusal> {
        self.0.get(&number).map(Arc::clone).ok_or_else(|| {
            let problem = format!("this invocation has no buffer {number}");
            Refusal::new(Reason::NotFound, problem)
        })
    }

    pub(super) fn release(&mut self, number: u32) {
        if let Some(slot) = self.0.remove(&number) {
            let problem = "the buffer was released before it was filled";
            // It does nothing if the buffer is sealed.
            let _ = slot.sealed.set(Err(Refusal::new(Reason::Invalid, problem)));
            slot.close();
        }
    }
}

impl Slot {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn blank(&self) -> Arc<dyn BlankMemory> {
        Arc::clone(&self.blank)
    }

    /// The memory is sealed: calls that wait for it go on.
    pub(super) fn fill(&self, memory: Arc<dyn InputMemory>) {
        // It is sealed once, because sealing it again fails.
        let _ = self.sealed.set(Ok(memory));
        self.close();
    }

    /// Nobody writes any more.
    fn close(&self) {
        *self.file.lock() = None;
        *self.shown.lock() = None;
    }

    /// The worker says that so many bytes are there. What it writes to them later, nobody may notice.
    pub(super) fn tell(&self, there: u64) {
        // The last one is there when the buffer is sealed. A worker that tells of each byte makes no more work than one that does not.
        let there = there.min(self.len.saturating_sub(1));
        let there = there - there % STEP_LEN;
        self.filled.send_if_modified(|filled| {
            let is_more = there > *filled;
            *filled = there.max(*filled);
            is_more
        });
    }

    /// Waits until more than the first `at` bytes are there, or until it is sealed.
    ///
    /// # Errors
    /// It was released before.
    pub(super) async fn there(&self, at: u64) -> Result<There, Refusal> {
        let mut filled = self.filled.subscribe();
        let more = async {
            let more = filled.wait_for(|there| *there > at).await;
            more.map(|there| *there)
        };
        tokio::select! {
            biased;
            sealed = self.sealed() => return all_of(&*sealed?),
            more = more => if let (Ok(len), Some(file)) = (more, self.file.lock().clone()) {
                return Ok(There { file, len });
            }
        }
        all_of(&*self.sealed().await?)
    }

    /// Waits until it is sealed.
    ///
    /// # Errors
    /// It was released before.
    pub(super) async fn sealed(&self) -> Result<Arc<dyn InputMemory>, Refusal> {
        self.sealed.wait().await.clone()
    }
}

/// Data that is complete.
///
/// # Errors
/// Out of descriptors.
pub(super) fn all_of(memory: &dyn InputMemory) -> Result<There, Refusal> {
    let input = memory.input("data").map_err(|error| {
        let problem = format!("the data cannot be read: {error}");
        Refusal::new(Reason::Unavailable, problem)
    })?;
    Ok(There {
        file: input.descriptor,
        len: memory.bytes(),
    })
}

/// What a worker says of a buffer counts in such steps.
const STEP_LEN: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::OwnedFd;

    use pilot_model::ports::{BoxFuture, Input, MemoryFault};
    use proptest::prelude::*;

    use super::*;

    /// Memory that only counts its references: they are those of `alive`.
    #[derive(Debug)]
    struct Fake {
        _alive: Arc<()>,
        number: u64,
    }

    impl BlankMemory for Fake {
        fn descriptor(&self) -> Option<Arc<OwnedFd>> {
            None
        }

        fn seal(self: Arc<Self>) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>> {
            Box::pin(async move { Ok(self as Arc<dyn InputMemory>) })
        }
    }

    impl InputMemory for Fake {
        fn bytes(&self) -> u64 {
            self.number
        }

        fn input(&self, _: &str) -> io::Result<Input> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// What a worker may ask for, in any order.
    #[derive(Debug, Clone)]
    enum Step {
        Make(u32),
        Seal(u32),
        Release(u32),
        /// A call with this buffer begins.
        Call(u32),
        /// The oldest call ends.
        EndCall,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let number = 0_u32..24;
        let step = prop_oneof![
            number.clone().prop_map(Step::Make),
            number.clone().prop_map(Step::Seal),
            number.clone().prop_map(Step::Release),
            number.prop_map(Step::Call),
            Just(Step::EndCall),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// The table and the calls are compared with a model that has the memory's serial number by buffer.
        #[test]
        fn nothing_leaks_and_nothing_is_used_after_its_release(steps in steps()) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let alive = Arc::new(());
            let mut buffers = Buffers::default();
            let mut model: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
            let mut calls: Vec<(Arc<Slot>, u64)> = Vec::new();
            let mut serial = 0_u64;
            for step in steps {
                match step {
                    Step::Make(number) => {
                        let has_room = buffers.has_room_for(number).is_ok();
                        prop_assert_eq!(has_room, !model.contains_key(&number) && model.len() < BUFFERS_MAX);
                        if has_room {
                            serial += 1;
                            buffers.insert(number, serial, Arc::new(Fake { _alive: Arc::clone(&alive), number: serial }), None);
                            model.insert(number, (serial, false));
                        }
                    }
                    Step::Seal(number) => {
                        let found = buffers.find(number);
                        prop_assert_eq!(found.is_ok(), model.contains_key(&number));
                        if let (Ok(slot), Some((_, is_sealed))) = (found, model.get_mut(&number)) {
                            let memory = runtime.block_on(slot.blank().seal()).unwrap();
                            slot.fill(memory);
                            *is_sealed = true;
                        }
                    }
                    Step::Release(number) => {
                        buffers.release(number);
                        model.remove(&number);
                    }
                    Step::Call(number) => match (buffers.find(number), model.get(&number)) {
                        (Ok(slot), Some((serial, true))) => calls.push((slot, *serial)),
                        (found, known) => prop_assert_eq!(found.is_ok(), known.is_some()),
                    },
                    Step::EndCall if !calls.is_empty() => drop(calls.remove(0)),
                    Step::EndCall => {}
                }
                // Every call still has its own memory, whatever was released since.
                for (slot, serial) in &calls {
                    prop_assert_eq!(runtime.block_on(slot.sealed()).unwrap().bytes(), *serial);
                }
                let mut used: Vec<u64> = model.values().map(|(serial, _)| *serial).collect();
                used.extend(calls.iter().map(|(_, serial)| *serial));
                used.sort_unstable();
                used.dedup();
                prop_assert_eq!(Arc::strong_count(&alive) - 1, used.len());
            }
            drop(buffers);
            drop(calls);
            prop_assert_eq!(Arc::strong_count(&alive), 1);
        }
    }
}
