//! The inputs of one invocation: each is fetched, and all together arrive or wait for room.
//!
//! `room` says why an invocation gives back what it has, and fetches it again.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pilot_model::inputs::{Form, InputConfig};
use pilot_model::ports::{
    Clock, Fetched, Input, InputFault, InputFaultKind, InputKind, InputMemory, StoreRead,
};
use pilot_model::size::Size;
use pilot_model::{BoxFuture, FunctionName, Instant, Transfer, TransferWay};
use tokio::time::{sleep_until, timeout_at};

use crate::buffers::Buffers;
use crate::buffers::buffer::Until;
use crate::buffers::index::ObjectId;
use crate::decode::{self, Decoders};
use crate::flight::{Fetch, counted, fetch};
use crate::memory::Medium;
use crate::room::{Lack, TURN_IDLE, Turn, Waiting};
use crate::stores::{Store, StoreError};
use crate::streaming::{Begun, Stream, ToldBy};

/// The inputs of one invocation.
pub(crate) struct Inputs {
    /// In the order of their numbers.
    pub(crate) ones: Vec<Arc<One>>,
    pub(crate) function: FunctionName,
    pub(crate) buffers: Arc<Buffers>,
}

impl Inputs {
    /// Waits for all of them, or for the first failure of one that is not optional: what still runs is then given up.
    pub(crate) async fn gather(self) -> Fetched {
        let Some(first) = self.ones.first() else {
            return Fetched::default();
        };
        let began = first.clock.now();
        let deadline = tokio::time::Instant::now() + first.patience;
        let waiting = Arc::<Waiting>::default();
        let mut turn = Turn::default();
        let mut arrivals = Vec::with_capacity(self.ones.len());
        let begin = |one: &Arc<One>| -> BoxFuture<'static, Arrival> {
            Box::pin(Arc::clone(one).fetch(Arc::clone(&waiting), (began, deadline)))
        };
        let (bodies, objects): (Vec<_>, Vec<_>) =
            self.ones.iter().partition(|one| one.input.is_body());
        let mut bodies: FuturesUnordered<_> = bodies.into_iter().map(begin).collect();
        let mut fetches: FuturesUnordered<_> = objects.iter().copied().map(begin).collect();
        let mut leaves_total = None;
        while !(bodies.is_empty() && fetches.is_empty()) {
            let arrival = tokio::select! {
                biased;
                Some(arrival) = bodies.next() => Some(arrival),
                Some(arrival) = fetches.next() => Some(arrival),
                () = waiting.changes() => None,
                () = at(leaves_total) => {
                    turn.leave_total();
                    None
                }
            };
            if let Some(arrival) = arrival {
                let is_optional = self.ones[arrival.index].input.optional;
                if let (Err(fault), false) = (&arrival.end, is_optional) {
                    return Fetched {
                        transfers: vec![arrival.transfer],
                        fault: Some(fault.clone()),
                        ..Fetched::default()
                    };
                }
                arrivals.push(arrival);
            }
            let has_some = arrivals.iter().any(|arrival| arrival.end.is_ok());
            let lacks = waiting.lacks_with_something(has_some);
            let most = lacks.iter().map(|(_, lack)| *lack).max();
            leaves_total = match most {
                Some(Lack::Total) => None,
                _ => turn
                    .has_total()
                    .then(|| leaves_total.unwrap_or(tokio::time::Instant::now() + TURN_IDLE)),
            };
            let Some(lack) = most else { continue };
            if turn.try_take(&self.buffers.turns, &self.function, lack) {
                for (index, lack) in lacks {
                    if self.exceed_share(&arrivals, lack) {
                        waiting.refuse(index);
                    }
                }
                continue;
            }
            // What was read of a request's body cannot be read again.
            arrivals
                .retain(|arrival| arrival.end.is_err() || self.ones[arrival.index].input.is_body());
            fetches.clear();
            let next = turn.take(&self.buffers.turns, &self.function, lack);
            if timeout_at(deadline, next).await.is_err() {
                // The fetches say so.
                waiting.had_no_turn(lack);
            }
            let missing = objects
                .iter()
                .filter(|one| arrivals.iter().all(|arrival| arrival.index != one.index));
            fetches = missing.copied().map(begin).collect();
        }
        together(arrivals)
    }

    /// Whether what has arrived leaves too little of the function's share, although nobody else has any of it.
    fn exceed_share(&self, arrivals: &[Arrival], lack: Lack) -> bool {
        let memory = &self.buffers.memory;
        let Lack::Share(len) = lack else { return false };
        // What is on the disk takes nothing of this share.
        if memory.spills() {
            return false;
        }
        // The same object may be several inputs, and counts once.
        let by_source: BTreeMap<&str, u64> = arrivals
            .iter()
            .filter(|arrival| arrival.end.is_ok())
            .map(|arrival| (arrival.transfer.from.as_str(), arrival.transfer.bytes))
            .collect();
        let there: usize = by_source.into_values().map(counted).sum();
        // An input of unknown length needs whole steps, which may exceed the share by a part of one.
        let share = memory.share_max(Medium::Memory);
        there + len.min(share) > share
    }
}

