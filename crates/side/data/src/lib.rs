//! The data of invocations: fetched from stores while the worker starts, into memory that the worker maps (Truffle, section III).
//!
//! [`Data`] is the port [`InputSource`](pilot_model::ports::InputSource), and in `remotes` the port
//! [`Remotes`](pilot_model::ports::Remotes), with servers that have no store in `direct`. `stores` talks to each kind of store.
//! `buffers` is the memory: what is filled, what is kept, and how an object is found that is there already. `gather` fetches the
//! inputs of one invocation, `flight` fills a buffer from a store, `decode` puts a decoder between them, `streaming` tells a worker
//! how far that is, `raw` passes connections on that initscripts hand over, and `memory` has the limits, and `room` says who may
//! keep what it has while it waits for more. When a fetch begins, and what waits for it, is decided in `path/invoke`.

mod buffers;
mod decode;
mod direct;
mod flight;
mod gather;
mod handover;
mod memory;
mod networks;
mod raw;
#[cfg(test)]
mod rebinding;
mod remotes;
mod room;
mod shares;
mod source;
mod stores;
mod streaming;

pub use memory::SpillConfig;
pub use source::{Data, DataConfig, check_store};
pub use stores::file::FileConfig;
pub use stores::http::HttpConfig;
pub use stores::redis::RedisConfig;
pub use stores::s3::{ProfileConfig, S3Config, S3Credentials};
pub use stores::{StoreConfig, StoreKind};
