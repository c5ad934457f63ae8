//! Triggers: the tables `[[functions.NAME.triggers]]` as typed and as checked, and what the control API shows of them.
//!
//! A trigger has a source, which is also its name: two triggers of a function with the same source are refused, and what is stored of a
//! trigger is stored under its source. So a deployment that changes another key does not begin anew.

mod faas;
mod schedule;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checks::{in_range, one_of};
use crate::ids::FunctionName;

pub use faas::FaasTrigger;
pub use schedule::{Calendar, InvalidCalendar, Times};

/// One table of `[[functions.NAME.triggers]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TriggerSpec {
    /// At the times of a calendar.
    Schedule(ScheduleSpec),
    /// For each file that is written in a folder.
    Folder(FolderSpec),
    /// For the messages of an SQS queue.
    Sqs(SqsSpec),
    /// For the entries of a Redis stream.
    Redis(RedisSpec),
    /// For the messages of an MQTT subscription.
    Mqtt(MqttSpec),
}

/// `type = "schedule"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// A cron expression: minute, hour, day of month, month, day of week; with six fields the first one is the second.
    pub cron: String,
    /// A name of the IANA time zone database. Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// What happens to runs that were missed: `skip`, `once` or `all`. Default: `once`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
}

/// `type = "folder"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FolderSpec {
    /// The folder, without the folders in it. A connection of the kind `folder` must contain it.
    pub path: String,
    /// Only files whose names end with this. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,
}

/// `type = "sqs"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SqsSpec {
    /// The queue's URL. A connection of the kind `sqs` must contain it.
    pub queue: String,
    /// Most messages of one invocation, 1 to 100. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u32>,
    /// How long a batch is gathered at most, seconds, 0 to 300. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_window_s: Option<f64>,
    /// Whether the function's answer says which messages failed (`batchItemFailures`). Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_batch_item_failures: Option<bool>,
    /// A message that was received more often becomes a dead letter, 1 to 1,000. Default: the queue's own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_receives: Option<u32>,
}

/// `type = "redis"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RedisSpec {
    /// The name of a connection of the kind `redis`.
    pub connection: String,
    /// The stream's key.
    pub stream: String,
    /// The consumer group; it is created. Default: `pilot-NAME` of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Most entries of one invocation, 1 to 100. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u32>,
    /// Whether the function's answer says which entries failed (`batchItemFailures`). Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_batch_item_failures: Option<bool>,
    /// Entries that a consumer has had for this long are taken over, seconds, 1 to 86,400. Default: 60, or the function's `timeout_s`
    /// and 30 if that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_idle_s: Option<f64>,
    /// An entry that was delivered more often becomes a dead letter, 1 to 1,000. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_receives: Option<u32>,
}

/// `type = "mqtt"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MqttSpec {
    /// The name of a connection of the kind `mqtt`.
    pub connection: String,
    /// The topic filter, with `+` and `#`; `$share/GROUP/FILTER` for a shared subscription.
    pub topic: String,
    /// The highest quality of service that is asked for: 0, 1 or 2. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
}

/// A checked trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TriggerConfig {
    /// At the times of a calendar.
    Schedule(ScheduleConfig),
    /// For each file that is written in a folder.
    Folder(FolderSpec),
    /// For the messages of an SQS queue.
    Sqs(SqsConfig),
    /// For the entries of a Redis stream.
    Redis(RedisConfig),
    /// For the messages of an MQTT subscription.
    Mqtt(MqttConfig),
}

/// When a function runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleConfig {
    /// The times.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub calendar: Calendar,
    /// What happens to missed runs.
    pub missed: Missed,
}

/// What happens to runs whose time passed while nobody could start them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Missed {
    /// None is made up for.
    Skip,
    /// The newest one is.
    Once,
    /// All are, the newest 100 at most.
    All,
}

impl Missed {
    const ALL: &[(&str, Self)] = &[
        ("skip", Self::Skip),
        ("once", Self::Once),
        ("all", Self::All),
    ];
}