/// Returns at `instant`, or never.
async fn at(instant: Option<tokio::time::Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}

fn together(mut arrivals: Vec<Arrival>) -> Fetched {
    arrivals.sort_by_key(|arrival| arrival.index);
    let mut fetched = Fetched::default();
    for arrival in arrivals {
        fetched.transfers.push(arrival.transfer);
        if let Ok(given) = arrival.end {
            fetched.inputs.push(given.input);
            fetched.progress.extend(given.progress);
            fetched.memory.push(given.memory);
        }
    }
    fetched
}

/// One input, complete or failed.
struct Arrival {
    index: usize,
    transfer: Transfer,
    end: Result<Given, InputFault>,
}

/// What the worker gets.
struct Given {
    input: Input,
    /// If it still arrives.
    progress: Option<Input>,
    memory: Arc<dyn InputMemory>,
    /// When its decoder had all of the store's bytes.
    decoding: Option<Instant>,
}

/// What an input comes from.
#[derive(Clone)]
pub(crate) struct Origin {
    /// The name of its store, for the index of buffers.
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Store>,
}

/// The fetch of one input.
pub(crate) struct One {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) input: InputConfig,
    pub(crate) wanted: Result<(Origin, String), StoreError>,
    pub(crate) function: FunctionName,
    pub(crate) owner: String,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) patience: Duration,
    pub(crate) drop_ins: bool,
    pub(crate) form: Form,
    pub(crate) told_by: ToldBy,
    pub(crate) until: Until,
}

