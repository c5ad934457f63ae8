//! [`Data`]: the stores that functions may use, and the port through which invocations get inputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use pilot_model::inputs::{InputConfig, Location, Scheme, Values, check_key, keys};
use pilot_model::ports::{
    BlankMemory, Clock, DecoderHost, Fetched, InputFaultKind, InputSource, MemoryFault, Queues,
    StreamedBody,
};
use pilot_model::{BoxFuture, FunctionConfig, FunctionName};

use crate::buffers::buffer::Until;
use crate::buffers::cache::Cache;
use crate::buffers::index::Index;
use crate::buffers::{Buffers, HeldBuffers};
use crate::decode::Decoders;
use crate::direct::Direct;
use crate::gather::{Inputs, One, Origin};
use crate::handover::{Blank, Handed};
use crate::memory::{Memory, SpillConfig};
use crate::networks::Networks;
use crate::room::Turns;
use crate::stores::of_function::SharedStore;
use crate::stores::request::RequestBody;
use crate::stores::{self, Store, StoreConfig, StoreError};
use crate::streaming::ToldBy;

/// The configuration of [`Data`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataConfig {
    /// The stores.
    pub stores: Vec<StoreConfig>,
    /// Memory for the inputs of all functions, bytes.
    pub bytes_max: u64,
    /// The share of it that one function can have, bytes.
    pub function_bytes_max: u64,
    /// The longest input, bytes.
    pub input_bytes_max: u64,
    /// For buffers that are kept for the next fetch, bytes of `bytes_max`. 0: none.
    pub cache_bytes_max: u64,
    /// Where inputs go that exceed the memory. `None`: they wait.
    pub spill: Option<SpillConfig>,
    /// Whether invocations share a fetch.
    pub shares: bool,
    /// Whether fetches begin before there is a worker.
    pub overlaps: bool,
    /// Whether data goes to another function by reference.
    pub by_reference: bool,
    /// Whether workers read the inputs that functions declare so while they arrive. Not safe if workers run as the daemon's user: the
    /// owner of a file can make it writable.
    pub streams: bool,
    /// Whether workers are told what clients of the stores call the inputs, so that their drop-ins can answer.
    pub drop_ins: bool,
    /// Networks beyond the public internet that initscripts may connect to without a store.
    pub initscript_networks: Vec<IpNet>,
}

/// Fetches inputs. Implements the port.
#[derive(Debug)]
pub struct Data {
    stores: BTreeMap<String, Arc<OpenStore>>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) handed: Arc<Handed>,
    pub(crate) networks: Networks,
    pub(crate) direct: Direct,
    pub(crate) queues: Arc<dyn Queues>,
    overlaps: bool,
    by_reference: bool,
    streams: bool,
    pub(crate) drop_ins: bool,
    decoders: Arc<Decoders>,
    pub(crate) clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct OpenStore {
    config: StoreConfig,
    store: Arc<SharedStore>,
}

/// Whether a store can be opened. Connects to nothing.
///
/// # Errors
/// What is wrong with it.
pub fn check_store(config: &StoreConfig) -> Result<(), String> {
    choose_cryptography();
    opened(config, u64::MAX).map(drop)
}

/// For clients with TLS.
fn choose_cryptography() {
    // Another part of the process may have chosen it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn opened(config: &StoreConfig, bytes_max: u64) -> Result<Arc<dyn Store>, String> {
    stores::open(config, bytes_max).map_err(|problem| format!("stores.{}: {problem}", config.name))
}

impl Data {
    /// Opens the stores. It connects to none of them. `queues` are those of initscripts.
    ///
    /// # Errors
    /// What is wrong with which store.
    pub fn open(
        config: DataConfig,
        queues: Arc<dyn Queues>,
        clock: Arc<dyn Clock>,
        decoders: Arc<dyn DecoderHost>,
    ) -> Result<Self, String> {
        choose_cryptography();
        let share_max = config.function_bytes_max.min(config.bytes_max);
        let input_max = config.input_bytes_max.min(share_max);
        let mut stores = BTreeMap::new();
        for config in config.stores {
            let name = config.name.clone();
            let store = SharedStore::new(opened(&config, input_max)?);
            stores.insert(name, Arc::new(OpenStore { config, store }));
        }
        let buffers = Buffers {
            memory: Memory::new(config.bytes_max, share_max, config.spill),
            cache: Cache::new(config.cache_bytes_max.min(config.bytes_max)),
            index: Index::new(config.shares),
            held: HeldBuffers::default(),
            turns: Turns::default(),
            bytes_max: input_max,
        };
        let networks = Networks::new(config.initscript_networks);
        let direct = Direct::new(&networks)?;
        Ok(Self {
            networks,
            direct,
            queues,
            stores,
            buffers: Arc::new(buffers),
            handed: Arc::default(),
            overlaps: config.overlaps,
            by_reference: config.by_reference,
            streams: config.streams,
            drop_ins: config.drop_ins,
            decoders: Arc::new(Decoders::new(decoders, Arc::clone(&clock))),
            clock,
        })
    }

    /// The buffers that functions hand to each other now, and their bytes.
    #[must_use]
    pub fn handed(&self) -> (u64, u64) {
        self.handed.now()
    }

    /// How the store with this name is reached. `None`: there is none.
    pub(crate) fn scheme_of(&self, store: &str) -> Option<Scheme> {
        let store = self.stores.get(store)?;
        Some(store.config.scheme())
    }

