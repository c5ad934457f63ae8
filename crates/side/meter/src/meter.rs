//! The meter: a subscriber of the path's events that writes a record of each invocation and worker, and the port that makes reports
//! of the records. The subscriber runs on a thread of its own; the path never waits for it.
//!
//! The log is flushed to the disk once per second. Records that cannot be written are counted and lost; the daemon goes on.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use pilot_model::calendar::unix_ms;
use pilot_model::cost::{CostReport, CostRequest};
use pilot_model::ports::{Clock, CostError, Costs, CostsOf, UsageRecords, UsageRows};
use pilot_model::{Event, Version, VersionId};
use pilot_telemetry::{Bus, Metrics, Subscriber, Subscription};

use crate::log::{self, Appended, Writer};
use crate::metered::Metered;
use crate::record::{Call, Entry, Function, WorkerEnd};
use crate::table::Table;
use crate::{export, metered};

/// Where the records are, and what is made of them.
#[derive(Debug)]
pub struct Meter {
    folder: PathBuf,
    subscription: Subscription,
    /// Held while a report is made, so that requests for reports take one core at most.
    reporting: Mutex<()>,
}

/// What the meter needs.
pub struct MeterConfig {
    /// The folder of the log.
    pub folder: PathBuf,
    /// Most bytes of the log on the disk.
    pub bytes_max: u64,
    /// Whether records may be written: not while the disk is full.
    pub has_room: Box<dyn Fn() -> bool + Send>,
}

impl std::fmt::Debug for MeterConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeterConfig")
            .field("folder", &self.folder)
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

impl Meter {
    /// Opens the log and subscribes to the events.
    ///
    /// # Errors
    /// The log cannot be opened, or the thread cannot be started.
    pub fn subscribe(
        bus: &Bus,
        config: MeterConfig,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let folder = config.folder.clone();
        let metering = Metering::open(config, metrics, clock)?;
        Ok(Self {
            folder,
            subscription: bus.subscribe("meter", metering)?,
            reporting: Mutex::default(),
        })
    }

    /// The folder of the log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Costs for Meter {
    fn cost(
        &self,
        function: Option<&CostsOf>,
        request: &CostRequest,
    ) -> Result<CostReport, CostError> {
        let table = Table::with(request.billing.as_deref()).map_err(CostError::Billing)?;
        let Some(_alone) = self.reporting.try_lock_for(REPORT_WAIT) else {
            return Err(CostError::Busy);
        };
        self.subscription.flush();
        let wanted = metered::Wanted {
            function: function.cloned(),
            since_unix_ms: request.since_unix_ms,
            match_cpu: request.match_cpu,
        };
        let mut metered = Metered::new(&table, wanted);
        for entry in log::read(&self.folder)? {
            metered.add(&entry?);
        }
        let mut report = metered.report(unix_ms(SystemTime::now()));
        let lost = self.subscription.lost();
        if lost > 0 {
            report.notes.push(format!(
                "{lost} events were lost since the daemon started, because the meter was too slow"
            ));
        }
        Ok(report)
    }

    fn usage(
        &self,
        function: Option<&CostsOf>,
        since_unix_ms: Option<u64>,
        records: UsageRecords,
    ) -> Result<UsageRows, CostError> {
        self.subscription.flush();
        let entries = log::read(&self.folder)?;
        Ok(Box::new(export::csv(
            entries,
            records,
            function.cloned(),
            since_unix_ms,
        )))
    }
}

/// The subscriber.
struct Metering {
    writer: Writer,
    has_room: Box<dyn Fn() -> bool + Send>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    /// The indices in the current segment.
    functions: HashMap<VersionId, u32>,
    synced: Instant,
    told: Option<Instant>,
}