/// An SQS queue, and how its messages are grouped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SqsConfig {
    /// Its URL.
    pub queue: String,
    /// Most messages of one invocation.
    pub batch_size: u32,
    /// How long a batch is gathered at most, milliseconds.
    pub batch_window_ms: u64,
    /// Whether the answer says which messages failed.
    pub report_batch_item_failures: bool,
    /// A message that was received more often becomes a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_receives: Option<u32>,
}

/// A Redis stream, and how its entries are grouped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RedisConfig {
    /// The connection's name.
    pub connection: String,
    /// The stream's key.
    pub stream: String,
    /// The consumer group.
    pub group: String,
    /// Most entries of one invocation.
    pub batch_size: u32,
    /// Whether the answer says which entries failed.
    pub report_batch_item_failures: bool,
    /// Entries that a consumer has had for this long are taken over, milliseconds.
    pub claim_idle_ms: u64,
    /// An entry that was delivered more often becomes a dead letter.
    pub max_receives: u32,
}

/// A subscription at an MQTT broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MqttConfig {
    /// The connection's name.
    pub connection: String,
    /// The topic filter.
    pub topic: String,
    /// The highest quality of service, 0 to 2.
    pub qos: u8,
}

impl TriggerConfig {
    /// The word of its `type`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Schedule(_) => "schedule",
            Self::Folder(_) => "folder",
            Self::Sqs(_) => "sqs",
            Self::Redis(_) => "redis",
            Self::Mqtt(_) => "mqtt",
        }
    }

    /// What it listens to, in one line. No other trigger of the function has the same.
    #[must_use]
    pub fn source(&self) -> String {
        match self {
            Self::Schedule(schedule) => schedule.calendar.to_string(),
            Self::Folder(folder) => match &folder.suffix {
                None => folder.path.clone(),
                Some(suffix) => format!("{}/*{suffix}", folder.path.trim_end_matches('/')),
            },
            Self::Sqs(sqs) => sqs.queue.clone(),
            Self::Redis(redis) => {
                format!("{}/{} {}", redis.connection, redis.stream, redis.group)
            }
            Self::Mqtt(mqtt) => format!("{}/{}", mqtt.connection, mqtt.topic),
        }
    }
}

/// Checks the triggers of a function. `can_run`: functions of this interface take events.
///
/// # Errors
/// Which trigger is wrong, and what is allowed.
pub(crate) fn check(
    specs: &[TriggerSpec],
    function: &FunctionName,
    timeout_s: f64,
    can_run: bool,
) -> Result<Vec<TriggerConfig>, String> {
    if specs.is_empty() {
        return Ok(Vec::new());
    }
    if !can_run {
        return Err(
            "needs a function that takes events: interface asgi and wsgi do not".to_owned(),
        );
    }
    if specs.len() > TRIGGERS_MAX {
        return Err(format!("has {}, at most {TRIGGERS_MAX}", specs.len()));
    }
    let mut checked: Vec<TriggerConfig> = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let at = |problem: String| format!("trigger {}: {problem}", index + 1);
        let one = spec.check(function, timeout_s).map_err(at)?;
        if let Some(twin) = checked
            .iter()
            .position(|other| other.kind() == one.kind() && other.source() == one.source())
        {
            let problem = format!("it has the same source as trigger {}", twin + 1);
            return Err(at(problem));
        }
        checked.push(one);
    }
    Ok(checked)
}

impl TriggerSpec {
    fn check(&self, function: &FunctionName, timeout_s: f64) -> Result<TriggerConfig, String> {
        Ok(match self {
            Self::Schedule(spec) => TriggerConfig::Schedule(spec.check()?),
            Self::Folder(spec) => TriggerConfig::Folder(spec.check()?),
            Self::Sqs(spec) => TriggerConfig::Sqs(spec.check()?),
            Self::Redis(spec) => TriggerConfig::Redis(spec.check(function, timeout_s)?),
            Self::Mqtt(spec) => TriggerConfig::Mqtt(spec.check()?),
        })
    }
}

