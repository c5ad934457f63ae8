//! Other nodes. A function on this node invokes one on another node, and hands data to it (Truffle, section III, cross-function data
//! passing): the call is announced at once, so that the target's worker starts while the data still arrives in the target's memory.
//!
//! A call is a request of HTTP/2 over mutual TLS. A node is who its certificate says, and does only what the configuration lets it do.
//! A call runs when all of it has arrived, and not before. So a call that broke off has not run.
//!
//! Not here: whether a function may invoke another, and what follows when a node fails (`path/invoke`); the files of certificates.

mod answering;
mod cluster;
mod config;
mod life;
mod link;
mod message;
mod payload;
mod reach;
mod receiving;
mod sending;
mod sent;
mod strangers;
mod tasks;

pub use cluster::Cluster;
pub use config::{ClusterConfig, NodeConfig};
