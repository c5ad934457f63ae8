//! [`Data`]: the stores that functions may use, and the fetches of an invocation.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pilot_model::inputs::{InputConfig, Location, Values, keys};
use pilot_model::ports::{
    BlankMemory, Clock, Fetched, Input, InputFault, InputFaultKind, InputMemory, InputSource,
    MemoryFault,
};
use pilot_model::{BoxFuture, FunctionConfig, FunctionName, Transfer};
use pilot_protocols::MemoryBudget;
use tokio::time::timeout;

use crate::buffer::handover::{Blank, Handed};
use crate::buffer::{Buffer, HeldBuffers};
use crate::fetch::{Room, fetch};
use crate::stores::{self, Store, StoreConfig, StoreError};

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
}

/// Fetches inputs. Implements the port.
#[derive(Debug)]
pub struct Data {
    stores: BTreeMap<String, Arc<OpenStore>>,
    memory: MemoryBudget,
    held: Arc<HeldBuffers>,
    handed: Arc<Handed>,
    input_bytes_max: u64,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct OpenStore {
    config: StoreConfig,
    store: Arc<dyn Store>,
}

impl Data {
    /// Opens the stores. It connects to none of them.
    ///
    /// # Errors
    /// What is wrong with which store.
    pub fn open(config: DataConfig, clock: Arc<dyn Clock>) -> Result<Self, String> {
        // Another part of the process may have chosen it before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut stores = BTreeMap::new();
        for config in config.stores {
            let name = config.name.clone();
            let store =
                stores::open(&config).map_err(|problem| format!("stores.{name}: {problem}"))?;
            stores.insert(name, Arc::new(OpenStore { config, store }));
        }
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = MemoryBudget::new(bytes(config.bytes_max), bytes(config.function_bytes_max));
        Ok(Self {
            stores,
            input_bytes_max: config.input_bytes_max.min(memory.share_max() as u64),
            memory,
            held: Arc::default(),
            handed: Arc::default(),
            clock,
        })
    }

    /// The buffers that functions hand to each other now, and their bytes.
    #[must_use]
    pub fn handed(&self) -> (u64, u64) {
        self.handed.now()
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

/// One input, complete or failed.
struct Arrival {
    index: usize,
    transfer: Transfer,
    end: Result<(Buffer, Input), InputFault>,
}

impl InputSource for Data {
    fn check(&self, config: &FunctionConfig) -> Result<(), String> {
        for (name, input) in &config.inputs {
            self.store(config.name.as_str(), &input.from)
                .map_err(|problem| {
                    format!("functions.{}.inputs: \"{name}\": {problem}", config.name)
                })?;
        }
        Ok(())
    }

    fn fetch(&self, config: &FunctionConfig, values: Values<'_>) -> BoxFuture<'static, Fetched> {
        let room = Room {
            memory: self.memory.of(&config.name),
            held: Arc::clone(&self.held),
            bytes_max: self.input_bytes_max,
        };
        let locations = config.inputs.values().map(|input| &input.from);
        let keys = keys(locations, values);
        let fetches: FuturesUnordered<_> = config
            .inputs
            .iter()
            .zip(keys)
            .enumerate()
            .map(|(index, ((name, input), key))| {
                let store = self.store(config.name.as_str(), &input.from).cloned();
                let wanted = match (store, key) {
                    (Err(problem), _) => Err(StoreError::new(InputFaultKind::Forbidden, &problem)),
                    (_, Err(missing)) => {
                        Err(StoreError::new(InputFaultKind::Key, &missing.to_string()))
                    }
                    (Ok(store), Ok(key)) => Ok((store, key)),
                };
                let one = One {
                    index,
                    name: name.clone(),
                    input: input.clone(),
                    clock: Arc::clone(&self.clock),
                    patience: config.timeout,
                };
                let room = room.clone();
                one.fetch(wanted, room)
            })
            .collect();
        let optional: Vec<bool> = config.inputs.values().map(|input| input.optional).collect();
        Box::pin(gather(fetches, optional))
    }

    fn blank(
        &self,
        function: &FunctionName,
        len: u64,
    ) -> BoxFuture<'static, Result<Arc<dyn BlankMemory>, MemoryFault>> {
        let memory = self.memory.of(function);
        let (held, handed) = (Arc::clone(&self.held), Arc::clone(&self.handed));
        let len_max = self.input_bytes_max;
        Box::pin(async move {
            let blank = Blank::new(memory, held, handed, len, len_max).await?;
            Ok(Arc::new(blank) as Arc<dyn BlankMemory>)
        })
    }
}

/// Waits for all of them, or for the first failure of one that is not optional: what still runs is then given up.
async fn gather(
    mut fetches: FuturesUnordered<impl Future<Output = Arrival>>,
    optional: Vec<bool>,
) -> Fetched {
    let mut arrivals = Vec::with_capacity(optional.len());
    while let Some(arrival) = fetches.next().await {
        if let (Err(fault), false) = (&arrival.end, optional[arrival.index]) {
            return Fetched {
                transfers: vec![arrival.transfer],
                fault: Some(fault.clone()),
                ..Fetched::default()
            };
        }
        arrivals.push(arrival);
    }
    arrivals.sort_by_key(|arrival| arrival.index);
    let mut fetched = Fetched::default();
    for arrival in arrivals {
        fetched.transfers.push(arrival.transfer);
        if let Ok((buffer, input)) = arrival.end {
            fetched.inputs.push(input);
            fetched
                .memory
                .push(Arc::new(buffer) as Arc<dyn InputMemory>);
        }
    }
    fetched
}

/// The fetch of one input.
struct One {
    index: usize,
    name: String,
    input: InputConfig,
    clock: Arc<dyn Clock>,
    patience: Duration,
}

impl One {
    async fn fetch(
        self,
        wanted: Result<(Arc<OpenStore>, String), StoreError>,
        room: Room,
    ) -> Arrival {
        let began = self.clock.now();
        let (from, end) = match wanted {
            Err(error) => (self.input.from.to_string(), Err(error)),
            Ok((store, key)) => {
                let from = format!(
                    "{}://{}/{key}",
                    self.input.from.scheme().as_str(),
                    store.config.name
                );
                let fetched = fetch(&*store.store, &key, &room);
                let end = match timeout(self.patience, fetched).await {
                    Ok(end) => end.and_then(|buffer| self.with_input(buffer)),
                    Err(_) => {
                        let waited = self.patience.as_secs_f64();
                        let problem =
                            format!("it was not here after {waited} s, the function's timeout");
                        Err(StoreError::new(InputFaultKind::TimedOut, &problem))
                    }
                };
                (from, end)
            }
        };
        let bytes = end
            .as_ref()
            .map_or(0, |(buffer, _): &(Buffer, Input)| buffer.len());
        let transfer = Transfer {
            input: self.name.clone(),
            from: from.clone(),
            bytes,
            began,
            ended: self.clock.now(),
            error: end.as_ref().err().map(|error| error.problem.clone()),
        };
        let end = end.map_err(|error| InputFault {
            input: self.name,
            source_text: from,
            kind: error.kind,
            problem: error.problem,
        });
        Arrival {
            index: self.index,
            transfer,
            end,
        }
    }

    fn with_input(&self, buffer: Buffer) -> Result<(Buffer, Input), StoreError> {
        let input = buffer.input(&self.name).map_err(|error| {
            StoreError::new(
                InputFaultKind::Unavailable,
                &format!("no descriptor for it: {error}"),
            )
        })?;
        Ok((buffer, input))
    }
}
