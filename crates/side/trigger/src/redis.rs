//! A consumer group of a Redis stream. The stream is durable, so the function is invoked directly, and an entry is acknowledged when it
//! is done. What failed, and what a dead consumer had, is taken over after a time, until `max_receives` ends that.
//!
//! The consumer's name is kept with the trigger, so a daemon that comes back finds what it had. After a new connection, the
//! server sends all that is not acknowledged again: [`Entries`] knows what of it has run.

pub(crate) mod client;
mod entries;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use pilot_model::trigger::RedisConfig;
use serde_json::map::Entry;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::batch::{self, Item, Reports, Rules, Source};
use crate::context::Context;
use client::{NEW, Redis, RedisAccess, StreamEntry};
use entries::{Again, Entries};

/// Receives until the trigger is stopped.
pub(crate) async fn run(mut context: Context, config: RedisConfig) {
    let connections = Arc::clone(&context.shared.connections);
    let access = match connections.redis(context.function.as_str(), &config.connection) {
        Ok(access) => access.clone(),
        Err(problem) => {
            context.status.refused(&problem);
            return context.stopped().await;
        }
    };
    let fresh = format!("pilot-{}", Uuid::new_v4().simple());
    let Some(consumer) = context.name(CONSUMER, fresh).await else {
        return;
    };
    let receiver = Arc::new(Receiver {
        config,
        consumer,
        context: context.clone(),
        entries: Mutex::default(),
        connection: Mutex::default(),
    });
    let mut batches = JoinSet::new();
    loop {
        match receiver.listen(&mut context, &access, &mut batches).await {
            Ok(()) => break,
            Err(problem) => {
                if !context.back_off(&problem).await {
                    break;
                }
            }
        }
    }
    // What runs is finished, and acknowledged if it succeeds.
    while batches.join_next().await.is_some() {}
    receiver.acknowledge_last(&access).await;
}

#[derive(Debug)]
struct Receiver {
    config: RedisConfig,
    consumer: String,
    context: Context,
    /// What is known of entries. Held for one look or one change.
    entries: Mutex<Entries>,
    /// The newest connection, on which batches acknowledge what is done. Held for one look or one change.
    connection: Mutex<Option<Redis>>,
}

impl Receiver {
    fn place(&self) -> (&str, &str, &str) {
        (&self.config.stream, &self.config.group, &self.consumer)
    }

    /// Listens until something fails. `Ok`: the task must end.
    async fn listen(
        self: &Arc<Self>,
        context: &mut Context,
        access: &RedisAccess,
        batches: &mut JoinSet<Result<(), String>>,
    ) -> Result<(), String> {
        // A read that waits holds up everything on its connection.
        let mut reader = Redis::connect(access).await?;
        let mut redis = Redis::connect(access).await?;
        let RedisConfig { stream, group, .. } = &self.config;
        redis.create_group(stream, group).await?;
        self.acknowledge_done(&mut redis).await?;
        *self.connection.lock() = Some(redis.clone());
        // It works once something was read: what this consumer has may be what made the last connection fail.
        let mut own = Some("0".to_owned());
        let (mut claimed_at, mut start) = (None::<Instant>, "0-0".to_owned());
        loop {
            if !self.has_place(context, batches).await? {
                return Ok(());
            }
            let is_time = claimed_at.is_none_or(|at| at.elapsed() >= self.claim_every());
            let count = self.config.batch_size;
            let (entries, again) = if let Some(after) = own.take() {
                let entries = redis.read(self.place(), &after, count).await?;
                own = entries.last().map(|entry| entry.id.clone());
                (entries, Again::Own)
            } else if is_time {
                let idle_ms = self.config.claim_idle_ms;
                let claimed = redis.claim(self.place(), idle_ms, &start, count).await?;
                start = claimed.0;
                if start == "0-0" {
                    claimed_at = Some(Instant::now());
                }
                if let Some(waiting) = redis.waiting(stream, group).await? {
                    self.say_what_waits(waiting, &claimed.1);
                }
                (claimed.1, Again::Claimed)
            } else {
                let asked_at = Instant::now();
                let entries = tokio::select! {
                    // What arrives in this moment is this consumer's, which gets it at the next start.
                    () = context.stopped() => return Ok(()),
                    entries = reader.read(self.place(), NEW, count) => entries?,
                };
                let counts = self.entries.lock().deliveries(&entries, &[]);
                let items = items(&entries, &counts, &self.config);
                context.works();
                if items.is_empty() {
                    // A server that does not wait for entries would be asked without end.
                    let early = EMPTY_MIN.saturating_sub(asked_at.elapsed());
                    context.pause(early).await;
                }
                self.begin(items, batches);
                continue;
            };
            let items = self.again(&mut redis, entries, again).await?;
            context.works();
            if items.is_empty() {
                context.pause(NOTHING_AGAIN).await;
            }
            self.begin(items, batches);
        }
    }

