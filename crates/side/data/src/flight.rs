//! One request to a store, and the buffer that it fills. The users of the buffer share it, see `index`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::TryStreamExt;
use pilot_model::ports::InputFaultKind;
use pilot_model::size::Size;
use pilot_model::{FunctionName, TransferWay};
use pilot_protocols::Reserved;
use pilot_sys::memfd;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::buffers::Buffers;
use crate::buffers::buffer::{
    Buffer, BufferState, Ends, Head, Progress, Published, Until, Use, Waited, Whole,
};
use crate::buffers::index::ObjectId;
use crate::memory::Medium;
use crate::room::{Lack, Place};
use crate::stores::{Got, Object, Store, StoreError, Validator, too_large};

/// What was fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) used: Use,
    pub(crate) way: TransferWay,
    /// It still arrives.
    pub(crate) published: Option<Published>,
}

/// Reads a whole object, or its beginning, or finds that it is here. Waits until there is room for it. Dropping the future ends that,
/// unless somebody else waits for the same request. `place` is told of a wait for room.
pub(crate) async fn fetch(
    all: &Arc<Buffers>,
    store: &Arc<dyn Store>,
    object: ObjectId,
    function: &FunctionName,
    mut until: Until,
    place: Place<'_>,
) -> Result<Fetch, StoreError> {
    let begin = |gate| begin(all, store, &object, function, gate);
    let (buffer, is_joined) = all.index.next(&object, begin);
    let mut way = if is_joined {
        TransferWay::Shared
    } else {
        TransferWay::Fetched
    };
    let mut used = Use::new(buffer, function);
    let mut is_followed = false;
    for _ in 0..FOLLOWED_MAX {
        let waited = match used.wait(&all.memory, until, place).await {
            // It was current when the store was asked, and failed since.
            Err(_) if is_followed => Waited::Abandoned,
            waited => waited?,
        };
        match waited {
            Waited::Ready => {
                all.cache.used(used.buffer());
                return Ok(Fetch {
                    used,
                    way,
                    published: None,
                });
            }
            Waited::Begun => match used.publish() {
                Ok(None) => until = Until::Whole,
                Ok(published) => {
                    return Ok(Fetch {
                        used,
                        way,
                        published,
                    });
                }
                Err(error) => {
                    let problem = format!("no descriptor for it: {error}");
                    return Err(StoreError::new(InputFaultKind::Unavailable, &problem));
                }
            },
            Waited::Abandoned => {
                is_followed = false;
                way = TransferWay::Fetched;
                used = Use::new(all.index.next(&object, begin).0, function);
            }
            Waited::Other(other) => {
                way = if other.is_whole() {
                    TransferWay::Cached
                } else {
                    TransferWay::Shared
                };
                is_followed = true;
                used = Use::new(other, function);
            }
            Waited::NoRoom(medium, counted) => {
                // Nobody waits for the share of a function while it has some of the total: those who have the share may wait for that.
                let buffer = used.buffer().map(Arc::downgrade);
                drop(used);
                let mut reserved = all.memory.share(medium, function);
                let waits = place.waits(Lack::Share(counted), false);
                reserved.grow_to(counted).await;
                drop(waits);
                if let Some(buffer) = buffer.and_then(|buffer| buffer.upgrade()) {
                    used = Use::new(buffer, function);
                    used.charge_with(reserved, counted).await;
                } else {
                    drop(reserved);
                    way = TransferWay::Fetched;
                    used = Use::new(all.index.next(&object, begin).0, function);
                }
            }
        }
    }
    let problem = "other fetches of it failed again and again";
    Err(StoreError::new(InputFaultKind::Unavailable, problem))
}

