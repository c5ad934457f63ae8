//! A buffer: one object in memory, or on the disk. A task of its own fills it once; then workers map it read-only.
//!
//! It may have several users at the same time: invocations of one function, and of functions of the same owner. The task ends when the
//! last of them is gone. The buffer counts in the total until nobody has it any more. It counts in the share of each function that
//! uses it until nobody outside the daemon has it, and not only until the invocation has ended: a function that keeps its inputs has
//! less room for the next ones. It is known whether some worker has a file, but not which one. So all functions that used a buffer,
//! which have one owner, are charged until no worker has it.
//!
//! A buffer may be published before it is complete: workers then read as far as it is filled, from a descriptor that only reads. What
//! was published counts on until no worker has it, also if it is never completed.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use pilot_model::FunctionName;
use pilot_model::ports::{Input, InputFaultKind, InputKind, InputMemory};
use pilot_protocols::Reserved;
use pilot_sys::memfd;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::buffers::Buffers;
use crate::memory::{Medium, Memory, close};
use crate::room::{Lack, Place};
use crate::stores::{Anew, StoreError, Validator};

/// A buffer with the task that fills it.
#[derive(Debug)]
pub(crate) struct Buffer {
    state: Arc<BufferState>,
    task: AbortHandle,
    all: Weak<Buffers>,
}

/// What the task shares with the users.
#[derive(Debug)]
pub(crate) struct BufferState {
    /// Which functions are charged for it.
    charges: Mutex<HashMap<FunctionName, Arc<Charge>>>,
    progress: watch::Sender<Progress>,
    /// So many bytes are charged to at least one function: the task may take them.
    granted: watch::Sender<usize>,
    validator: Mutex<Option<Validator>>,
    /// So many bytes are there.
    filled: watch::Sender<u64>,
    /// While it can be published.
    head: Mutex<Option<Head>>,
    /// Its file, from when the first worker may have it.
    content: OnceLock<Content>,
    whole: OnceLock<Whole>,
    /// What the store says about the object by now, if it was described anew.
    headers_anew: Mutex<Option<Headers>>,
    /// The last user has gone before it was complete, and a worker still has a part of it.
    is_abandoned: AtomicBool,
}

/// Names of HTTP headers, and their values.
type Headers = Arc<[(String, String)]>;

/// How far the task is.
#[derive(Debug, Clone)]
pub(crate) enum Progress {
    /// The store has not answered.
    Asking,
    /// It goes on when this many bytes in all are charged to a function.
    Needs {
        medium: Medium,
        counted: usize,
        /// A part of it is there.
        has_begun: bool,
    },
    /// It goes on when there is room in the total.
    Full {
        /// A part of it is there.
        has_begun: bool,
    },
    /// The store has answered, there is room for this many bytes, and they arrive.
    Begun(Medium, usize),
    /// All is there, and counts this many bytes.
    Whole(Medium, usize),
    /// The store says that this other buffer has the object, or will have it.
    Same(Arc<Buffer>),
    Failed(StoreError),
    /// Nobody waited for it any more. Whoever comes now asks the store again.
    Abandoned,
}

/// What is known of a complete buffer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) len: u64,
    /// What the store said about the object.
    pub(crate) headers: Vec<(String, String)>,
}

/// What is known of a buffer that is being filled.
#[derive(Debug)]
pub(crate) struct Head {
    /// For writing.
    pub(crate) file: Arc<File>,
    /// Its length, as announced.
    pub(crate) len: Option<u64>,
    /// What the store said about the object.
    pub(crate) headers: Vec<(String, String)>,
}

/// The file of a buffer that workers may have.
#[derive(Debug)]
struct Content {
    /// A file description that only reads, so that one more of them can be noticed. `None` only while it is dropped.
    file: Option<OwnedFd>,
    /// Its part of the total. `None` while it is filled: the task has it.
    reserved: Mutex<Option<Reserved>>,
}