impl One {
    /// `began`: when the invocation began to wait for its inputs. It waits until `deadline`.
    async fn fetch(
        self: Arc<Self>,
        waiting: Arc<Waiting>,
        (began, deadline): (Instant, tokio::time::Instant),
    ) -> Arrival {
        let (from, end) = match self.wanted.clone() {
            Err(error) => (self.input.from.to_string(), Err(error)),
            Ok((origin, key)) => {
                let location = &self.input.from;
                let scheme = location.scheme().as_str();
                let from = format!("{scheme}://{}/{key}", location.store());
                let end = self
                    .fetch_from(origin, key, &from, (began, deadline), &waiting)
                    .await;
                (from, end)
            }
        };
        let failed = Transfer {
            input: self.name.clone(),
            from: from.clone(),
            bytes: 0,
            way: TransferWay::Fetched,
            began,
            ended: self.clock.now(),
            decoding: None,
            streamed: None,
            error: end.as_ref().err().map(|error| error.problem.clone()),
        };
        let transfer = match &end {
            Ok((given, way)) => given.memory.transfer().unwrap_or_else(|| Transfer {
                bytes: given.memory.bytes(),
                way: *way,
                decoding: given.decoding.filter(|_| *way != TransferWay::Cached),
                ..failed
            }),
            Err(_) => failed,
        };
        let end = end.map(|(given, _)| given);
        let end = end.map_err(|error| InputFault {
            input: self.name.clone(),
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

    async fn fetch_from(
        &self,
        Origin { name, store }: Origin,
        key: String,
        from: &str,
        (began, deadline): (Instant, tokio::time::Instant),
        waiting: &Waiting,
    ) -> Result<(Given, TransferWay), StoreError> {
        let object = ObjectId {
            owner: self.owner.clone(),
            store: name,
            key: key.clone(),
            decoder: self.input.decode.map(|by| (by, by.form(self.form))),
        };
        // What clients of the store call an object is the store's bytes, so that a decoded one has no such name.
        let from_store = match self.input.decode {
            None => store,
            Some(by) => {
                let decoders = Arc::clone(&self.decoders);
                let bytes_max = self.buffers.bytes_max;
                let what = (by, by.form(self.form));
                let decoded = decoders.over(&store, &self.function, what, bytes_max);
                Arc::new(decoded) as Arc<dyn Store>
            }
        };
        let fetched = fetch(
            &self.buffers,
            &from_store,
            object,
            &self.function,
            self.until,
            waiting.place(self.index),
        );
        // It is not dropped before the look at what it lacks.
        let mut fetched = pin!(fetched);
        let fetched = tokio::select! {
            biased;
            fetched = &mut fetched => fetched,
            () = waiting.refused(self.index) => return Err(self.exceeds_share()),
            () = sleep_until(deadline) => return Err(self.too_late(waiting.lack(self.index))),
        };
        let Fetch {
            used,
            way,
            published,
        } = fetched?;
        let named = |headers: &[(String, String)]| {
            let object = self.drop_ins.then(|| from_store.named(&key, headers));
            // No request that was sent earlier is shared.
            let read = |object| StoreRead {
                object,
                asked: began,
            };
            object.flatten().map(read).map(Arc::new)
        };
        let given = match published {
            None => used.input(&self.name).map(|mut input| {
                let headers = used.headers();
                input.object = named(&headers);
                let is_decoded = self.input.decode.is_some();
                let described = is_decoded.then(|| decode::described(&headers)).flatten();
                let decoding = described.as_ref().map(|it| it.began);
                input.decoded = described.map(|it| Arc::new(it.decoded));
                Given {
                    input,
                    progress: None,
                    decoding,
                    memory: Arc::new(used),
                }
            }),
            Some(published) => {
                let input = Input {
                    name: self.name.clone(),
                    kind: InputKind::Growing { len: published.len },
                    descriptor: Arc::new(published.descriptor),
                    object: named(&published.headers),
                    decoded: None,
                };
                let begun = Begun {
                    input: self.name.clone(),
                    from: from.to_owned(),
                    way,
                    began,
                };
                let stream = Stream::start(used, &self.buffers, begun, self.told_by, &self.clock);
                stream.map(|(stream, progress)| Given {
                    input,
                    progress: Some(progress),
                    decoding: None,
                    memory: Arc::new(stream),
                })
            }
        };
        let given = given.map_err(|error| {
            let problem = format!("no descriptor for it: {error}");
            StoreError::new(InputFaultKind::Unavailable, &problem)
        })?;
        Ok((given, way))
    }

    fn too_late(&self, lack: Option<Lack>) -> StoreError {
        let waited = self.patience.as_secs_f64();
        let problem = match lack {
            None => format!("it was not here after {waited} s, the function's timeout"),
            Some(lack) => {
                let (whose, key) = match lack {
                    Lack::Share(_) => (
                        "the function's share of the memory for inputs",
                        "function_mb",
                    ),
                    Lack::Total => ("the memory for inputs", "memory_mb"),
                };
                format!(
                    "there was no room for it for {waited} s, the function's timeout: {whose} is in use, see data.{key} in pilotd.toml"
                )
            }
        };
        StoreError::new(InputFaultKind::TimedOut, &problem)
    }

    fn exceeds_share(&self) -> StoreError {
        let share = self.buffers.memory.share_max(Medium::Memory);
        let problem = format!(
            "with the invocation's other inputs it exceeds {}, the function's share of the memory for inputs: see data.function_mb in \
             pilotd.toml",
            Size(share as u64)
        );
        StoreError::new(InputFaultKind::TooLarge, &problem)
    }
}
