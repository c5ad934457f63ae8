//! Asynchronous invocations: the table `[functions.NAME.async]` as typed and as checked, and what the control API shows of the queue.
//! Names and limits are those of AWS Lambda's event invoke configuration (`MaximumRetryAttempts`, `MaximumEventAgeInSeconds`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checks::{KeyProblem, in_range};
use crate::ids::FunctionName;
use crate::trigger;

/// The `[functions.NAME.async]` table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AsyncSpec {
    /// How often an invocation is repeated after an error of the function: 0 to 2. Default: 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// An invocation that is older is not begun any more, seconds: 60 to 21,600. Default: 21,600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<f64>,
    /// The wait before the first repetition, seconds; it is twice as long before the second. Default: 60.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_wait_s: Option<f64>,
    /// Where the record of a successful invocation goes: a function's name, `file:NAME`, `http(s)://URL`, `sqs:QUEUE_URL` or
    /// `redis:CONNECTION/STREAM`. Default: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success: Option<String>,
    /// Where the record of a failed invocation goes, when it is not repeated any more. Default: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<String>,
    /// Whether failed invocations are kept as dead letters. Default: true, and false with `on_failure`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<bool>,
}

/// How the asynchronous invocations of a function are run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsyncConfig {
    /// Repetitions after an error of the function.
    pub retries: u32,
    /// An older invocation is not begun any more.
    #[serde(rename = "max_age_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub max_age: Duration,
    /// The wait before the first repetition.
    #[serde(rename = "retry_wait_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub retry_wait: Duration,
    /// Where the record of a successful invocation goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub on_success: Option<Destination>,
    /// Where the record of a failed invocation goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub on_failure: Option<Destination>,
    /// Whether failed invocations are kept as dead letters.
    pub dead_letter: bool,
    /// Records only go to functions of the same owner: it was deployed with a token that is for one owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_only: bool,
}

impl Default for AsyncConfig {
    /// AWS Lambda's defaults; and what fails is kept.
    fn default() -> Self {
        Self {
            retries: RETRIES_MAX,
            max_age: Duration::from_secs(21_600),
            retry_wait: Duration::from_secs(60),
            on_success: None,
            on_failure: None,
            dead_letter: true,
            own_only: false,
        }
    }
}

impl AsyncConfig {
    /// Whether nothing was configured.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl AsyncSpec {
    /// Checks the keys and fills in the defaults. `can_run`: functions of this interface have events.
    pub(crate) fn check(&self, own_only: bool, can_run: bool) -> Result<AsyncConfig, KeyProblem> {
        if !can_run {
            let problem = "needs a function that takes events: interface asgi and wsgi do not";
            return Err(("async", problem.to_owned()));
        }
        let default = AsyncConfig::default();
        let retries = in_range(self.retries.unwrap_or(default.retries), 0, RETRIES_MAX)
            .map_err(|problem| ("async.retries", problem))?;
        let max_age = self.max_age_s.unwrap_or(default.max_age.as_secs_f64());
        let max_age =
            in_range(max_age, 60.0, 21_600.0).map_err(|problem| ("async.max_age_s", problem))?;
        let wait = self
            .retry_wait_s
            .unwrap_or(default.retry_wait.as_secs_f64());
        let wait =
            in_range(wait, 0.1, 3600.0).map_err(|problem| ("async.retry_wait_s", problem))?;
        let on_success = destination(self.on_success.as_deref(), "async.on_success")?;
        let on_failure = destination(self.on_failure.as_deref(), "async.on_failure")?;
        let is_sent = on_success.is_some() || on_failure.is_some();
        Ok(AsyncConfig {
            retries,
            max_age: Duration::from_secs_f64(max_age),
            retry_wait: Duration::from_secs_f64(wait),
            dead_letter: self.dead_letter.unwrap_or(on_failure.is_none()),
            on_success,
            on_failure,
            own_only: own_only && is_sent,
        })
    }
}

fn destination(text: Option<&str>, key: &'static str) -> Result<Option<Destination>, KeyProblem> {
    text.map(str::parse)
        .transpose()
        .map_err(|problem| (key, problem))
}

/// Where the record of an ended invocation goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Destination {
    /// A function, which is invoked asynchronously.
    Function(FunctionName),
    /// A file of this name in the function's folder of the data directory, one line of JSON per record.
    File(String),
    /// A URL, which gets a POST.
    Http(String),
    /// The URL of a queue with SQS's API.
    Sqs(String),
    /// A Redis stream.
    Redis {
        /// The operator's name of the Redis.
        connection: String,
        /// The stream's key.
        stream: String,
    },
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown: String = text.escape_debug().take(100).collect();
            format!(
                "is \"{shown}\", must be a function's name, or file:NAME with 1 to {FILE_NAME_LEN_MAX} of a-z A-Z 0-9 . - _ (the first is \
                 not a dot), or http(s)://URL, sqs:QUEUE_URL or redis:CONNECTION/STREAM"
            )
        };
        if let Some(name) = text.strip_prefix(FILE) {
            let fits = (1..=FILE_NAME_LEN_MAX).contains(&name.len())
                && !name.starts_with('.')
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
            return if fits {
                Ok(Self::File(name.to_owned()))
            } else {
                Err(wrong())
            };
        }
        if let Some(url) = text.strip_prefix(SQS) {
            let checked = trigger::check_queue_url(url);
            return checked.map(|()| Self::Sqs(url.to_owned()));
        }
        if let Some(place) = text.strip_prefix(REDIS) {
            let (connection, stream) = place.split_once('/').ok_or_else(wrong)?;
            trigger::check_word(connection)?;
            trigger::check_word(stream)?;
            return Ok(Self::Redis {
                connection: connection.to_owned(),
                stream: stream.to_owned(),
            });
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            let fits = text.len() <= URL_LEN_MAX
                && text.bytes().all(|byte| byte.is_ascii_graphic())
                && !text.contains(['@', '#', '\\']);
            return if fits {
                Ok(Self::Http(text.to_owned()))
            } else {
                Err(wrong())
            };
        }
        text.parse().map(Self::Function).map_err(|_| wrong())
    }
}