impl ScheduleSpec {
    fn check(&self) -> Result<ScheduleConfig, String> {
        let zone = self.timezone.as_deref().unwrap_or("UTC");
        let calendar = Calendar::new(&self.cron, zone).map_err(|error| error.to_string())?;
        let missed = one_of(self.missed.as_deref(), Missed::Once, Missed::ALL)
            .map_err(|problem| format!("missed {problem}"))?;
        Ok(ScheduleConfig { calendar, missed })
    }
}

impl FolderSpec {
    fn check(&self) -> Result<Self, String> {
        let is_plain = self.path.starts_with('/')
            && self.path.len() <= TEXT_LEN_MAX
            && !self.path.contains('\0')
            && self.path.split('/').all(|part| part != "." && part != "..");
        if !is_plain {
            return Err(format!(
                "path is \"{}\", must begin with / and have no . or ..",
                shown(&self.path)
            ));
        }
        let suffix = self.suffix.as_deref().unwrap_or_default();
        if suffix.len() > 255 || suffix.contains(['/', '\0']) {
            return Err("suffix must be the end of a file's name".to_owned());
        }
        let path = match self.path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        Ok(Self {
            path: path.to_owned(),
            suffix: self.suffix.clone().filter(|suffix| !suffix.is_empty()),
        })
    }
}

impl SqsSpec {
    fn check(&self) -> Result<SqsConfig, String> {
        check_queue_url(&self.queue).map_err(|problem| format!("queue {problem}"))?;
        let window = in_range(self.batch_window_s.unwrap_or(0.0), 0.0, 300.0)
            .map_err(|problem| format!("batch_window_s {problem}"))?;
        Ok(SqsConfig {
            queue: self.queue.clone(),
            batch_size: batch_size(self.batch_size)?,
            batch_window_ms: milliseconds(window),
            report_batch_item_failures: self.report_batch_item_failures.unwrap_or(false),
            max_receives: self.max_receives.map(max_receives).transpose()?,
        })
    }
}

impl RedisSpec {
    fn check(&self, function: &FunctionName, timeout_s: f64) -> Result<RedisConfig, String> {
        let group = self.group.clone();
        let group = group.unwrap_or_else(|| format!("pilot-{function}"));
        for (key, text) in [
            ("connection", &self.connection),
            ("stream", &self.stream),
            ("group", &group),
        ] {
            check_word(text).map_err(|problem| format!("{key} {problem}"))?;
        }
        let idle_s = self.claim_idle_s.unwrap_or(60.0_f64.max(timeout_s + 30.0));
        let idle_s =
            in_range(idle_s, 1.0, 86_430.0).map_err(|problem| format!("claim_idle_s {problem}"))?;
        if idle_s < timeout_s {
            return Err(format!(
                "claim_idle_s is {idle_s}, must be longer than the function's timeout_s ({timeout_s}): an entry would run twice at the \
                 same time"
            ));
        }
        Ok(RedisConfig {
            connection: self.connection.clone(),
            stream: self.stream.clone(),
            group,
            batch_size: batch_size(self.batch_size)?,
            report_batch_item_failures: self.report_batch_item_failures.unwrap_or(false),
            claim_idle_ms: milliseconds(idle_s),
            max_receives: max_receives(self.max_receives.unwrap_or(5))?,
        })
    }
}

impl MqttSpec {
    fn check(&self) -> Result<MqttConfig, String> {
        check_word(&self.connection).map_err(|problem| format!("connection {problem}"))?;
        check_topic_filter(&self.topic)?;
        let qos = in_range(self.qos.unwrap_or(1), 0, 2);
        Ok(MqttConfig {
            connection: self.connection.clone(),
            topic: self.topic.clone(),
            qos: qos.map_err(|problem| format!("qos {problem}"))?,
        })
    }
}