fn begin(
    all: &Arc<Buffers>,
    store: &Arc<dyn Store>,
    object: &ObjectId,
    function: &FunctionName,
    gate: Arc<Semaphore>,
) -> Arc<Buffer> {
    let state = Arc::new(BufferState::new());
    Arc::new_cyclic(|me| {
        let flight = Flight {
            all: Arc::clone(all),
            store: Arc::clone(store),
            object: object.clone(),
            function: function.clone(),
            gate,
            state: Arc::clone(&state),
            me: me.clone(),
            medium: OnceLock::new(),
        };
        let task = tokio::spawn(flight.run());
        Buffer::new(state, task.abort_handle(), all)
    })
}

/// The task of a buffer. It has no strong reference to its buffer, so that the buffer's end is its end.
struct Flight {
    all: Arc<Buffers>,
    store: Arc<dyn Store>,
    object: ObjectId,
    /// The function that asked first.
    function: FunctionName,
    gate: Arc<Semaphore>,
    state: Arc<BufferState>,
    me: Weak<Buffer>,
    /// Where the buffer lies. Charges are for one medium, so that it stays when the fetch is tried again.
    medium: OnceLock<Medium>,
}

impl Flight {
    async fn run(self) {
        let _ends = Ends(Arc::clone(&self.state));
        match self.with_retries().await {
            Ok(Some(same)) => self.state.tell(Progress::Same(same)),
            Ok(None) => {}
            Err(error) => {
                // A worker may still read what was there. Nobody else is to be told that this is the object.
                self.state.set_validator(None);
                self.state.tell(Progress::Failed(error));
            }
        }
        // It may have been the last one that knew another buffer.
        self.all.give_way();
    }

    /// Tries again, with jitter, what failed for a moment.
    async fn with_retries(&self) -> Result<Option<Arc<Buffer>>, StoreError> {
        let mut pause = PAUSE_MIN;
        for _ in 0..self.store.retries() {
            match self.once().await {
                // What was published is not filled a second time.
                Err(error)
                    if error.kind == InputFaultKind::Unavailable && !self.state.is_published() => {}
                end => return end,
            }
            sleep_with_jitter(&mut pause).await;
        }
        self.once().await
    }

    /// Fills the buffer, or returns the one that has the object already.
    async fn once(&self) -> Result<Option<Arc<Buffer>>, StoreError> {
        let permit = match self.all.index.shares() {
            // A request that the store does not answer must not stop all others for ever.
            true => timeout(GATE_TIME_MAX, self.gate.acquire()).await.ok(),
            false => None,
        };
        let known = self.all.index.sent(&self.object, &self.me);
        // With both switched off, an object is fetched again also while somebody still has it.
        let known = known.filter(|known| {
            self.all.index.shares() || (known.is_whole() && self.all.cache.keeps())
        });
        let validator = known.as_ref().and_then(|known| known.validator());
        let got = self.store.get(&self.object.key, validator.as_ref()).await;
        let object = match (got, known) {
            (Ok(Got::Unchanged(anew)), Some(known)) => {
                if let Some(anew) = anew {
                    known.describe(anew);
                }
                return Ok(Some(known));
            }
            (Ok(Got::Unchanged(_)), None) => return Err(unasked()),
            (Ok(Got::Object(object)), known) => {
                if let Some(known) = known {
                    self.all.cache.forget(&known);
                }
                object
            }
            (Err(error), known) => {
                // What the store does not give any more is not kept.
                if let (Some(known), InputFaultKind::NotFound | InputFaultKind::Denied) =
                    (known, error.kind)
                {
                    self.all.cache.forget(&known);
                }
                return Err(error);
            }
        };
        self.answered(&object);
        drop(permit);
        self.fill(object).await?;
        Ok(None)
    }

    /// The store has answered with the object.
    fn answered(&self, object: &Object) {
        self.state.set_validator(object.validator.clone());
        if object.validator.is_some() {
            self.all.index.answered(&self.object, &self.me);
        }
    }

    /// Asks the store once more.
    async fn again(&self) -> Result<Object, StoreError> {
        match self.store.get(&self.object.key, None).await? {
            Got::Object(object) => {
                self.answered(&object);
                Ok(object)
            }
            Got::Unchanged(_) => Err(unasked()),
        }
    }