impl Content {
    fn new(file: OwnedFd) -> Self {
        Self {
            file: Some(file),
            reserved: Mutex::default(),
        }
    }

    fn is_used_elsewhere(&self) -> bool {
        let file = self.file.as_ref().map(OwnedFd::as_fd);
        file.is_some_and(memfd::is_used_elsewhere)
    }

    /// An open file of its own.
    fn reopen(&self) -> io::Result<OwnedFd> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        memfd::reopen(file.as_fd())
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            close(file, ());
        }
        // At once: who waits for it takes longer to fill it.
        drop(self.reserved.get_mut().take());
    }
}

/// An incomplete buffer, for one worker.
#[derive(Debug)]
pub(crate) struct Published {
    /// An open file of its own, which only reads.
    pub(crate) descriptor: OwnedFd,
    /// Its length, as announced.
    pub(crate) len: Option<u64>,
    /// What the store said about the object.
    pub(crate) headers: Vec<(String, String)>,
}

/// A part of a function's share. `None`: where the buffer will lie is not known yet.
#[derive(Debug, Default)]
struct Charge(tokio::sync::Mutex<Option<Reserved>>);

impl BufferState {
    pub(crate) fn new() -> Self {
        Self {
            charges: Mutex::default(),
            progress: watch::Sender::new(Progress::Asking),
            granted: watch::Sender::new(0),
            validator: Mutex::default(),
            filled: watch::Sender::new(0),
            head: Mutex::default(),
            content: OnceLock::new(),
            whole: OnceLock::new(),
            headers_anew: Mutex::default(),
            is_abandoned: AtomicBool::new(false),
        }
    }

    pub(crate) fn tell(&self, progress: Progress) {
        self.progress.send_replace(progress);
    }

    pub(crate) fn has_ended(&self) -> bool {
        let progress = self.progress.borrow();
        !matches!(
            *progress,
            Progress::Asking | Progress::Needs { .. } | Progress::Full { .. } | Progress::Begun(..)
        )
    }

    pub(crate) fn set_validator(&self, validator: Option<Validator>) {
        *self.validator.lock() = validator;
    }

    /// The store has answered: from now on it can be published.
    pub(crate) fn begin(&self, head: Head, medium: Medium, counted: usize) {
        // An attempt before this one filled another file.
        self.filled(0);
        *self.head.lock() = Some(head);
        self.tell(Progress::Begun(medium, counted));
    }

    /// So many bytes are there.
    pub(crate) fn filled(&self, len: u64) {
        self.filled.send_replace(len);
    }

    /// It cannot be published any more. Returns whether it was.
    pub(crate) fn end_head(&self) -> bool {
        let head = self.head.lock().take();
        drop(head);
        self.is_published()
    }

    /// Whether a worker may have it.
    pub(crate) fn is_published(&self) -> bool {
        self.content.get().is_some()
    }

    /// A descriptor for a worker that reads while it is filled. `None`: that is over.
    fn publish(&self) -> io::Result<Option<Published>> {
        let head = self.head.lock();
        let Some(head) = head.as_ref() else {
            return Ok(None);
        };
        let content = match self.content.get() {
            Some(content) => content,
            None => {
                let content = Content::new(memfd::reopen(head.file.as_fd())?);
                self.content.get_or_init(|| content)
            }
        };
        Ok(Some(Published {
            descriptor: content.reopen()?,
            len: head.len,
            headers: self.headers(&head.headers),
        }))
    }

    /// What the store says about the object, of which it has said `first`.
    fn headers(&self, first: &[(String, String)]) -> Vec<(String, String)> {
        let anew = self.headers_anew.lock();
        anew.as_deref().unwrap_or(first).to_vec()
    }

    /// The part of the total of what was published, when nobody fills it any more.
    pub(crate) fn keep(&self, reserved: Reserved) {
        if let Some(content) = self.content.get() {
            *content.reserved.lock() = Some(reserved);
        }
    }

