//! What needs no store of the operator: servers of the internet that initscripts name by their hosts, and the numbers of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::networks::Networks;
use crate::raw::Relays;
use crate::stores::direct::DirectHttp;
use crate::stores::direct_redis::DirectRedis;
use crate::stores::grpc::DirectGrpc;

/// Servers without a store of their own.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) http: DirectHttp,
    pub(crate) grpc: DirectGrpc,
    pub(crate) redis: DirectRedis,
    pub(crate) relays: Arc<Relays>,
    requests: AtomicU64,
}

impl Direct {
    /// # Errors
    /// The machine's certificates cannot be used.
    pub(crate) fn new(networks: &Networks) -> Result<Self, String> {
        Ok(Self {
            http: DirectHttp::new(networks.clone())?,
            grpc: DirectGrpc::new(networks.clone())?,
            redis: DirectRedis::new(networks.clone()),
            relays: Arc::default(),
            requests: AtomicU64::new(0),
        })
    }

    /// A number for a request, which is an object of its own: nobody else gets its body, or the reply to it.
    pub(crate) fn number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }
}