    /// Waits until one more batch may run. False: the task must end.
    async fn has_place(
        &self,
        context: &mut Context,
        batches: &mut JoinSet<Result<(), String>>,
    ) -> Result<bool, String> {
        let places = context.places();
        while batches.len() >= places {
            tokio::select! {
                () = context.stopped() => return Ok(false),
                Some(ended) = batches.join_next() => batch::joined(ended)?,
            }
        }
        while let Some(ended) = batches.try_join_next() {
            batch::joined(ended)?;
        }
        Ok(!context.is_stopped())
    }

    fn claim_every(&self) -> Duration {
        Duration::from_millis(self.config.claim_idle_ms / 2).min(CLAIM_EVERY_MAX)
    }

    fn say_what_waits(&self, waiting: u64, entries: &[StreamEntry]) {
        let known = self.entries.lock();
        let oldest = known
            .running()
            .chain(entries.iter().map(|entry| entry.id.as_str()));
        self.context
            .status
            .waits(waiting, oldest.filter_map(added_ms).min());
    }

    /// Entries that were delivered before, without those that run now, that are done, or that failed a moment ago.
    async fn again(
        &self,
        redis: &mut Redis,
        mut entries: Vec<StreamEntry>,
        again: Again,
    ) -> Result<Vec<Item>, String> {
        {
            let known = self.entries.lock();
            let idle = Duration::from_millis(self.config.claim_idle_ms);
            entries.retain(|entry| known.runs_again(&entry.id, again, idle));
        }
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Ok(Vec::new());
        };
        let RedisConfig { stream, group, .. } = &self.config;
        let deleted: Vec<String> = entries
            .iter()
            .filter(|entry| entry.fields.is_none())
            .map(|entry| entry.id.clone())
            .collect();
        let range = (first.id.as_str(), last.id.as_str());
        let counts = redis.deliveries(stream, group, range, PENDING_MAX).await?;
        redis.acknowledge(stream, group, &deleted).await?;
        let counts = self.entries.lock().deliveries(&entries, &counts);
        Ok(items(&entries, &counts, &self.config))
    }

    fn begin(self: &Arc<Self>, items: Vec<Item>, batches: &mut JoinSet<Result<(), String>>) {
        if items.is_empty() {
            return;
        }
        self.context.status.received(items.len() as u64);
        let ids: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
        let running = items.iter().map(|item| (item.id.clone(), item.receives));
        self.entries.lock().begin(running);
        let batch = InBatch {
            receiver: Arc::clone(self),
            ids,
        };
        batches.spawn(async move {
            let batch = batch;
            batch.receiver.process(items).await
        });
    }

    /// Runs a batch, and acknowledges what is done.
    async fn process(&self, items: Vec<Item>) -> Result<(), String> {
        let config = &self.config;
        let rules = Rules {
            reports: Reports::of(config.report_batch_item_failures),
            receives_max: Some(config.max_receives),
        };
        batch::run(&self.context, items, rules, self).await
    }

    /// Acknowledges what is done and was not acknowledged on another connection.
    async fn acknowledge_done(&self, redis: &mut Redis) -> Result<(), String> {
        let done = self.entries.lock().done();
        self.acknowledge(redis, &done).await
    }

    async fn acknowledge(&self, redis: &mut Redis, done: &[String]) -> Result<(), String> {
        let RedisConfig { stream, group, .. } = &self.config;
        redis.acknowledge(stream, group, done).await?;
        self.entries.lock().acknowledged(done);
        Ok(())
    }

    /// The same, when the task ends: tries for a while to reach the server.
    async fn acknowledge_last(&self, access: &RedisAccess) {
        let tries = async {
            while !self.entries.lock().done().is_empty() {
                let acknowledged = async {
                    let mut redis = Redis::connect(access).await?;
                    self.acknowledge_done(&mut redis).await
                };
                if let Err(problem) = acknowledged.await {
                    self.context.status.failed(&problem);
                    sleep(LAST_WAIT).await;
                }
            }
        };
        // Otherwise the entries run again.
        let _ = timeout(LAST_TRIES_MAX, tries).await;
    }
}

