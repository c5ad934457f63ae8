//! Redis and servers with its protocol, by the crate `redis`: the values of string keys, and entries of streams.
//!
//! A value is read in parts, so that the daemon never holds a second copy of it. The key is watched meanwhile: if it changes, the
//! fetch begins again (Redis, "Transactions", WATCH).

mod entries;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use pilot_dial::{Capped, DialError, Security, dial};
use pilot_model::BoxFuture;
use pilot_model::inputs::Location;
use pilot_model::ports::{InputFaultKind as Kind, StoreObject};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, ServerErrorKind, Value,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::entries::{Entries, Range};
use super::{Got, Object, Store, StoreError, Validator};

/// A server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://HOST:PORT/DATABASE`, or `rediss://…` over TLS.
    pub url: String,
    /// The user. `None`: the default one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// Certificates of authorities in PEM, instead of the system's.
    pub ca_pem: Option<Vec<u8>>,
}

impl std::fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisConfig")
            .field("url", &self.url)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// A server, and the connections to it that nobody uses.
#[derive(Debug, Clone)]
pub(crate) struct RedisStore {
    host: String,
    port: u16,
    security: Security,
    /// The database, and who the daemon is.
    settings: RedisConnectionInfo,
    idle: Arc<Mutex<Vec<Connection>>>,
    idle_max: usize,
    connections: Arc<Semaphore>,
    /// The longest input.
    bytes_max: u64,
}

impl RedisStore {
    /// `bytes_max`: the longest input.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub(crate) fn open(config: &RedisConfig, bytes_max: u64) -> Result<Self, String> {
        let url = |error: RedisError| format!("url: {error}");
        let info = config.url.as_str().into_connection_info().map_err(url)?;
        let (host, port, security) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (host.clone(), *port, Security::Plain),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                let problem = "url: \"insecure\" would accept any certificate: use ca_file";
                return Err(problem.to_owned());
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let ca_pem = config.ca_pem.clone();
                (host.clone(), *port, Security::Tls { ca_pem })
            }
            _ => return Err("url: must be redis:// or rediss://".to_owned()),
        };
        security.check()?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &config.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &config.password {
            settings = settings.set_password(password);
        }
        Ok(Self {
            host,
            port,
            security,
            settings,
            idle: Arc::default(),
            idle_max: CONNECTIONS_MAX,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            bytes_max,
        })
    }

    /// A server without a password and TLS, of whose connections at most `idle_max` are kept.
    pub(super) fn plain(address: SocketAddr, idle_max: usize) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
            security: Security::Plain,
            settings: RedisConnectionInfo::default(),
            idle: Arc::default(),
            idle_max,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            // A script has a time of its own.
            bytes_max: u64::MAX,
        }
    }

    async fn connection(&self) -> Result<Lent, StoreError> {
        let permit = Arc::clone(&self.connections).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::new(Kind::Unavailable, "it is closed"))?;
        let connection = match self.idle() {
            Some(connection) => connection,
            None => {
                let connected = timeout(CONNECT_MAX, self.connect()).await;
                connected.map_err(|_| {
                    StoreError::new(Kind::Unavailable, "it does not answer in time")
                })??
            }
        };
        Ok(Lent {
            connection,
            idle: Arc::clone(&self.idle),
            idle_max: self.idle_max,
            _permit: permit,
        })
    }

    async fn entries(&self, range: Range) -> Result<Got, StoreError> {
        let mut lent = self.connection().await?;
        let asked = redis::cmd("TYPE")
            .arg(&range.key)
            .query_async(&mut lent.connection.requests)
            .await;
        let kind: String = asked.map_err(|error| failed(&error))?;
        match kind.as_str() {
            "stream" => {}
            "none" => return Err(StoreError::new(Kind::NotFound, "there is no such key")),
            other => {
                let problem = format!("it is a {other}, and ?stream is for streams");
                return Err(StoreError::new(Kind::Key, &problem));
            }
        }
        let entries = Entries::begin(self.clone(), lent, range).await?;
        Ok(Got::Object(Object {
            len: None,
            validator: None,
            headers: Vec::new(),
            body: stream::try_unfold(entries, Entries::next).boxed(),
        }))
    }

    /// A connection that nobody uses, and that the server has not closed meanwhile.
    fn idle(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle.lock().pop()?;
            if connection.task.try_join_next().is_none() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<Connection, StoreError> {
        let dialled = dial(&self.host, self.port, &self.security).await;
        let stream = dialled
            .map_err(|error: DialError| StoreError::new(Kind::Unavailable, &error.to_string()))?;
        let stream = Capped::new(stream, ANSWER_BYTES_MAX, TOO_LONG);
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(SILENCE_MAX));
        let begun = MultiplexedConnection::new_with_config(&self.settings, stream, config).await;
        let (requests, driver) = begun.map_err(|error| failed(&error))?;
        let mut task = JoinSet::new();
        task.spawn(driver);
        Ok(Connection { requests, task })
    }
}