    /// It is complete. `file`: as it is read, if it was not published.
    pub(crate) fn complete(
        &self,
        file: Option<OwnedFd>,
        whole: Whole,
        reserved: Reserved,
        (medium, counted): (Medium, usize),
    ) {
        if let Some(file) = file {
            let _ = self.content.set(Content::new(file));
        }
        self.keep(reserved);
        let _ = self.whole.set(whole);
        self.tell(Progress::Whole(medium, counted));
    }

    /// Its task is gone, and nobody is left who waits for it.
    fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::SeqCst);
        self.set_validator(None);
    }

    /// Charges the function if it has users and room, without waiting.
    pub(crate) fn try_charge(
        &self,
        memory: &Memory,
        function: &FunctionName,
        medium: Medium,
        len: usize,
    ) -> bool {
        let charge = self.charges.lock().get(function).cloned();
        let Some(charge) = charge else { return false };
        let Ok(mut charged) = charge.0.try_lock() else {
            return false;
        };
        let reserved = charged.take();
        let mut reserved = reserved.unwrap_or_else(|| memory.share(medium, function));
        if !reserved.try_grow_to(len.min(memory.share_max(medium))) {
            // What it has is that of this medium. If it has nothing, the medium is open.
            *charged = Some(reserved).filter(|reserved| !reserved.is_empty());
            return false;
        }
        *charged = Some(reserved);
        self.grant(len);
        true
    }

    /// Waits until this many bytes are charged to one of the functions that wait for the buffer.
    pub(crate) async fn charged(&self, len: usize) {
        let mut granted = self.granted.subscribe();
        // The sender is beside it.
        let _ = granted.wait_for(|granted| *granted >= len).await;
    }

    /// Gives back what functions are charged for a buffer of which nothing is there yet.
    pub(crate) fn uncharge(&self) {
        self.granted.send_replace(0);
        for charge in self.charges.lock().values() {
            // Who has the lock waits, and has nothing.
            if let Ok(mut charged) = charge.0.try_lock() {
                *charged = None;
            }
        }
    }

    fn grant(&self, len: usize) {
        self.granted.send_if_modified(|granted| {
            let is_more = len > *granted;
            *granted = len.max(*granted);
            is_more
        });
    }
}

impl Buffer {
    pub(crate) fn new(state: Arc<BufferState>, task: AbortHandle, all: &Arc<Buffers>) -> Self {
        Self {
            state,
            task,
            all: Arc::downgrade(all),
        }
    }

    /// What the object's content is known by, if it may be used for somebody who asks later.
    pub(crate) fn validator(&self) -> Option<Validator> {
        self.state.validator.lock().clone()
    }

    /// The store has said something else about the same content.
    pub(crate) fn describe(&self, anew: Anew) {
        *self.state.headers_anew.lock() = Some(anew.headers.into());
        // A buffer that cannot be used again by now stays so.
        if let Some(validator) = &mut *self.state.validator.lock() {
            *validator = anew.validator;
        }
    }

