//! What the store has, and whether there is room for more. One function never has more than half of the places and bytes, so that its
//! backlog leaves room for the others. Dead letters have a quarter of the limits, beside what waits.

use std::collections::HashMap;

use pilot_model::FunctionName;
use pilot_model::size::Size as Shown;
use rusqlite::Connection;

use crate::shared::Limits;
use crate::store::{self, Record, Size};

/// What the store has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) waiting: Size,
    pub(super) dead: Size,
    pub(super) keys: u64,
    functions: HashMap<FunctionName, Size>,
}

impl Held {
    /// Counts the records of a store.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut held = Self {
            dead: store::dead_size(connection)?,
            keys: store::keys(connection)?,
            ..Self::default()
        };
        store::waiting(connection, |_, entry| {
            held.add(&entry.function, entry.bytes)
        })?;
        Ok(held)
    }

    /// Whether a new invocation may be stored.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn room_for(&self, record: &Record, limits: &Limits) -> Result<(), String> {
        let request = &record.request;
        if request.key.is_some() && self.keys >= limits.records_max.saturating_mul(KEYS_PER_RECORD)
        {
            return Err(
                "it has as many idempotency keys as it may have: try again later, or without a key"
                    .to_owned(),
            );
        }
        if self.has_room(&request.function, record.bytes(), limits) {
            return Ok(());
        }
        let own = self
            .functions
            .get(&request.function)
            .copied()
            .unwrap_or_default();
        Err(format!(
            "{} invocations with {} wait, {} with {} of them for '{}', and the limits are {} and {} (for one function the half): try again \
             later, or raise limits.async_records or limits.async_mb in pilotd.toml",
            self.waiting.records,
            Shown(self.waiting.bytes),
            own.records,
            Shown(own.bytes),
            request.function,
            limits.records_max,
            Shown(limits.bytes_max),
        ))
    }

    /// Whether so many more bytes of a function have room.
    pub(super) fn has_room(&self, function: &FunctionName, bytes: u64, limits: &Limits) -> bool {
        let own = self.functions.get(function).copied().unwrap_or_default();
        self.waiting.records < limits.records_max
            && self.waiting.bytes + bytes <= limits.bytes_max
            && own.records < limits.records_max.div_ceil(2)
            && own.bytes + bytes <= limits.bytes_max.div_ceil(2)
    }

    pub(super) fn add(&mut self, function: &FunctionName, bytes: u64) {
        self.waiting.add(bytes);
        self.functions
            .entry(function.clone())
            .or_default()
            .add(bytes);
    }

    pub(super) fn remove(&mut self, function: &FunctionName, bytes: u64) {
        self.waiting.remove(bytes);
        if let Some(own) = self.functions.get_mut(function) {
            own.remove(bytes);
            if own.records == 0 {
                self.functions.remove(function);
            }
        }
    }

    pub(super) fn forget_keys(&mut self, forgotten: usize) {
        self.keys = self.keys.saturating_sub(forgotten as u64);
    }

    pub(super) fn bury(&mut self, bytes: u64) {
        self.dead.add(bytes);
    }

    pub(super) fn unbury(&mut self, bytes: u64) {
        self.dead.remove(bytes);
    }

    pub(super) fn has_too_many_dead(&self, limits: &Limits) -> bool {
        self.dead.records > limits.records_max.div_ceil(4)
            || self.dead.bytes > limits.bytes_max.div_ceil(4)
    }
}

impl Size {
    fn add(&mut self, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

const KEYS_PER_RECORD: u64 = 4;