/// A connection.
struct Connection {
    requests: MultiplexedConnection,
    /// Reads and writes. Ends with the connection.
    task: JoinSet<()>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

/// A connection that serves one fetch. Unless it is given back, it is closed: somebody may still be waiting on it.
struct Lent {
    connection: Connection,
    idle: Arc<Mutex<Vec<Connection>>>,
    idle_max: usize,
    _permit: OwnedSemaphorePermit,
}

impl Lent {
    fn give_back(self) {
        let mut idle = self.idle.lock();
        if idle.len() < self.idle_max {
            idle.push(self.connection);
        }
    }
}

impl Store for RedisStore {
    fn retries(&self) -> u32 {
        4
    }

    fn places(&self) -> Option<usize> {
        Some(CONNECTIONS_MAX)
    }

    fn check(&self, location: &Location) -> Result<(), String> {
        entries::check(&location.key_with(entries::VALUE))
    }

    fn check_key(&self, location: &Location, key: &str) -> Result<(), String> {
        entries::check_key(&location.key_with(entries::VALUE), key)
    }

    fn named(&self, key: &str, _: &[(String, String)]) -> Option<StoreObject> {
        // No client asks for a stream as an input has it.
        let is_string = Range::of(key) == Ok(None);
        is_string.then(|| StoreObject::Redis {
            host: self.host.clone(),
            port: self.port,
            database: self.settings.db(),
            key: key.to_owned(),
        })
    }

    /// Redis knows nothing that tells one value from another, so `known` is never asked for.
    fn get<'a>(
        &'a self,
        key: &'a str,
        _: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let range = Range::of(key).map_err(|problem| StoreError::new(Kind::Key, &problem))?;
            if let Some(range) = range {
                return self.entries(range).await;
            }
            let mut lent = self.connection().await?;
            let begun = redis::pipe()
                .cmd("WATCH")
                .arg(key)
                .ignore()
                .cmd("TYPE")
                .arg(key)
                .query_async(&mut lent.connection.requests)
                .await;
            let (kind,): (String,) = begun.map_err(|error| failed(&error))?;
            match kind.as_str() {
                "string" => {}
                "none" => return Err(StoreError::new(Kind::NotFound, "there is no such key")),
                "stream" => {
                    let problem = "it is a stream: put ?stream behind the key to get its entries";
                    return Err(StoreError::new(Kind::Key, problem));
                }
                other => {
                    let problem = format!("it is a {other}, must be a string");
                    return Err(StoreError::new(Kind::Key, &problem));
                }
            }
            let len = redis::cmd("STRLEN")
                .arg(key)
                .query_async(&mut lent.connection.requests)
                .await;
            let len: u64 = len.map_err(|error| failed(&error))?;
            let reading = Reading {
                lent,
                key: key.to_owned(),
                at: 0,
                len,
            };
            Ok(Got::Object(Object {
                len: Some(len),
                validator: None,
                headers: Vec::new(),
                body: stream::try_unfold(reading, Reading::next).boxed(),
            }))
        })
    }
}

