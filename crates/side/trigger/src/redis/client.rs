//! Commands of Redis streams, and their answers as types. Whatever a server answers is read with care: it may be anything, and of any
//! length.

use std::sync::Arc;
use std::time::Duration;

use pilot_dial::{Capped, Security, dial};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, Value,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A Redis.
#[derive(Clone)]
pub struct RedisAccess {
    /// `redis://HOST:PORT/DATABASE`, or `rediss://…` over TLS.
    pub url: String,
    /// The user. `None`: the default one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// Certificates of authorities in PEM, instead of the system's.
    pub ca_pem: Option<Vec<u8>>,
}

impl std::fmt::Debug for RedisAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisAccess")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    /// Reads and writes. Ends with the last clone.
    _task: Arc<JoinSet<()>>,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redis")
    }
}

/// An entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamEntry {
    pub(crate) id: String,
    /// `None`: it was deleted from the stream.
    pub(crate) fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Redis {
    /// # Errors
    /// The configuration is wrong, or the server does not answer. For people.
    pub(crate) async fn connect(access: &RedisAccess) -> Result<Self, String> {
        let server = Server::of(access)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(SILENCE_MAX));
        let connected = timeout(CONNECT_MAX, async {
            let dialled = dial(&server.host, server.port, &server.security).await;
            let stream = dialled.map_err(|error| format!("Redis: {error}"))?;
            let stream = Capped::new(stream, ANSWER_BYTES_MAX, TOO_LONG);
            let begun = MultiplexedConnection::new_with_config(&server.settings, stream, config);
            begun.await.map_err(|error| shown(&error))
        });
        let connected = connected.await.map_err(|_| {
            let seconds = CONNECT_MAX.as_secs();
            format!("Redis: {} does not answer within {seconds} s", access.url)
        });
        let (connection, driver) = connected??;
        let mut task = JoinSet::new();
        task.spawn(driver);
        Ok(Self {
            connection,
            _task: Arc::new(task),
        })
    }

    /// Creates the group, and the stream if there is none. The group gets what is in the stream already.
    pub(crate) async fn create_group(&mut self, stream: &str, group: &str) -> Result<(), String> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(stream).arg(group).arg("0");
        match self.ask_raw(command.arg("MKSTREAM")).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            Err(error) => Err(shown(&error)),
        }
    }

    /// Entries for this consumer: new ones with `>`, otherwise those that it got earlier and did not acknowledge, after this id.
    pub(crate) async fn read(
        &mut self,
        (stream, group, consumer): (&str, &str, &str),
        after: &str,
        count: u32,
    ) -> Result<Vec<StreamEntry>, String> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(group).arg(consumer);
        command.arg("COUNT").arg(count);
        if after == NEW {
            command.arg("BLOCK").arg(BLOCK_MS);
        }
        command.arg("STREAMS").arg(stream).arg(after);
        let answer = self.ask(&command).await?;
        // [[stream, [entry, …]]], or nil.
        Ok(list(&answer)
            .first()
            .and_then(|one| list(one).get(1))
            .map(|answer| entries(answer, count))
            .unwrap_or_default())
    }

    /// Takes over entries that a consumer has had for this long. Returns where to go on (`0-0`: from the beginning), and the entries.
    pub(crate) async fn claim(
        &mut self,
        (stream, group, consumer): (&str, &str, &str),
        idle_ms: u64,
        start: &str,
        count: u32,
    ) -> Result<(String, Vec<StreamEntry>), String> {
        let mut command = redis::cmd("XAUTOCLAIM");
        command.arg(stream).arg(group).arg(consumer).arg(idle_ms);
        let answer = self.ask(command.arg(start).arg("COUNT").arg(count)).await?;
        let parts = list(&answer);
        let next = parts.first().and_then(text);
        let next = next.unwrap_or_else(|| "0-0".to_owned());
        let entries = parts.get(1).map(|answer| entries(answer, count));
        Ok((next, entries.unwrap_or_default()))
    }

    /// How often each of these entries was delivered.
    pub(crate) async fn deliveries(
        &mut self,
        stream: &str,
        group: &str,
        (first, last): (&str, &str),
        count: usize,
    ) -> Result<Vec<(String, u32)>, String> {
        let mut command = redis::cmd("XPENDING");
        command.arg(stream).arg(group).arg(first).arg(last);
        let answer = self.ask(command.arg(count)).await?;
        // [[id, consumer, idle, deliveries], …]
        let rows = list(&answer).iter().filter_map(|row| {
            let row = list(row);
            let count = number(row.get(3)?)?;
            Some((
                text(row.first()?)?,
                u32::try_from(count).unwrap_or(u32::MAX),
            ))
        });
        Ok(rows.take(count).collect())
    }

    /// These entries are done.
    pub(crate) async fn acknowledge(
        &mut self,
        stream: &str,
        group: &str,
        ids: &[String],
    ) -> Result<(), String> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("XACK");
        self.ask(command.arg(stream).arg(group).arg(ids))
            .await
            .map(drop)
    }

    /// Entries that the group has not got yet, and those that are not acknowledged. `None`: the server does not say.
    pub(crate) async fn waiting(
        &mut self,
        stream: &str,
        group: &str,
    ) -> Result<Option<u64>, String> {
        let answer = self
            .ask(redis::cmd("XINFO").arg("GROUPS").arg(stream))
            .await?;
        for one in list(&answer) {
            let pairs = list(one);
            let value = |key: &str| {
                let at = pairs
                    .iter()
                    .step_by(2)
                    .position(|name| text(name).as_deref() == Some(key));
                pairs.get(at? * 2 + 1)
            };
            if value("name").and_then(text).as_deref() == Some(group) {
                let lag = value("lag").and_then(number);
                let pending = value("pending").and_then(number);
                return Ok(lag.map(|lag| lag + pending.unwrap_or(0)));
            }
        }
        Ok(None)
    }

    /// Adds an entry.
    pub(crate) async fn add(
        &mut self,
        stream: &str,
        fields: [(&str, &[u8]); 2],
    ) -> Result<(), String> {
        let mut command = redis::cmd("XADD");
        command.arg(stream).arg("*");
        for (name, value) in fields {
            command.arg(name).arg(value);
        }
        self.ask(&command).await.map(drop)
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Value, String> {
        self.ask_raw(command).await.map_err(|error| shown(&error))
    }

    async fn ask_raw(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        command.query_async(&mut self.connection).await
    }
}

