//! The meter: a subscriber of the path's events that writes a record of each invocation and worker, and the port that makes reports
//! of the records. The subscriber runs on a thread of its own; the path never waits for it.
//!
//! The log is flushed to the disk once per second. Records that cannot be written are counted and lost; the daemon goes on.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use pilot_model::calendar::unix_ms;
use pilot_model::cost::{CostReport, CostRequest};
use pilot_model::ports::{Clock, CostError, Costs, CostsOf, UsageRecords, UsageRows};
use pilot_model::{Event, Instant as At, Version, VersionId};
use pilot_telemetry::{Bus, Metrics, Subscriber, Subscription};

use crate::log::{self, Appended, Writer};
use crate::metered::Metered;
use crate::metered::Now;
use crate::record::{self, Call, Daemon, Entry, Function, WorkerEnd};
use crate::table::Table;
use crate::{export, metered};

/// Where the records are, and what is made of them.
#[derive(Debug)]
pub struct Meter {
    folder: PathBuf,
    subscription: Subscription,
    daemon: Daemon,
    clock: Arc<dyn Clock>,
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
    pub room: Box<dyn Fn() -> io::Result<()> + Send>,
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
        let metering = Metering::open(config, metrics, Arc::clone(&clock))?;
        Ok(Self {
            folder,
            daemon: metering.daemon,
            clock,
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
        let mut report = metered.report(Now {
            daemon: self.daemon,
            clock: clocks(&*self.clock),
        });
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
    room: Box<dyn Fn() -> io::Result<()> + Send>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    daemon: Daemon,
    /// The indices in the current segment.
    functions: HashMap<VersionId, u32>,
    /// The workers that live, by their numbers.
    living: BTreeMap<u64, Living>,
    /// The log does not say yet which daemon writes from here on, and which workers live.
    is_unsigned: bool,
    synced: Instant,
    told: Option<Instant>,
}

impl Metering {
    fn open(config: MeterConfig, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let mut writer = Writer::open(&config.folder, config.bytes_max)?;
        let now = clocks(&*clock);
        let daemon = Daemon {
            began_unix_ms: now.unix_ms,
            boot: boot(),
            began_ms: now.at_ms,
        };
        let written = writer.append(&[Entry::Daemon(daemon), Entry::Clock(now)]);
        if let Err(error) = &written {
            tracing::warn!(%error, "the usage log cannot be written");
        }
        Ok(Self {
            writer,
            room: config.room,
            metrics,
            clock,
            daemon,
            functions: HashMap::new(),
            living: BTreeMap::new(),
            is_unsigned: !matches!(written, Ok(Appended::Here)),
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
        // All dates of a batch are as far from `wall_ms` as what they are of is from `now`.
        let date = |at: At| wall_ms.saturating_sub(millis(now.since(at)));
        let mut entries = Vec::with_capacity(events.len() + 1);
        let mut records = 0;
        if self.is_unsigned {
            entries.push(Entry::Daemon(self.daemon));
        }
        entries.push(Entry::Clock(record::Clock {
            at_ms: now.0 / 1_000_000,
            unix_ms: wall_ms,
        }));
        if self.is_unsigned {
            self.say_who_lives(date, &mut entries);
        }
        for event in events {
            match event {
                Event::Invoked(record) => {
                    let function = self.index(&record.version, &mut entries);
                    let call = Call::of(record, function, date(record.timeline.received));
                    entries.extend(call.throttled_ns.map(Entry::Throttled));
                    entries.extend(call.pss_bytes.map(Entry::Pss));
                    entries.extend(call.worker.map(Entry::Worker));
                    entries.extend(call.thawed_ns.map(Entry::Thawed));
                    entries.push(Entry::Call(call));
                    records += 1;
                }
                Event::WorkerStarted {
                    worker,
                    version,
                    forked,
                    ..
                } => {
                    let function = self.index(version, &mut entries);
                    push_start(worker.0, function, date(*forked), &mut entries);
                    let living = Living {
                        version: Arc::clone(version),
                        forked: *forked,
                    };
                    self.living.insert(worker.0, living);
                    if self.living.len() > LIVING_MAX {
                        self.living.pop_first();
                    }
                }
                Event::WorkerEnded(record) => {
                    self.living.remove(&record.worker.0);
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

    /// Adds the starts of the workers that live, so that the segment can be read alone. The oldest are first; a log with very small
    /// segments may have no room for all.
    fn say_who_lives(&mut self, date: impl Fn(At) -> u64, entries: &mut Vec<Entry>) {
        let living = std::mem::take(&mut self.living);
        let mut room = self.writer.segment_bytes() / 4;
        for (worker, Living { version, forked }) in &living {
            let (name, owner) = (&version.config.name, version.config.owner());
            let definition = match self.functions.contains_key(&version.id) {
                true => 0,
                false => name.as_str().len() + owner.len() + DEFINITION_BYTES,
            };
            let Some(left) = room.checked_sub(definition as u64 + START_BYTES) else {
                break;
            };
            room = left;
            let function = self.index(version, entries);
            push_start(*worker, function, date(*forked), entries);
        }
        self.living = living;
    }

    fn write(&mut self, events: &[Event]) {
        let (entries, records) = self.entries(events);
        match (self.room)().and_then(|()| self.writer.append(&entries)) {
            Ok(Appended::Here) => self.is_unsigned = false,
            // A new segment says itself what its indices stand for, and who lives.
            Ok(Appended::SegmentFull) => self.begin_anew(),
            Err(error) => {
                // The definitions and starts of this batch may not be in the log.
                self.begin_anew();
                self.metrics.usage_lost().inc_by(records);
                self.tell(&error);
            }
        }
    }

    fn begin_anew(&mut self) {
        self.functions.clear();
        self.is_unsigned = true;
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

/// A worker that lives.
struct Living {
    version: Arc<Version>,
    forked: At,
}

fn push_start(worker: u64, function: u32, unix_ms: u64, entries: &mut Vec<Entry>) {
    entries.push(Entry::Worker(worker));
    entries.push(Entry::WorkerStarted {
        function,
        unix_ms,
        worker: None,
    });
}

/// What the clocks show.
fn clocks(clock: &dyn Clock) -> record::Clock {
    record::Clock {
        at_ms: clock.now().0 / 1_000_000,
        unix_ms: unix_ms(SystemTime::now()),
    }
}

/// A number of the machine's start: the first half of the kernel's (random(4)). Where that cannot be read, daemons have a number each.
fn boot() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = text.replace('-', "");
    let half = digits
        .get(..16)
        .and_then(|half| u64::from_str_radix(half, 16).ok());
    half.unwrap_or_else(|| RandomState::new().hash_one("boot"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The log is synchronised this often.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Failures are logged at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long a request for a report waits for another one.
const REPORT_WAIT: Duration = Duration::from_secs(10);
/// Workers that are remembered as living. Ends can be lost, if the meter is too slow.
const LIVING_MAX: usize = 1 << 16;
/// Bytes of a function in the log besides its names, and of a worker's start, at most.
const DEFINITION_BYTES: usize = 40;
const START_BYTES: u64 = 28;

#[cfg(test)]
mod tests;