/// A value of which a part has been read.
struct Reading {
    lent: Lent,
    key: String,
    at: u64,
    len: u64,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, StoreError> {
        let connection = &mut self.lent.connection.requests;
        if self.at < self.len {
            let last = (self.at + PART_LEN).min(self.len) - 1;
            let part = redis::cmd("GETRANGE")
                .arg(&self.key)
                .arg(self.at)
                .arg(last)
                .query_async(connection)
                .await;
            let part: Bytes = part.map_err(|error| failed(&error))?;
            if part.len() as u64 != last + 1 - self.at {
                return Err(changed());
            }
            self.at = last + 1;
            return Ok(Some((part, self)));
        }
        // Refused if the key was changed after WATCH. There is no command between: a server whose memory is used up queues none.
        let unchanged = redis::pipe()
            .cmd("MULTI")
            .ignore()
            .cmd("EXEC")
            .query_async(connection)
            .await;
        let (unchanged,): (Value,) = unchanged.map_err(|error| failed(&error))?;
        self.lent.give_back();
        match unchanged {
            Value::Nil => Err(changed()),
            _ => Ok(None),
        }
    }
}

fn changed() -> StoreError {
    StoreError::new(Kind::Unavailable, "it changed while it was read")
}

fn failed(error: &RedisError) -> StoreError {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            Kind::Denied
        }
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => Kind::Denied,
        _ => Kind::Unavailable,
    };
    let said = said(error);
    let problem = match error.kind() {
        _ if kind == Kind::Denied => format!("the store refuses the daemon's credentials: {said}"),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => {
            format!("it is on another server of a cluster, and a store is one server ({said})")
        }
        _ => said,
    };
    StoreError::new(kind, &problem)
}

/// What the server says, without the place of the command in the pipeline.
fn said(error: &RedisError) -> String {
    let text = error.to_string();
    match text.split_once("error: ") {
        Some((before, error)) if before.starts_with("Pipeline failure") => {
            let end = error.find("), (Index").or_else(|| error.rfind(")]"));
            error
                .get(..end.unwrap_or(error.len()))
                .unwrap_or(error)
                .to_owned()
        }
        _ => text,
    }
}

const CONNECTIONS_MAX: usize = 64;
const CONNECT_MAX: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(20);
const PART_LEN: u64 = 4 << 20;
/// A part, and what frames it.
const ANSWER_BYTES_MAX: usize = (4 << 20) + 1024;
const TOO_LONG: &str = "the server sends more than it was asked for";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// What is said of a server that answers each command of `TYPE` so.
    async fn told(answer: &'static str) -> StoreError {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let store = RedisStore::plain(server.local_addr().unwrap(), 1);
        tokio::spawn(async move {
            let (mut client, _) = server.accept().await.unwrap();
            let mut asked = Vec::new();
            while client.read_buf(&mut asked).await.unwrap() > 0 {
                let text = String::from_utf8_lossy(&asked).into_owned();
                let is_type = text.contains("TYPE");
                for _ in text.matches('*') {
                    client.write_all(b"+OK\r\n").await.unwrap();
                    if is_type {
                        client.write_all(answer.as_bytes()).await.unwrap();
                        break;
                    }
                }
                asked.clear();
            }
        });
        store.get("key", None).await.unwrap_err()
    }

    #[tokio::test]
    async fn what_a_server_says_is_told_without_the_librarys_words() {
        let found = told("-MOVED 3999 127.0.0.1:6381\r\n").await;
        assert!(
            found.problem.contains("on another server of a cluster")
                && found.problem.contains("3999 127.0.0.1:6381"),
            "{found:?}"
        );
        let found = told("-NOPERM no permission for 'type'\r\n").await;
        assert!(
            found.kind == Kind::Denied && found.problem.ends_with("no permission for 'type'"),
            "{found:?}"
        );
        let found = told("-LOADING the dataset\r\n").await;
        assert!(!found.problem.contains("Pipeline"), "{found:?}");
    }
}