impl TryFrom<String> for Destination {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Destination> for String {
    fn from(destination: Destination) -> Self {
        destination.to_string()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => f.write_str(name.as_str()),
            Self::File(name) => write!(f, "{FILE}{name}"),
            Self::Http(url) => f.write_str(url),
            Self::Sqs(url) => write!(f, "{SQS}{url}"),
            Self::Redis { connection, stream } => write!(f, "{REDIS}{connection}/{stream}"),
        }
    }
}

/// How many invocations one list of the control API has at most.
pub const LISTED_MAX: u32 = 1000;

/// How many it has if nobody says how many.
pub const LISTED_DEFAULT: u32 = 100;

/// An asynchronous invocation, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsyncInfo {
    /// Its request id.
    pub id: String,
    /// The function.
    pub function: FunctionName,
    /// The version or alias that was asked for; left out: the live version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qualifier: Option<String>,
    /// For the record of an ended invocation that goes to no function: the destination, for example `file:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// `waiting`, `running` or `dead`.
    pub state: String,
    /// When it was accepted, Unix milliseconds.
    pub accepted_unix_ms: u64,
    /// When it is begun, or is tried again, at the earliest, Unix milliseconds.
    pub due_unix_ms: u64,
    /// Ended attempts of the function.
    pub attempts: u32,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Of a dead letter: why it is not tried any more: `RetriesExhausted`, `EventAgeExceeded`, `FunctionNotFound`, `Interrupted`,
    /// `RecursiveLoop` or `Forbidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What the last attempt failed of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An asynchronous invocation with its payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsyncShown {
    /// Everything else.
    #[serde(flatten)]
    pub info: AsyncInfo,
    /// The event.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub payload: serde_json::Value,
}

/// `POST /_pilot/v1/dlq/redrive` and `…/purge`: which dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadLetters {
    /// The one with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Those of this function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
}

/// The answer to [`DeadLetters`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLettersChanged {
    /// How many dead letters are waiting again, or are removed.
    pub changed: u64,
    /// How many stay as they are, because the queue has no room for them.
    #[serde(default)]
    pub left: u64,
}

/// What the queue has, and what it did since the daemon's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AsyncCounts {
    /// Invocations that wait, also for a repetition.
    pub waiting: u64,
    /// Running attempts.
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// Bytes of all payloads, and of what is kept beside them.
    pub bytes: u64,
    /// Age of the oldest invocation that waits or runs, seconds.
    pub oldest_age_s: u64,
    /// Accepted invocations.
    pub accepted: u64,
    /// Invocations that were refused because there was no room.
    pub refused: u64,
    /// Attempts that were followed by another one.
    pub retries: u64,
    /// Invocations that became dead letters.
    pub dead_total: u64,
    /// Failed invocations and dead letters that were not kept.
    pub dropped: u64,
}

/// Lambda's limit.
const RETRIES_MAX: u32 = 2;
const FILE: &str = "file:";
const SQS: &str = "sqs:";
const REDIS: &str = "redis:";
const URL_LEN_MAX: usize = 1024;
const FILE_NAME_LEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::FunctionSpec;

    fn checked(toml: &str) -> Result<AsyncConfig, String> {
        let toml = format!("handler = \"a.b\"\n{toml}");
        let spec: FunctionSpec = toml::from_str(&toml).map_err(|error| error.to_string())?;
        let config = spec.check(&"f".parse().unwrap());
        config
            .map(|config| config.asynchronous)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_lambdas_and_failures_are_kept() {
        let config = checked("").unwrap();
        assert!(config.is_default());
        assert_eq!((config.retries, config.max_age.as_secs()), (2, 21_600));
        assert!(config.dead_letter);
        let sent = checked("[async]\non_failure = \"file:failed.jsonl\"").unwrap();
        assert!(!sent.dead_letter, "it goes somewhere else");
    }

    #[test]
    fn a_wrong_value_names_its_key_and_what_is_allowed() {
        for (toml, problem) in [
            (
                "retries = 3",
                "functions.f.async.retries: is 3, must be from 0 to 2",
            ),
            (
                "max_age_s = 59",
                "functions.f.async.max_age_s: is 59, must be from 60 to 21600",
            ),
            ("retry_wait_s = 0", "functions.f.async.retry_wait_s"),
            (
                "on_success = \"file:../x\"",
                "functions.f.async.on_success: is \"file:../x\"",
            ),
            ("on_failure = \"file:.x\"", "functions.f.async.on_failure"),
            (
                "on_failure = \"a b\"",
                "must be a function's name, or file:NAME",
            ),
            ("on_error = \"x\"", "on_error"),
            ("on_failure = \"sqs:jobs\"", "must be the queue's URL"),
            ("on_failure = \"redis:main\"", "redis:CONNECTION/STREAM"),
            ("on_failure = \"https://u:p@host/\"", "must be a function"),
        ] {
            let found = checked(&format!("[async]\n{toml}")).unwrap_err();
            assert!(found.contains(problem), "{toml}: {found}");
        }
        let found = checked("interface = \"asgi\"\n[async]\nretries = 1").unwrap_err();
        assert!(found.contains("takes events"), "{found}");
    }
}