impl Metering {
    fn open(config: MeterConfig, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let mut writer = Writer::open(&config.folder, config.bytes_max)?;
        let unix_ms = unix_ms(SystemTime::now());
        if let Err(error) = writer.append(&[Entry::Began { unix_ms }]) {
            tracing::warn!(%error, "the usage log cannot be written");
        }
        Ok(Self {
            writer,
            has_room: config.has_room,
            metrics,
            clock,
            functions: HashMap::new(),
            synced: Instant::now(),
            told: None,
        })
    }

    /// The index of a version; adds its definition if it is new in this segment.
    fn index(&mut self, version: &Version, entries: &mut Vec<Entry>) -> u32 {
        if let Some(index) = self.functions.get(&version.id) {
            return *index;
        }
        let index = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
        self.functions.insert(version.id.clone(), index);
        entries.push(Entry::Function(Function {
            index,
            name: version.config.name.to_string(),
            owner: version.config.owner().to_owned(),
            version: version.number,
            memory_bytes: version.config.memory_bytes,
            cpu_milli: version.config.cpu_milli,
        }));
        index
    }

    fn entries(&mut self, events: &[Event]) -> (Vec<Entry>, u64) {
        let (now, wall_ms) = (self.clock.now(), unix_ms(SystemTime::now()));
        let mut entries = Vec::with_capacity(events.len());
        let mut records = 0;
        for event in events {
            match event {
                Event::Invoked(record) => {
                    let function = self.index(&record.version, &mut entries);
                    let ago = now.since(record.timeline.received).as_millis();
                    let at = wall_ms.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX));
                    let call = Call::of(record, function, at);
                    entries.extend(call.throttled_ns.map(Entry::Throttled));
                    entries.extend(call.pss_bytes.map(Entry::Pss));
                    entries.extend(call.worker.map(Entry::Worker));
                    entries.extend(call.thawed_ns.map(Entry::Thawed));
                    entries.push(Entry::Call(call));
                    records += 1;
                }
                Event::WorkerStarted { version, took } => {
                    let function = self.index(version, &mut entries);
                    let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                    let unix_ms = wall_ms.saturating_sub(took);
                    entries.push(Entry::WorkerStarted { function, unix_ms });
                }
                Event::WorkerEnded(record) => {
                    let function = self.index(&record.version, &mut entries);
                    entries.push(Entry::Worker(record.worker.0));
                    entries.push(Entry::WorkerEnded(WorkerEnd::of(record, function, wall_ms)));
                }
                Event::Began { .. }
                | Event::Printed { .. }
                | Event::RuntimeGiven { .. }
                | Event::RuntimesCounted(_)
                | Event::Hopped(_) => {}
            }
        }
        (entries, records)
    }

    fn write(&mut self, events: &[Event]) {
        let (entries, records) = self.entries(events);
        let written = if (self.has_room)() {
            self.writer.append(&entries)
        } else {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        match written {
            Ok(Appended::Here) => {}
            // A new segment says itself what its indices stand for.
            Ok(Appended::SegmentFull) => self.functions.clear(),
            Err(error) => {
                // The definitions of this batch may not be in the log.
                self.functions.clear();
                self.metrics.usage_lost().inc_by(records);
                self.tell(&error);
            }
        }
    }

    fn tell(&mut self, error: &io::Error) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            tracing::warn!(%error, "usage records are lost: the usage log cannot be written");
        }
    }
}

impl Subscriber for Metering {
    fn batch(&mut self, events: &[Event]) {
        if !events.is_empty() {
            self.write(events);
        }
        if self.writer.is_dirty() && self.synced.elapsed() >= SYNC_EVERY {
            self.synced = Instant::now();
            if let Err(error) = self.writer.sync() {
                self.tell(&error);
            }
        }
    }

    fn wake_after(&self) -> Option<Duration> {
        self.writer.is_dirty().then_some(SYNC_EVERY)
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        if let Err(error) = self.writer.sync() {
            self.tell(&error);
        }
    }
}

/// The log is synchronised this often.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Failures are logged at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long a request for a report waits for another one.
const REPORT_WAIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