    /// The medium for the buffer: the disk if there is no room in memory now, and room there. An object of unknown length waits for
    /// memory.
    fn choose(&self, announced: Option<u64>) -> Medium {
        let memory = &self.all.memory;
        let Some(len) = announced.filter(|_| memory.spills()) else {
            return Medium::Memory;
        };
        let counted = counted(len);
        let fits = |medium| {
            let mut reserved = memory.nothing(medium);
            counted <= memory.share_max(medium)
                && memory.try_grow(medium, &mut reserved, counted, || {
                    self.all.cache.evict_idle()
                })
                && (self.state).try_charge(memory, &self.function, medium, counted)
        };
        if !fits(Medium::Memory) && fits(Medium::Disk) {
            Medium::Disk
        } else {
            Medium::Memory
        }
    }

    fn check_len(&self, object: &Object) -> Result<(), StoreError> {
        let bytes_max = self.all.bytes_max;
        match object.len {
            Some(len) if len > bytes_max => Err(too_large(Some(len), bytes_max)),
            _ => Ok(()),
        }
    }

    /// Waits until there is room for the object.
    async fn room(&self, mut object: Object) -> Result<(Object, Filling), StoreError> {
        self.check_len(&object)?;
        let mut filling = Filling::new(self, object.len)?;
        for _ in 0..FOLLOWED_MAX {
            let len = object.len.unwrap_or(0);
            if filling.try_make_room(self, len) {
                return Ok((object, filling));
            }
            // Who waits has no connection meanwhile: functions with room may need it, and a store does not wait for ever. And no
            // memory: the object may have become longer since there was room for it, and whoever waits with something could wait for
            // others that do the same.
            drop(object);
            filling.give_back();
            filling.make_room(self, len).await?;
            self.state.tell(Progress::Asking);
            object = self.again().await?;
            self.check_len(&object)?;
        }
        let problem = "it was longer each time that the store was asked";
        Err(StoreError::new(InputFaultKind::Unavailable, problem))
    }

    /// Fills the buffer. If it breaks off and a worker may have read some of it, the same object is asked for again, and goes on where it
    /// broke off.
    async fn fill(&self, object: Object) -> Result<(), StoreError> {
        let (mut object, mut filling) = self.room(object).await?;
        let headers = std::mem::take(&mut object.headers);
        filling.begin(object.len, &headers);
        let (mut left, mut pause, mut at) = (self.store.retries(), PAUSE_MIN, 0);
        loop {
            let (announced, validator) = (object.len, object.validator.take());
            let Err(error) = self.pour(&mut filling, object, at).await else {
                return filling.complete(headers);
            };
            if !self.state.end_head() {
                // Another attempt fills another file.
                self.state.tell(Progress::Asking);
                return Err(error);
            }
            // Without a validator, nothing tells whether it is still the same.
            let Some(validator) = validator else {
                return Err(error);
            };
            let there = (filling.len, announced);
            (at, object) = self
                .rest(validator, there, error, &mut left, &mut pause)
                .await?;
        }
    }

    /// Asks for the rest of the same object, which has been read up to `there`. Returns where the answer begins, too.
    async fn rest(
        &self,
        validator: Validator,
        (there, announced): (u64, Option<u64>),
        mut error: StoreError,
        left: &mut u32,
        pause: &mut Duration,
    ) -> Result<(u64, Object), StoreError> {
        while error.kind == InputFaultKind::Unavailable && *left > 0 {
            *left -= 1;
            sleep_with_jitter(pause).await;
            match self.store.rest(&self.object.key, &validator, there).await {
                Ok((at, Got::Object(object)))
                    if object.validator.as_ref() == Some(&validator)
                        && announced.is_none_or(|len| object.len == Some(len))
                        && at <= there =>
                {
                    // If the first answer had none, there is room for what is there, and not for all.
                    let len = announced;
                    return Ok((at, Object { len, ..object }));
                }
                Ok(_) => {
                    let problem = format!(
                        "it changed while it was read, and the first transfer broke off: {}",
                        error.problem
                    );
                    return Err(StoreError::new(InputFaultKind::Broken, &problem));
                }
                Err(next) => error = next,
            }
        }
        Err(error)
    }