/// Where a server is, and what it is told first.
struct Server {
    host: String,
    port: u16,
    security: Security,
    settings: RedisConnectionInfo,
}

impl Server {
    fn of(access: &RedisAccess) -> Result<Self, String> {
        let info = access.url.as_str().into_connection_info();
        let info = info.map_err(|error| format!("url: {error}"))?;
        let (host, port, security) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (host.clone(), *port, Security::Plain),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                let problem = "url: \"insecure\" would accept any certificate: use ca_file";
                return Err(problem.to_owned());
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let ca_pem = access.ca_pem.clone();
                (host.clone(), *port, Security::Tls { ca_pem })
            }
            _ => return Err("url: must be redis:// or rediss://".to_owned()),
        };
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &access.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &access.password {
            settings = settings.set_password(password);
        }
        Ok(Self {
            host,
            port,
            security,
            settings,
        })
    }
}

/// At most this many entries, whatever the server sends.
fn entries(answer: &Value, count: u32) -> Vec<StreamEntry> {
    let asked = usize::try_from(count).unwrap_or(usize::MAX);
    let entries = list(answer).iter().take(asked).filter_map(|entry| {
        let parts = list(entry);
        let fields = match parts.get(1) {
            Some(Value::Array(words)) => {
                let words: Vec<Vec<u8>> = words.iter().filter_map(bytes).collect();
                let pairs = words.chunks_exact(2);
                Some(
                    pairs
                        .filter_map(|pair| Some((pair.first()?.clone(), pair.get(1)?.clone())))
                        .collect(),
                )
            }
            _ => None,
        };
        Some(StreamEntry {
            id: text(parts.first()?)?,
            fields,
        })
    });
    entries.collect()
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        _ => &[],
    }
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    bytes(value).and_then(|bytes| String::from_utf8(bytes).ok())
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn shown(error: &RedisError) -> String {
    let text: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
    format!("Redis: {text}")
}

/// The id of what no consumer of the group has got.
pub(crate) const NEW: &str = ">";
/// How long the server waits for new entries.
const BLOCK_MS: u64 = 5000;
/// More than any batch that fits into an event, Lambda's 6 MB.
const ANSWER_BYTES_MAX: usize = 12 << 20;
const TOO_LONG: &str = "the answer has more than 12 MiB: lower batch_size";
/// Of a server's own error.
const ERROR_CHARS_MAX: usize = 400;
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longer than the server waits.
const SILENCE_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn answers_are_read_whatever_they_are() {
        let entry = Value::Array(vec![
            word("1-0"),
            Value::Array(vec![word("a"), word("1"), word("odd")]),
        ]);
        let deleted = Value::Array(vec![word("2-0"), Value::Nil]);
        let strange = Value::Array(vec![Value::Nil]);
        let answer = Value::Array(vec![entry, deleted, strange, Value::Okay]);
        let read = entries(&answer, 4);
        let fields = Some(vec![(b"a".to_vec(), b"1".to_vec())]);
        assert_eq!(
            read,
            [
                StreamEntry {
                    id: "1-0".to_owned(),
                    fields
                },
                StreamEntry {
                    id: "2-0".to_owned(),
                    fields: None
                }
            ]
        );
        assert!(entries(&Value::Nil, 1).is_empty());
        assert_eq!(entries(&answer, 1).len(), 1);
    }
}