    /// What it counts, if it is complete and in memory.
    pub(crate) fn counts_in_memory(&self) -> Option<u64> {
        match *self.state.progress.borrow() {
            Progress::Whole(Medium::Memory, counted) => Some(counted as u64),
            _ => None,
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.state.whole.get().is_some()
    }

    /// Ends a use. True: workers still have the buffer, so the function stays charged.
    fn release(&self, function: &FunctionName, charge: Arc<Charge>) -> bool {
        let mut charges = self.state.charges.lock();
        drop(charge);
        // Users come and go only under this lock. The map has one reference.
        let has_users = charges
            .get(function)
            .is_none_or(|charge| Arc::strong_count(charge) > 1);
        if has_users {
            return false;
        }
        if self.is_used_by_workers() {
            // Nobody needs the rest.
            let is_last = charges
                .values()
                .all(|charge| Arc::strong_count(charge) == 1);
            if is_last && !self.is_whole() {
                self.state.abandon();
                self.task.abort();
            }
            return true;
        }
        charges.remove(function);
        false
    }

    /// Whether a worker has it open or mapped. If none has, functions without users are not charged any more.
    pub(crate) fn is_held(&self) -> bool {
        let mut charges = self.state.charges.lock();
        if self.is_used_by_workers() {
            return true;
        }
        charges.retain(|_, charge| Arc::strong_count(charge) > 1);
        false
    }

    fn is_used_by_workers(&self) -> bool {
        let content = self.state.content.get();
        content.is_some_and(Content::is_used_elsewhere)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The buffer can be read as far as it is filled.
    Begun,
    /// It is complete.
    Whole,
}

/// What comes of the wait for a buffer.
#[derive(Debug)]
pub(crate) enum Waited {
    /// It is being filled, and charged to the function.
    Begun,
    /// Nobody fills it any more.
    Abandoned,
    /// It is complete, and charged to the function.
    Ready,
    /// Another one has the object.
    Other(Arc<Buffer>),
    /// It is complete, and the function has no room for this many bytes there.
    NoRoom(Medium, usize),
}

/// The use of a buffer by one invocation.
#[derive(Debug)]
pub(crate) struct Use {
    function: FunctionName,
    /// `None` only while it is dropped, like the buffer.
    charge: Option<Arc<Charge>>,
    buffer: Option<Arc<Buffer>>,
}

impl Use {
    pub(crate) fn new(buffer: Arc<Buffer>, function: &FunctionName) -> Self {
        let mut charges = buffer.state.charges.lock();
        let charge = Arc::clone(charges.entry(function.clone()).or_default());
        drop(charges);
        Self {
            function: function.clone(),
            charge: Some(charge),
            buffer: Some(buffer),
        }
    }

    pub(crate) fn buffer(&self) -> Option<&Arc<Buffer>> {
        self.buffer.as_ref()
    }

    /// Waits until the buffer is complete, or can be read. Whoever stops waiting does not disturb the others. A function that has no room
    /// now waits for the whole buffer. `place` is told of a wait for room.
    ///
    /// # Errors
    /// Why it cannot be filled.
    pub(crate) async fn wait(
        &self,
        memory: &Memory,
        until: Until,
        place: Place<'_>,
    ) -> Result<Waited, StoreError> {
        let Some(buffer) = &self.buffer else {
            return Ok(Waited::Ready);
        };
        let state = &buffer.state;
        let mut progress = state.progress.subscribe();
        loop {
            let now = progress.borrow_and_update().clone();
            match now {
                Progress::Asking => {}
                Progress::Begun(medium, counted) => {
                    if until == Until::Begun && self.try_charge(memory, medium, counted).await {
                        return Ok(Waited::Begun);
                    }
                }
                Progress::Abandoned => return Ok(Waited::Abandoned),
                Progress::Failed(error) => return Err(error),
                Progress::Same(other) => return Ok(Waited::Other(other)),
                Progress::Whole(medium, counted) => {
                    let is_charged = self.try_charge(memory, medium, counted).await;
                    return Ok(if is_charged {
                        Waited::Ready
                    } else {
                        Waited::NoRoom(medium, counted)
                    });
                }
                Progress::Needs {
                    medium,
                    counted,
                    has_begun,
                } => {
                    let _waits = place.waits(Lack::Share(counted), has_begun);
                    tokio::select! {
                        biased;
                        _ = progress.changed() => continue,
                        () = self.charge(memory, medium, counted, has_begun) => state.grant(counted),
                    }
                }
                Progress::Full { has_begun } => {
                    let _waits = place.waits(Lack::Total, has_begun);
                    let _ = progress.changed().await;
                    continue;
                }
            }
            // The sender lives as long as the buffer.
            let _ = progress.changed().await;
        }
    }

    /// Waits until the function has room for this many bytes of this buffer. All its invocations that use the buffer share one charge.
    /// `has_begun`: what is charged already is there, so that it counts on meanwhile.
    async fn charge(&self, memory: &Memory, medium: Medium, len: usize, has_begun: bool) {
        let Some(charge) = &self.charge else { return };
        let mut reserved = charge.0.lock().await;
        let reserved = reserved.get_or_insert_with(|| memory.share(medium, &self.function));
        if !has_begun && !reserved.try_grow_to(len.min(memory.share_max(medium))) {
            // Whoever waits with something could wait for others that do the same.
            reserved.clear();
        }
        reserved.grow_to(len).await;
    }

    /// Charges the function if it has room, or another of its invocations has charged it.
    async fn try_charge(&self, memory: &Memory, medium: Medium, len: usize) -> bool {
        let Some(charge) = &self.charge else {
            return true;
        };
        let mut reserved = charge.0.lock().await;
        let reserved = reserved.get_or_insert_with(|| memory.share(medium, &self.function));
        reserved.try_grow_to(len.min(memory.share_max(medium)))
    }

    /// Charges the function with what it has reserved for this many bytes of this buffer.
    pub(crate) async fn charge_with(&self, reserved: Reserved, len: usize) {
        let Some(charge) = &self.charge else { return };
        let mut charged = charge.0.lock().await;
        let is_charged = charged
            .as_mut()
            .is_some_and(|charged| charged.try_grow_to(len));
        if !is_charged {
            *charged = Some(reserved);
        }
    }

    /// The incomplete buffer for a worker. `None`: it is over, complete or not.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn publish(&self) -> io::Result<Option<Published>> {
        match &self.buffer {
            Some(buffer) => buffer.state.publish(),
            None => Ok(None),
        }
    }

    /// How many bytes are there, and changes of that.
    pub(crate) fn filled(&self) -> watch::Receiver<u64> {
        match &self.buffer {
            Some(buffer) => buffer.state.filled.subscribe(),
            None => watch::Sender::new(0).subscribe(),
        }
    }

    /// The length of the object.
    pub(crate) fn len(&self) -> u64 {
        self.whole().map_or(0, |whole| whole.len)
    }

    fn whole(&self) -> Option<&Whole> {
        self.buffer.as_ref()?.state.whole.get()
    }

    /// What the store said about the object.
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
        let first = self.whole().map_or(&[][..], |whole| &whole.headers);
        let state = self.buffer.as_ref().map(|buffer| &buffer.state);
        state.map_or_else(Vec::new, |state| state.headers(first))
    }