/// A topic filter (MQTT 5, sections 4.7 and 4.8.2).
fn check_topic_filter(topic: &str) -> Result<(), String> {
    let wrong = |problem: &str| Err(format!("topic is \"{}\": {problem}", shown(topic)));
    if !(1..=TEXT_LEN_MAX).contains(&topic.len()) || topic.contains(char::is_control) {
        return wrong(&format!(
            "must have 1 to {TEXT_LEN_MAX} bytes and no control characters"
        ));
    }
    let filter = match topic.strip_prefix("$share/") {
        None => topic,
        Some(shared) => match shared.split_once('/') {
            Some((group, filter))
                if !group.is_empty() && !group.contains(['+', '#']) && !filter.is_empty() =>
            {
                filter
            }
            _ => return wrong("a shared subscription is $share/GROUP/FILTER"),
        },
    };
    let levels: Vec<&str> = filter.split('/').collect();
    let last = levels.len() - 1;
    for (at, level) in levels.iter().enumerate() {
        let is_wildcard = *level == "+" || (*level == "#" && at == last);
        if level.contains(['+', '#']) && !is_wildcard {
            return wrong("+ must be a whole level, and # the whole last level");
        }
    }
    Ok(())
}

/// A queue's URL: `http://HOST/…/NAME` or `https://…`, without a user, a query or a fragment.
pub(crate) fn check_queue_url(url: &str) -> Result<(), String> {
    let rest = ["https://", "http://"]
        .into_iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let fits = url.len() <= TEXT_LEN_MAX
        && url.bytes().all(|byte| byte.is_ascii_graphic())
        && rest.is_some_and(|rest| {
            !rest.contains(['?', '#', '@', '\\', '%', '"'])
                && rest.split_once('/').is_some_and(|(host, path)| {
                    !host.is_empty()
                        && path
                            .split('/')
                            .all(|part| !part.is_empty() && part != "." && part != "..")
                })
        });
    if fits {
        return Ok(());
    }
    Err(format!(
        "is \"{}\", must be the queue's URL, http(s)://HOST/ACCOUNT/NAME",
        shown(url)
    ))
}

/// A name that goes into a command of a store.
pub(crate) fn check_word(text: &str) -> Result<(), String> {
    let fits = (1..=512).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits {
        return Ok(());
    }
    Err(format!(
        "is \"{}\", must have 1 to 512 visible characters of ASCII",
        shown(text)
    ))
}

fn batch_size(asked: Option<u32>) -> Result<u32, String> {
    in_range(asked.unwrap_or(10), 1, 100).map_err(|problem| format!("batch_size {problem}"))
}

fn max_receives(asked: u32) -> Result<u32, String> {
    in_range(asked, 1, 1000).map_err(|problem| format!("max_receives {problem}"))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "in_range bounds the seconds"
)]
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

fn shown(text: &str) -> String {
    text.escape_debug().take(200).collect()
}

/// A trigger, as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TriggerInfo {
    /// The function.
    pub function: FunctionName,
    /// `schedule`, `folder`, `sqs`, `redis` or `mqtt`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it listens to.
    pub source: String,
    /// What it does.
    pub state: TriggerState,
    /// How far it is behind: a schedule's overdue run, or the age of the oldest message that is known to wait, seconds. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_s: Option<f64>,
    /// Messages, entries or files that wait at the source. `None`: unknown, or a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Runs, files, messages or entries that it received since the daemon's start or since it was deployed.
    pub received: u64,
    /// Failures of the source, of batches and of single items since then.
    pub errors: u64,
    /// When it last made the function run, or queued that, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_unix_ms: Option<u64>,
    /// When it runs next, Unix milliseconds. Only a schedule knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run_unix_ms: Option<u64>,
    /// The last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When that was, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_unix_ms: Option<u64>,
}

/// What a trigger does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TriggerState {
    /// It has not reached its source yet.
    #[default]
    Starting,
    /// It listens.
    Active,
    /// Its source cannot be reached, or what it gets cannot be handed on; it tries again.
    Failing,
    /// The operator does not let the function use the source. It does not try again before the next deployment or start.
    Refused,
}

impl fmt::Display for TriggerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Starting => "starting",
            Self::Active => "active",
            Self::Failing => "failing",
            Self::Refused => "refused",
        })
    }
}

/// Of one function.
const TRIGGERS_MAX: usize = 16;
const TEXT_LEN_MAX: usize = 1024;

#[cfg(test)]
mod tests;