    /// Writes what is not there yet. `at`: the position of the first byte.
    async fn pour(
        &self,
        filling: &mut Filling,
        mut object: Object,
        at: u64,
    ) -> Result<(), StoreError> {
        let bytes_max = self.all.bytes_max;
        let announced = object.len;
        let mut known = filling.len.saturating_sub(at);
        while let Some(mut bytes) = object.body.try_next().await? {
            let skipped = usize::try_from(known)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            known -= skipped as u64;
            bytes.advance(skipped);
            if bytes.is_empty() {
                continue;
            }
            let len = filling.len + bytes.len() as u64;
            match announced {
                Some(announced) if len > announced => return Err(wrong_length(announced, "more")),
                Some(_) => {}
                None if len > bytes_max => return Err(too_large(None, bytes_max)),
                None => {
                    let len = len.next_multiple_of(STEP_LEN);
                    filling.make_room(self, len).await?;
                }
            }
            filling.push(bytes).await?;
        }
        if let Some(announced) = announced.filter(|announced| filling.len < *announced) {
            return Err(wrong_length(announced, "less"));
        }
        if known > 0 {
            return Err(wrong_length(filling.len, "less the second time"));
        }
        Ok(())
    }
}

/// Full jitter: callers that failed together do not come back together.
async fn sleep_with_jitter(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

/// A buffer that is being filled.
struct Filling {
    state: Arc<BufferState>,
    file: Arc<File>,
    medium: Medium,
    len: u64,
    /// What it counts.
    counted: usize,
    /// `None` when it is complete.
    reserved: Option<Reserved>,
    has_begun: bool,
}

impl Filling {
    fn new(flight: &Flight, announced: Option<u64>) -> Result<Self, StoreError> {
        let medium = *flight.medium.get_or_init(|| flight.choose(announced));
        let memory = &flight.all.memory;
        Ok(Self {
            state: Arc::clone(&flight.state),
            file: Arc::new(
                memory
                    .file(medium)
                    .map_err(|error| no_room(&error, medium))?,
            ),
            medium,
            len: 0,
            counted: 0,
            reserved: Some(memory.nothing(medium)),
            has_begun: false,
        })
    }

    /// From now on, workers may read it.
    fn begin(&mut self, len: Option<u64>, headers: &[(String, String)]) {
        self.has_begun = true;
        let head = Head {
            file: Arc::clone(&self.file),
            len,
            headers: headers.to_vec(),
        };
        self.state.begin(head, self.medium, self.counted);
    }

    /// As [`Filling::make_room`], without waiting. False: there is none now.
    fn try_make_room(&mut self, flight: &Flight, len: u64) -> bool {
        let counted = counted(len);
        if counted <= self.counted {
            return true;
        }
        let (memory, state) = (&flight.all.memory, &flight.state);
        let Some(reserved) = &mut self.reserved else {
            return false;
        };
        let has_room = state.try_charge(memory, &flight.function, self.medium, counted)
            && memory.try_grow(self.medium, reserved, counted, || {
                flight.all.cache.evict_idle()
            });
        if has_room {
            self.counted = counted;
        }
        has_room
    }

    /// Gives back what it has, before anything is written.
    fn give_back(&mut self) {
        if let Some(reserved) = &mut self.reserved {
            reserved.clear();
        }
        self.counted = 0;
        self.state.uncharge();
    }

    /// Waits until there is room for this many bytes in all: first in the share of a function that wants the object, then in the total.
    async fn make_room(&mut self, flight: &Flight, len: u64) -> Result<(), StoreError> {
        let counted = counted(len);
        if counted <= self.counted {
            return Ok(());
        }
        let (memory, state) = (&flight.all.memory, &flight.state);
        if !state.try_charge(memory, &flight.function, self.medium, counted) {
            state.tell(Progress::Needs {
                medium: self.medium,
                counted,
                has_begun: self.has_begun,
            });
            state.charged(counted).await;
        }
        let evict = || flight.all.cache.evict_idle();
        if let Some(reserved) = &mut self.reserved
            && !memory.try_grow(self.medium, reserved, counted, evict)
        {
            state.tell(Progress::Full {
                has_begun: self.has_begun,
            });
            memory.grow(self.medium, reserved, counted, evict).await;
        }
        self.counted = counted;
        if self.has_begun {
            state.tell(Progress::Begun(self.medium, counted));
        }
        Ok(())
    }

    async fn push(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let (at, medium) = (self.len, self.medium);
        let len = at + bytes.len() as u64;
        let written = match medium {
            Medium::Memory => self.file.write_all_at(&bytes, at),
            // A disk may make the daemon wait.
            Medium::Disk => {
                let file = Arc::clone(&self.file);
                let write = spawn_blocking(move || file.write_all_at(&bytes, at)).await;
                write.unwrap_or_else(|_| Err(io::Error::other("the daemon is stopping")))
            }
        };
        written.map_err(|error| no_room(&error, medium))?;
        self.len = len;
        self.state.filled(len);
        Ok(())
    }

    fn complete(mut self, headers: Vec<(String, String)>) -> Result<(), StoreError> {
        let medium = self.medium;
        let is_published = self.state.end_head();
        let sealed = match medium {
            // Those who read it already must not be able to prevent that.
            Medium::Memory if is_published => memfd::seal_while_read(self.file.as_fd()),
            Medium::Memory => memfd::seal(self.file.as_fd()),
            // It has no name and no descriptor that writes, and its mode lets nobody open one.
            Medium::Disk => Ok(()),
        };
        let file = sealed.and_then(|()| match is_published {
            true => Ok(None),
            false => memfd::reopen(self.file.as_fd()).map(Some),
        });
        let file = file.map_err(|error| no_room(&error, medium))?;
        let Some(reserved) = self.reserved.take() else {
            return Ok(());
        };
        let whole = Whole {
            len: self.len,
            headers,
        };
        let (state, counted) = (Arc::clone(&self.state), self.counted);
        // Its descriptor can write.
        drop(self);
        state.complete(file, whole, reserved, (medium, counted));
        Ok(())
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.state.end_head();
        // What a worker may have counts on.
        if let Some(reserved) = self.reserved.take() {
            self.state.keep(reserved);
        }
    }
}

/// What a buffer of this many bytes counts.
pub(crate) fn counted(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX).max(COUNTED_MIN)
}

