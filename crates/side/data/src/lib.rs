//! The data of invocations: fetched from stores while the worker starts, into memory that the worker maps (Truffle, section III).
//!
//! [`Data`] is the port [`InputSource`](pilot_model::ports::InputSource), and in `remotes` the port
//! [`Remotes`](pilot_model::ports::Remotes). `stores` talks to each kind of store, `buffer` is the
//! memory, `flight` fills the one from the other, `decode` puts a decoder between them, `streaming` tells a worker how far that is, `raw` passes connections on that initscripts hand over, `index` and `cache` find a buffer that has the object already, and `memory` has the
//! limits. When a fetch begins, and what waits for it, is decided in `path/invoke`.

mod buffers;
mod decode;
mod direct;
mod flight;
mod handover;
mod memory;
mod networks;
mod raw;
mod remotes;
mod source;
mod stores;
mod streaming;

pub use memory::SpillConfig;
pub use source::{Data, DataConfig};
pub use stores::file::FileConfig;
pub use stores::http::HttpConfig;
pub use stores::redis::RedisConfig;
pub use stores::s3::{S3Config, S3Credentials};
pub use stores::{StoreConfig, StoreKind};