    /// The store of a location, if the function may use it.
    pub(crate) fn named(
        &self,
        function: &FunctionName,
        location: &Location,
    ) -> Result<Arc<dyn Store>, String> {
        let open = self.store(function.as_str(), location)?;
        Ok(open.store.of_function(function))
    }

    /// The store of a location, if the function may use it.
    fn store(&self, function: &str, location: &Location) -> Result<&Arc<OpenStore>, String> {
        let name = location.store();
        let usable = || {
            let usable = self
                .stores
                .values()
                .filter(|store| store.config.is_for(function));
            let usable: Vec<&str> = usable.map(|store| store.config.name.as_str()).collect();
            match usable.as_slice() {
                [] => "it may use none".to_owned(),
                names => format!("it may use {}", names.join(", ")),
            }
        };
        let Some(store) = self.stores.get(name) else {
            return Err(format!(
                "there is no store \"{name}\": the operator adds [stores.{name}] to pilotd.toml, or the function names another \
                 ({})",
                usable()
            ));
        };
        if !store.config.is_for(function) {
            return Err(format!(
                "the store \"{name}\" is not for function '{function}': the operator adds it to stores.{name}.functions in \
                 pilotd.toml ({})",
                usable()
            ));
        }
        if store.config.scheme() != location.scheme() {
            return Err(format!(
                "the store \"{name}\" is reached by {}://{name}/",
                store.config.scheme().as_str()
            ));
        }
        Ok(store)
    }
}

impl Data {
    /// What an input comes from. `body` is taken if it is that.
    fn origin(
        &self,
        config: &FunctionConfig,
        input: &InputConfig,
        body: &mut Option<StreamedBody>,
    ) -> Result<Origin, String> {
        if !input.is_body() {
            let open = self.store(config.name.as_str(), &input.from)?;
            return Ok(Origin {
                name: open.config.name.clone(),
                store: open.store.of_function(&config.name),
            });
        }
        Ok(Origin {
            // The name of a store has no slash, and nobody else has the number.
            name: format!("request/{}", self.direct.number()),
            store: Arc::new(RequestBody::new(body.take())),
        })
    }
}

impl InputSource for Data {
    fn check(&self, config: &FunctionConfig) -> Result<(), String> {
        let of_stores = config.inputs.iter().filter(|(_, input)| !input.is_body());
        for (name, input) in of_stores {
            let store = self.store(config.name.as_str(), &input.from);
            // Whatever its placeholders stand for.
            let key = || check_key(&input.from.key_with('*')).map_err(|wrong| wrong.to_string());
            let checked = store.and_then(|open| open.store.check(&input.from).and_then(|()| key()));
            checked.map_err(|problem| {
                format!("functions.{}.inputs: \"{name}\": {problem}", config.name)
            })?;
        }
        Ok(())
    }

    fn fetch(
        &self,
        config: &FunctionConfig,
        requested: &BTreeMap<String, InputConfig>,
        values: Values<'_>,
        mut body: Option<StreamedBody>,
    ) -> BoxFuture<'static, Fetched> {
        let inputs: Vec<_> = config.inputs.iter().chain(requested).collect();
        let locations = inputs.iter().map(|(_, input)| &input.from);
        let keys = keys(locations, values);
        let ones = inputs
            .iter()
            .zip(keys)
            .enumerate()
            .map(|(index, ((name, input), key))| {
                let origin = self.origin(config, input, &mut body);
                let wanted = match (origin, key) {
                    (Err(problem), _) => Err(StoreError::new(InputFaultKind::Forbidden, &problem)),
                    (_, Err(missing)) => {
                        Err(StoreError::new(InputFaultKind::Key, &missing.to_string()))
                    }
                    (Ok(origin), Ok(key)) => {
                        let checked = origin.store.check_key(&input.from, &key);
                        let checked = checked.map(|()| (origin, key));
                        checked.map_err(|problem| StoreError::new(InputFaultKind::Key, &problem))
                    }
                };
                let one = One {
                    index,
                    name: (*name).clone(),
                    input: (*input).clone(),
                    wanted,
                    function: config.name.clone(),
                    owner: config.owner().to_owned(),
                    buffers: Arc::clone(&self.buffers),
                    decoders: Arc::clone(&self.decoders),
                    clock: Arc::clone(&self.clock),
                    patience: config.timeout,
                    drop_ins: self.drop_ins && config.drop_ins,
                    form: config.runtime.decoded_form(),
                    told_by: match config.runtime.forks() {
                        true => ToldBy::Socket,
                        false => ToldBy::Pipe,
                    },
                    until: match self.streams && input.stream {
                        true => Until::Begun,
                        false => Until::Whole,
                    },
                };
                Arc::new(one)
            })
            .collect();
        let inputs = Inputs {
            ones,
            function: config.name.clone(),
            buffers: Arc::clone(&self.buffers),
        };
        Box::pin(inputs.gather())
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    fn by_reference(&self) -> bool {
        self.by_reference
    }

    fn blank(
        &self,
        function: &FunctionName,
        len: u64,
    ) -> BoxFuture<'static, Result<Arc<dyn BlankMemory>, MemoryFault>> {
        let (buffers, handed) = (Arc::clone(&self.buffers), Arc::clone(&self.handed));
        let function = function.clone();
        Box::pin(async move {
            let blank = Blank::new(&buffers, &handed, &function, len).await?;
            Ok(Arc::new(blank) as Arc<dyn BlankMemory>)
        })
    }
}
