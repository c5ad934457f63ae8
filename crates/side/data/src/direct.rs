//! Servers of the internet that initscripts name by their hosts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::networks::Networks;
use crate::raw::Relays;
use crate::stores::direct::{DirectHttp, DirectRedis};
use crate::stores::grpc::DirectGrpc;

/// Servers without a store of their own.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) http: DirectHttp,
    pub(crate) grpc: DirectGrpc,
    pub(crate) redis: DirectRedis,
    pub(crate) relays: Arc<Relays>,
    /// Each request is an object of its own: nobody else gets its reply.
    pub(crate) requests: AtomicU64,
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
}
