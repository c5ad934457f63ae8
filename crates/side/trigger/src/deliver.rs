//! Delivers records of ended invocations: to URLs, queues and streams that the operator named. The durable queue tries again what fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::asynchronous::Destination;
use pilot_model::ports::Deliver;
use pilot_model::{BoxFuture, FunctionName};
use reqwest::Client;

use crate::connections::{Connections, HttpAccess};
use crate::http::{self, Trust};
use crate::redis::client::Redis;
use crate::sqs;
use crate::sqs::client::Queue;

/// The destinations outside of the daemon.
#[derive(Debug)]
pub struct Delivery(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    /// For one look or one change.
    open: Mutex<Open>,
}

/// What is open, by the name of the connection, because several connections can lead to the same URL with other credentials.
#[derive(Debug, Default)]
struct Open {
    clients: HashMap<String, Client>,
    /// And by the URL.
    queues: HashMap<(String, String), Queue>,
    redis: HashMap<String, Redis>,
}

impl Delivery {
    /// Nothing is open yet.
    #[must_use]
    pub fn new(connections: Arc<Connections>) -> Self {
        Self(Arc::new(Inner {
            connections,
            open: Mutex::default(),
        }))
    }
}

impl Deliver for Delivery {
    fn deliver(
        &self,
        function: &FunctionName,
        destination: &Destination,
        id: &str,
        record: Bytes,
    ) -> BoxFuture<'static, Result<(), String>> {
        let inner = Arc::clone(&self.0);
        let (function, destination, id) = (function.clone(), destination.clone(), id.to_owned());
        Box::pin(async move {
            let delivered = inner.deliver(function.as_str(), &destination, &id, record);
            match tokio::time::timeout(DELIVERY_TIME_MAX, delivered).await {
                Ok(delivered) => delivered,
                Err(_) => Err(format!("{destination} did not answer in time")),
            }
        })
    }
}

impl Inner {
    async fn deliver(
        &self,
        function: &str,
        destination: &Destination,
        id: &str,
        record: Bytes,
    ) -> Result<(), String> {
        match destination {
            Destination::Http(url) => {
                self.post(self.connections.http(function, url)?, url, id, record)
                    .await
            }
            Destination::Sqs(url) => {
                let queue = self.queue(function, url)?;
                let record = String::from_utf8_lossy(&record);
                sqs::send(&queue, url, function, id, &record).await
            }
            Destination::Redis { connection, stream } => {
                let access = self.connections.redis(function, connection)?;
                let open = self.open.lock().redis.remove(connection);
                let mut redis = match open {
                    Some(redis) => redis,
                    None => Redis::connect(access).await?,
                };
                let fields = [("id", id.as_bytes()), ("record", &record[..])];
                redis.add(stream, fields).await?;
                // A connection that failed is not used again.
                self.open.lock().redis.insert(connection.clone(), redis);
                Ok(())
            }
            Destination::Function(_) | Destination::File(_) => {
                Err(format!("{destination} is in this daemon"))
            }
        }
    }

    fn queue(&self, function: &str, url: &str) -> Result<Queue, String> {
        let (connection, access) = self.connections.sqs(function, url)?;
        let of = (connection.to_owned(), url.to_owned());
        let known = self.open.lock().queues.get(&of).cloned();
        if let Some(queue) = known {
            return Ok(queue);
        }
        let queue = Queue::open(access, url)?;
        let mut open = self.open.lock();
        if open.queues.len() >= QUEUES_MAX {
            open.queues.clear();
        }
        open.queues.insert(of, queue.clone());
        Ok(queue)
    }

    async fn post(
        &self,
        (connection, access): (&str, &HttpAccess),
        url: &str,
        id: &str,
        record: Bytes,
    ) -> Result<(), String> {
        let known = self.open.lock().clients.get(connection).cloned();
        let client = match known {
            Some(client) => client,
            None => {
                let trust = Trust::of(access.ca_pem.as_deref())?;
                let client = http::client(&trust, DELIVERY_TIME_MAX)?;
                let mut open = self.open.lock();
                open.clients.insert(connection.to_owned(), client.clone());
                client
            }
        };
        let mut request = client
            .post(url)
            .header("content-type", "application/json")
            .header("idempotency-key", id);
        if let Some(authorization) = &access.authorization {
            request = request.header("authorization", authorization);
        }
        let response = request.body(record).send().await;
        let response = response.map_err(|error| http::chain(&error.without_url()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        Err(format!("the server answers {status}"))
    }
}

const DELIVERY_TIME_MAX: Duration = Duration::from_secs(30);
const QUEUES_MAX: usize = 256;
