//! A consumer group of a Redis stream. The stream is durable, so the function is invoked directly, and an entry is acknowledged when it
//! is done. What failed, and what a dead consumer had, is taken over after a time, until `max_receives` ends that.
//!
//! The consumer's name is kept with the trigger, so a daemon that comes back finds what it had.

pub(crate) mod client;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use pilot_model::trigger::RedisConfig;
use serde_json::map::Entry;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::batch::{self, Item, Reports, Rules, Source};
use crate::context::Context;
use client::{NEW, Redis, RedisAccess, StreamEntry};

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
        running: Mutex::default(),
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
}

#[derive(Debug)]
struct Receiver {
    config: RedisConfig,
    consumer: String,
    context: Context,
    /// The entries that run now, which are not taken over. Held for one look or one change.
    running: Mutex<BTreeSet<String>>,
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
        // It works once something was read: what this consumer has may be what made the last connection fail.
        let mut own = Some("0".to_owned());
        let (mut claimed_at, mut start) = (None::<Instant>, "0-0".to_owned());
        loop {
            if !self.has_place(context, batches).await? {
                return Ok(());
            }
            let is_time = claimed_at.is_none_or(|at| at.elapsed() >= self.claim_every());
            let count = self.config.batch_size;
            let entries = if let Some(after) = own.take() {
                let entries = redis.read(self.place(), &after, count).await?;
                own = entries.last().map(|entry| entry.id.clone());
                entries
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
                claimed.1
            } else {
                let asked_at = Instant::now();
                let entries = tokio::select! {
                    // What arrives in this moment is this consumer's, which gets it at the next start.
                    () = context.stopped() => return Ok(()),
                    entries = reader.read(self.place(), NEW, count) => entries?,
                };
                let items = items(&entries, &[], &self.config);
                context.works();
                if items.is_empty() {
                    // A server that does not wait for entries would be asked without end.
                    let early = EMPTY_MIN.saturating_sub(asked_at.elapsed());
                    context.pause(early).await;
                }
                self.begin(items, &redis, batches);
                continue;
            };
            let items = self.again(&mut redis, entries).await?;
            context.works();
            if items.is_empty() {
                context.pause(NOTHING_AGAIN).await;
            }
            self.begin(items, &redis, batches);
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
        let running = self.running.lock();
        let oldest = running.iter().map(String::as_str);
        let oldest = oldest.chain(entries.iter().map(|entry| entry.id.as_str()));
        self.context
            .status
            .waits(waiting, oldest.filter_map(added_ms).min());
    }

    /// Entries that were delivered before, without those that run now.
    async fn again(
        &self,
        redis: &mut Redis,
        mut entries: Vec<StreamEntry>,
    ) -> Result<Vec<Item>, String> {
        {
            let running = self.running.lock();
            entries.retain(|entry| !running.contains(&entry.id));
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
        Ok(items(&entries, &counts, &self.config))
    }

    fn begin(
        self: &Arc<Self>,
        items: Vec<Item>,
        redis: &Redis,
        batches: &mut JoinSet<Result<(), String>>,
    ) {
        if items.is_empty() {
            return;
        }
        self.context.status.received(items.len() as u64);
        let ids: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
        self.running.lock().extend(ids.iter().cloned());
        let batch = InBatch {
            receiver: Arc::clone(self),
            ids,
        };
        let redis = redis.clone();
        batches.spawn(async move {
            let batch = batch;
            batch.receiver.process(items, redis).await
        });
    }

    /// Runs a batch, and acknowledges what is done.
    async fn process(&self, items: Vec<Item>, redis: Redis) -> Result<(), String> {
        let config = &self.config;
        let rules = Rules {
            reports: Reports::of(config.report_batch_item_failures),
            receives_max: Some(config.max_receives),
        };
        let source = Acknowledges { config, redis };
        batch::run(&self.context, items, rules, &source).await
    }
}

/// Acknowledges the entries of a batch.
#[derive(Debug)]
struct Acknowledges<'a> {
    config: &'a RedisConfig,
    redis: Redis,
}

impl Source for Acknowledges<'_> {
    async fn ended(&self, done: &[String], _: &[String]) -> Result<(), String> {
        let RedisConfig { stream, group, .. } = self.config;
        self.redis.clone().acknowledge(stream, group, done).await
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
        let mut running = self.receiver.running.lock();
        for id in &self.ids {
            running.remove(id);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_becomes_a_record_and_a_deleted_one_does_not() {
        let config = RedisConfig {
            connection: "main".to_owned(),
            stream: "orders".to_owned(),
            group: "g".to_owned(),
            batch_size: 10,
            report_batch_item_failures: false,
            claim_idle_ms: 1000,
            max_receives: 5,
        };
        let entries = [
            StreamEntry {
                id: "5-1".to_owned(),
                fields: Some(vec![
                    (b"a".to_vec(), b"1".to_vec()),
                    (b"b".to_vec(), vec![255]),
                    (b"c".to_vec(), b"1".to_vec()),
                    (b"b".to_vec(), vec![254]),
                    (b"c".to_vec(), b"2".to_vec()),
                    (b"c".to_vec(), b"2".to_vec()),
                ]),
            },
            StreamEntry {
                id: "6-0".to_owned(),
                fields: None,
            },
        ];
        let items = items(&entries, &[("5-1".to_owned(), 3)], &config);
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].receives, 3);
        assert_eq!(
            items[0].record["fields"],
            json!({"a": "1", "c": ["1", "2", "2"]})
        );
        let binary = &items[0].record["binaryFields"];
        assert_eq!(binary, &json!({"b": ["/w==", "/g=="]}));
        assert_eq!(added_ms("5-1"), Some(5));
    }
}
