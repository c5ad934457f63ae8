//! Redis servers that an initscript asks without a store, as in `redis`: without a password and without TLS.
//!
//! For each request, the name is resolved and its addresses are checked, see `networks`. What is kept for the next one belongs to
//! the address that was checked, not to the name.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::initscript::Endpoint;
use pilot_model::ports::{InputFaultKind as Kind, StoreObject};
use tokio::time::{Instant, sleep};

use super::redis::RedisStore;
use super::{Got, Store, StoreError, Validator};
use crate::networks::Networks;

/// The servers.
#[derive(Debug)]
pub(crate) struct DirectRedis {
    networks: Networks,
    kept: Arc<Kept>,
}

impl DirectRedis {
    pub(crate) fn new(networks: Networks) -> Self {
        Self {
            networks,
            kept: Arc::default(),
        }
    }

    /// A server by its name, or by its address.
    pub(crate) fn at(&self, endpoint: &Endpoint) -> Arc<dyn Store> {
        Arc::new(OneServer {
            networks: self.networks.clone(),
            kept: Arc::clone(&self.kept),
            host: endpoint.host().to_owned(),
            port: endpoint.port_or_usual().unwrap_or_default(),
        })
    }
}

/// Servers that have been asked lately, with their connections. The lock is held for one change.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Server>>);

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    store: Arc<RedisStore>,
    used: Instant,
}

impl Kept {
    /// The server at an address. It is the last one of the list then.
    fn at(self: &Arc<Self>, address: SocketAddr) -> Arc<RedisStore> {
        let mut servers = self.0.lock();
        if servers.is_empty() {
            tokio::spawn(Self::give_up(Arc::downgrade(self)));
        }
        let known = servers.iter().position(|server| server.address == address);
        let store = match known {
            Some(known) => servers.remove(known).store,
            None => Arc::new(RedisStore::plain(address, IDLE_MAX)),
        };
        if servers.len() == SERVERS_MAX {
            servers.remove(0);
        }
        servers.push(Server {
            address,
            store: Arc::clone(&store),
            used: Instant::now(),
        });
        store
    }

    /// Closes the connections to servers that nobody asks any more, until there are none.
    async fn give_up(kept: Weak<Self>) {
        loop {
            sleep(AGE_MAX / 4).await;
            let Some(kept) = kept.upgrade() else {
                return;
            };
            let mut servers = kept.0.lock();
            servers.retain(|server| server.used.elapsed() < AGE_MAX);
            if servers.is_empty() {
                return;
            }
        }
    }
}

/// A Redis whose name is resolved and checked for each request.
#[derive(Debug)]
struct OneServer {
    networks: Networks,
    kept: Arc<Kept>,
    host: String,
    port: u16,
}

impl Store for OneServer {
    /// A connection that was kept may be broken without a sign of it.
    fn retries(&self) -> u32 {
        1
    }

    fn named(&self, key: &str, _: &[(String, String)]) -> Option<StoreObject> {
        Some(StoreObject::Redis {
            host: self.host.clone(),
            port: self.port,
            database: 0,
            key: key.to_owned(),
        })
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let unavailable = |problem: &str| StoreError::new(Kind::Unavailable, problem);
            let host = self.host.trim_matches(['[', ']']);
            let found = self.networks.resolve(host, self.port).await;
            let found = found.map_err(|error| unavailable(&error.to_string()))?;
            let Some(address) = found.first() else {
                return Err(unavailable("the name has no address"));
            };
            self.kept.at(*address).get(key, known).await
        })
    }
}

/// Servers of which connections are kept, and idle connections of one.
const SERVERS_MAX: usize = 32;
const IDLE_MAX: usize = 8;
/// How long after their last request.
const AGE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
