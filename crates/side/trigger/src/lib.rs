//! What invokes functions besides requests, and where records go outside of the daemon.
//!
//! [`Triggers`] has one task per trigger of a live version. A schedule and a folder have no durable queue of their own: they put
//! invocations into the daemon's, and remember in the same transaction that they did (the port
//! [`TriggerStore`](pilot_model::ports::TriggerStore)). So does a subscription at an MQTT broker, which acknowledges a message when its
//! invocation is on the disk. A queue and a stream are durable themselves: the function is invoked, and what it has done is removed
//! there. [`Delivery`] takes the records of ended invocations to the destinations outside of the daemon. [`ConnectedQueues`] gives
//! initscripts the same queues.
//!
//! Not here: running functions, and the durable queue. Which sources and destinations a function may use, the operator says
//! ([`Connections`]).

mod batch;
mod connections;
mod context;
mod deliver;
mod file_calls;
mod folder;
mod http;
mod mqtt;
mod redis;
mod schedule;
mod sqs;
mod status;
#[cfg(test)]
mod testing;
mod triggers;

pub use connections::{ConnectionConfig, ConnectionKind, Connections, HttpAccess};
pub use deliver::Delivery;
pub use mqtt::client::MqttAccess;
pub use redis::client::RedisAccess;
pub use sqs::client::{SqsAccess, SqsCredentials};
pub use sqs::queues::ConnectedQueues;
pub use triggers::Triggers;