    /// The descriptor for a worker: an open file of its own.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn input(&self, name: &str) -> io::Result<Input> {
        let len = self.whole().ok_or(io::ErrorKind::NotFound)?.len;
        let content = self.buffer.as_ref().and_then(|it| it.state.content.get());
        let content = content.ok_or(io::ErrorKind::NotFound)?;
        Ok(Input {
            name: name.to_owned(),
            kind: InputKind::Memory { len },
            descriptor: Arc::new(content.reopen()?),
            object: None,
            decoded: None,
        })
    }
}

impl InputMemory for Use {
    fn bytes(&self) -> u64 {
        self.len()
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        Use::input(self, name)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let (Some(charge), Some(buffer)) = (self.charge.take(), self.buffer.take()) else {
            return;
        };
        let is_held = buffer.release(&self.function, charge);
        let Some(all) = buffer.all.upgrade() else {
            return;
        };
        if is_held {
            all.held.add(&all, buffer);
        } else {
            drop(buffer);
            all.give_way();
        }
    }
}

/// The task of a buffer is gone: whoever still waits is told, also if it panicked.
#[derive(Debug)]
pub(crate) struct Ends(pub(crate) Arc<BufferState>);

impl Drop for Ends {
    fn drop(&mut self) {
        if self.0.has_ended() {
            return;
        }
        if self.0.is_abandoned.load(Ordering::SeqCst) {
            self.0.tell(Progress::Abandoned);
        } else {
            let problem = "the daemon gave the fetch up";
            self.0.tell(Progress::Failed(StoreError::new(
                InputFaultKind::Unavailable,
                problem,
            )));
        }
    }
}
