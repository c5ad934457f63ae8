//! The configuration of [`Cluster`](crate::Cluster).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::Invokes;
use pilot_protocols::MemoryBudget;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

/// The configuration of [`Cluster`](crate::Cluster).
pub struct ClusterConfig {
    /// The other nodes.
    pub nodes: Vec<NodeConfig>,
    /// How this node shows its certificate, and checks those of the nodes that call it.
    pub server: Arc<ServerConfig>,
    /// The same, for the nodes that it calls.
    pub client: Arc<ClientConfig>,
    /// Holds what other nodes answer.
    pub answers: MemoryBudget,
    /// How long a link may do nothing that it should do.
    pub silence_max: Duration,
    /// Whether traces are recorded.
    pub records: bool,
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its name, for which its certificate is valid.
    pub name: ServerName<'static>,
    /// Host and port where it is called. `None`: it only calls.
    pub address: Option<(String, u16)>,
    /// The functions that it has.
    pub functions: Invokes,
    /// The functions of this node that it may invoke.
    pub may_invoke: Invokes,
}

impl NodeConfig {
    /// Its name in words.
    pub(crate) fn shown(&self) -> String {
        self.name.to_str().into_owned()
    }
}