impl Source for Receiver {
    async fn ended(&self, done: &[String], failed: &[String]) -> Result<(), String> {
        self.entries.lock().end(done, failed);
        let redis = self.connection.lock().clone();
        match redis {
            Some(mut redis) => self.acknowledge(&mut redis, done).await,
            None => Err("Redis: there is no connection".to_owned()),
        }
    }
}

/// The entries of a batch that runs. They are free again however it ends.
#[derive(Debug)]
struct InBatch {
    receiver: Arc<Receiver>,
    ids: Vec<String>,
}

impl Drop for InBatch {
    fn drop(&mut self) {
        self.receiver.entries.lock().free(&self.ids);
    }
}

/// Entries as the function gets them.
fn items(entries: &[StreamEntry], counts: &[(String, u32)], config: &RedisConfig) -> Vec<Item> {
    let items = entries.iter().filter_map(|entry| {
        let found = counts.iter().find(|(id, _)| *id == entry.id);
        let receives = found.map_or(1, |(_, count)| *count);
        let (mut fields, mut binary) = (Map::new(), Map::new());
        let mut bytes = ITEM_BYTES;
        for (name, value) in entry.fields.as_ref()? {
            bytes += name.len() + value.len();
            let name = String::from_utf8_lossy(name).into_owned();
            match std::str::from_utf8(value) {
                Ok(text) => add(&mut fields, name, text.to_owned()),
                Err(_) => add(&mut binary, name, STANDARD.encode(value)),
            }
        }
        let mut record = json!({
            "id": entry.id,
            "eventSource": "pilotlight:redis",
            "stream": config.stream,
            "group": config.group,
            "deliveryCount": receives,
            "fields": fields,
        });
        if !binary.is_empty() {
            record["binaryFields"] = Value::Object(binary);
        }
        Some(Item {
            id: entry.id.clone(),
            record,
            receives,
            bytes,
        })
    });
    items.collect()
}

/// Adds a field of an entry. An entry may have a name several times: then it has the list of its values.
fn add(fields: &mut Map<String, Value>, name: String, value: String) {
    match fields.entry(name) {
        Entry::Vacant(place) => _ = place.insert(json!(value)),
        Entry::Occupied(mut place) => match place.get_mut() {
            Value::Array(values) => values.push(json!(value)),
            first => *first = json!([first.take(), value]),
        },
    }
}

/// When an entry was added: ids begin with Unix milliseconds, unless the sender chose them.
fn added_ms(id: &str) -> Option<i64> {
    id.split_once('-')?.0.parse().ok()
}

/// The key of the mark with the consumer's name.
const CONSUMER: &str = "consumer";
/// How often entries of others are looked for.
const CLAIM_EVERY_MAX: Duration = Duration::from_secs(15);
/// From one read that finds nothing to the next one.
const EMPTY_MIN: Duration = Duration::from_secs(1);
/// The same, for entries that were delivered before: the server goes through them in parts.
const NOTHING_AGAIN: Duration = Duration::from_millis(10);
/// Entries whose deliveries are asked for at once.
const PENDING_MAX: usize = 1000;
/// About what a record takes besides its fields.
const ITEM_BYTES: usize = 256;
/// How long a task that ends tries to acknowledge what is done.
const LAST_TRIES_MAX: Duration = Duration::from_secs(10);
/// Between two of these tries.
const LAST_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