fn no_room(error: &io::Error, medium: Medium) -> StoreError {
    let problem = match medium {
        Medium::Memory => format!("no memory for it: {error}"),
        Medium::Disk => format!(
            "no room for it on the disk, where it goes because the memory for inputs is used up: {error}: \
             make room in the data directory, or lower data.spill_mb"
        ),
    };
    StoreError::new(InputFaultKind::Unavailable, &problem)
}

fn unasked() -> StoreError {
    let problem =
        "the store answers that the object has not changed, but the request was unconditional";
    StoreError::new(InputFaultKind::Broken, problem)
}

pub(crate) fn wrong_length(announced: u64, came: &str) -> StoreError {
    let problem = format!("the store announced {} and sent {came}", Size(announced));
    StoreError::new(InputFaultKind::Broken, &problem)
}

/// Memory of an object of unknown length is reserved in such steps.
const STEP_LEN: u64 = 1 << 20;
/// What a small buffer counts, bytes. It takes a descriptor of the daemon until nobody has it any more, so their number is bounded, too.
const COUNTED_MIN: usize = 256 << 10;
/// A fetch waits at most this long for the answer to another one of the same object.
const GATE_TIME_MAX: Duration = Duration::from_millis(500);
/// Buffers that one fetch follows, and requests of one buffer: each was about the current object when the store was asked.
const FOLLOWED_MAX: usize = 8;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
