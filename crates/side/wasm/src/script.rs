//! A running script: its connections, requests and messages, its limits, and what becomes of it.

mod raw;
mod rpc;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::initscript::{
    Endpoint, HANDED_MAX, InitscriptConfig, ScriptEnd, ScriptKind, ScriptRun,
};
use pilot_model::inputs::{Scheme, value_at};
use pilot_model::ports::{
    Clock, Initialised, InputMemory, RemoteReply, Remotes, ScriptLink, Takes,
};
use pilot_model::{Instant, Transfer, TransferWay, Version};
use tokio::runtime::Handle;
use tokio::time::{Instant as Deadline, timeout_at};
use wasmtime::{InstancePre, Store, StoreLimits, StoreLimitsBuilder, Trap, UpdateDeadline};

use crate::errors::{Code, in_words};
use crate::request;
use crate::script_memory::Taken;
use crate::threads::Running;

use raw::{Connection, Handing};
use rpc::{Rpc, transfer_of};

/// The state of a running script.
#[derive(Debug)]
pub(crate) struct Script {
    kind: ScriptKind,
    version: Arc<Version>,
    config: InitscriptConfig,
    pub(crate) event: Bytes,
    world: World,
    limits: StoreLimits,
    deadline: Deadline,
    began: Instant,
    /// Calls of the host's functions.
    calls: u32,
    /// Epochs in which it computed.
    ticks: u32,
    connections: Vec<Connection>,
    rpcs: Vec<Rpc>,
    by_id: HashMap<(usize, u64), usize>,
    messages: BTreeMap<u64, Message>,
    /// Connections for the function.
    handed: BTreeMap<u64, Handing>,
    /// Where messages go and come from while the script runs. `None`: the function gets them at its end.
    link: Option<Arc<dyn ScriptLink>>,
    /// Bytes of its requests.
    sent: usize,
    /// Bytes of messages that it has copied.
    copied: u64,
    error: String,
    said: String,
    _room: Taken,
}

/// What every script needs of the daemon.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) remotes: Arc<dyn Remotes>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where requests run: not on the thread of scripts.
    pub(crate) requests: Handle,
}

/// Why a script ended by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    /// It called `exit`.
    #[error("it exited with status {0}")]
    Exit(i32),
    /// It computed for too long.
    #[error("it computed for more than {} ms", CPU_MAX.as_millis())]
    Cpu,
    /// It called too often.
    #[error("it called the host more than {CALLS_MAX} times")]
    Calls,
    /// A pointer that is not in its memory.
    #[error("it passed {name} an address outside of its memory")]
    Memory {
        /// The host's function.
        name: &'static str,
    },
}

/// What goes to the function.
#[derive(Debug)]
enum Message {
    Reply(usize),
    Bytes {
        memory: Arc<dyn InputMemory>,
        began: Instant,
        ended: Instant,
    },
    /// A reply that goes to the function as soon as it is here.
    Going(Running<Transfer>),
    /// The function has it.
    Gone(Transfer),
}

/// What is said when a call fails: a number for the script, and a text that it can ask for.
pub(crate) type Said<T> = Result<T, (Code, String)>;

impl Script {
    pub(crate) fn new(
        version: Arc<Version>,
        config: InitscriptConfig,
        event: Bytes,
        (world, link): (World, Option<Arc<dyn ScriptLink>>),
        room: Taken,
    ) -> Self {
        let wait = Duration::from_millis(u64::from(config.timeout_ms)).min(version.config.timeout);
        let limits = StoreLimitsBuilder::new()
            .memory_size((config.memory_mb as usize) << 20)
            .memories(1)
            .instances(1)
            .tables(TABLES_MAX)
            .table_elements(TABLE_LEN_MAX)
            .build();
        let kind = match config.max_age_s {
            None => ScriptKind::Own,
            Some(_) => ScriptKind::Shared,
        };
        Self {
            kind,
            began: world.clock.now(),
            deadline: Deadline::now() + wait,
            version,
            config,
            event,
            world,
            limits,
            calls: 0,
            ticks: 0,
            connections: Vec::new(),
            rpcs: Vec::new(),
            by_id: HashMap::new(),
            messages: BTreeMap::new(),
            handed: BTreeMap::new(),
            link,
            sent: 0,
            copied: 0,
            error: String::new(),
            said: String::new(),
            _room: room,
        }
    }

    /// Its time began earlier.
    pub(crate) fn since(mut self, began: Instant) -> Self {
        self.deadline -= self.began.since(began);
        self.began = began;
        self
    }

    /// Runs it to its end.
    pub(crate) async fn run(self, module: InstancePre<Self>) -> Initialised {
        let deadline = self.deadline;
        let mut store = Store::new(module.module().engine(), self);
        store.limiter(|script| &mut script.limits);
        // The epoch may end at once. The first requests are to be under way before the script gives way, so it has a whole one.
        store.set_epoch_deadline(2);
        store.epoch_deadline_callback(|mut store| {
            let script = store.data_mut();
            script.ticks += 1;
            if script.ticks > TICKS_MAX {
                return Err(Stop::Cpu.into());
            }
            Ok(UpdateDeadline::Yield(1))
        });
        let run = async {
            let instance = module.instantiate_async(&mut store).await?;
            let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
            run.call_async(&mut store, ()).await
        };
        let end = timeout_at(deadline, run).await;
        let script = store.into_data();
        let problem = match end {
            Ok(end) => end.err().and_then(|error| problem_of(&error)),
            Err(_) => Some((
                ScriptEnd::Timeout,
                format!(
                    "it was not ready after {} ms ({}.timeout_ms)",
                    script.waited_ms(),
                    script.kind.key()
                ),
            )),
        };
        script.finish(problem).await
    }

    fn waited_ms(&self) -> u128 {
        let now = self.world.clock.now();
        now.since(self.began).as_millis()
    }

    /// Waits for the replies that it handed over, and collects its messages. One that fails does not take the others with it.
    async fn finish(mut self, mut problem: Option<(ScriptEnd, String)>) -> Initialised {
        let mut initialised = Initialised::default();
        let fetched = &mut initialised.fetched;
        let deadline = match problem {
            None => self.deadline,
            // What is here is given to the function; nothing is waited for.
            Some(_) => Deadline::now(),
        };
        for (id, message) in std::mem::take(&mut self.messages) {
            let (transfer, given) = self.collect(id, message, deadline).await;
            if let Some(failed) = &transfer.error {
                problem.get_or_insert_with(|| {
                    let problem = format!("message {id}, {}: {failed}", transfer.from);
                    (ScriptEnd::Message, problem)
                });
            }
            if let Some(given) = given {
                fetched.memory.push(given.memory);
                fetched.inputs.push(given.input);
            }
            fetched.transfers.push(transfer);
        }
        for (id, handing) in std::mem::take(&mut self.handed) {
            let handed = handing.collect(self.waits_for_handed(deadline)).await;
            match &handed.socket {
                Err(failed) if !failed.is_empty() => {
                    problem.get_or_insert_with(|| {
                        let problem = format!("connection {id}, {}: {failed}", handed.address);
                        (ScriptEnd::Message, problem)
                    });
                }
                _ => {}
            }
            if self.link.is_none() {
                initialised.connections.push(handed);
            }
        }
        self.ended(initialised, problem)
    }

    /// With a link, the function has the rest, or waits for it.
    fn waits_for_handed(&self, deadline: Deadline) -> Deadline {
        match self.link {
            None => deadline,
            Some(_) => self.deadline,
        }
    }

    /// A message, if the function does not have it yet, and how it came.
    async fn collect(
        &self,
        id: u64,
        message: Message,
        deadline: Deadline,
    ) -> (Transfer, Option<rpc::Given>) {
        let clock = self.world.clock.as_ref();
        match message {
            Message::Bytes {
                memory,
                began,
                ended,
            } => rpc::copied(id, &memory, (began, ended)),
            Message::Reply(at) => match self.rpcs.get(at) {
                Some(rpc) => {
                    let awaited = rpc.message(id, self.deadline);
                    awaited.collect(clock, deadline).await
                }
                None => (transfer_of(id, "", clock.now()), None),
            },
            Message::Going(sending) => {
                let gone = sending.await;
                (
                    gone.unwrap_or_else(|| transfer_of(id, "", clock.now())),
                    None,
                )
            }
            Message::Gone(transfer) => (transfer, None),
        }
    }

    /// Adds the script itself.
    fn ended(
        mut self,
        mut initialised: Initialised,
        problem: Option<(ScriptEnd, String)>,
    ) -> Initialised {
        let (end, problem) = match problem {
            None => (ScriptEnd::Ok, None),
            Some((end, problem)) => (end, Some(problem)),
        };
        let transfers = &mut initialised.fetched.transfers;
        let of_script = Transfer {
            input: self.kind.transfer_name().to_owned(),
            from: self.config.module.clone(),
            bytes: transfers.iter().map(|one| one.bytes).sum(),
            way: TransferWay::Script,
            began: self.began,
            ended: self.world.clock.now(),
            decoding: None,
            streamed: None,
            error: problem.clone(),
        };
        let took = of_script.took();
        transfers.insert(0, of_script);
        if let Some(problem) = problem {
            self.say(&format!("failed: {problem}"));
        }
        initialised.said = (!self.said.is_empty()).then_some(self.said);
        initialised.run = Some(ScriptRun { end, took });
        initialised
    }

    /// Each call of the host's functions begins with this.
    pub(crate) fn called(&mut self) -> Result<(), Stop> {
        self.calls += 1;
        if self.calls > CALLS_MAX {
            return Err(Stop::Calls);
        }
        Ok(())
    }

    /// What the script can ask for.
    pub(crate) fn last_error(&self) -> &str {
        &self.error
    }

    pub(crate) fn input(&self) -> &str {
        &self.config.input
    }

    /// The number for the script.
    pub(crate) fn answer<T: Into<i64>>(&mut self, said: Said<T>) -> i64 {
        match said {
            Ok(value) => value.into(),
            Err((code, problem)) => {
                self.error = problem;
                code as i64
            }
        }
    }

    /// A line for the function's log.
    pub(crate) fn say(&mut self, text: &str) {
        let room = SAID_LEN_MAX.saturating_sub(self.said.len());
        if room == 0 {
            return;
        }
        let plain = text
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char });
        let mut left = room;
        self.said.extend(plain.take_while(|char| {
            left = left.saturating_sub(char.len_utf8());
            left > 0
        }));
        self.said.push('\n');
    }

    /// `connect`.
    pub(crate) fn connect(&mut self, address: &[u8]) -> Said<u32> {
        let invalid = |problem: String| (Code::Invalid, problem);
        let address = std::str::from_utf8(address)
            .map_err(|_| invalid("an address must be UTF-8".to_owned()))?;
        let endpoint: Endpoint = address.parse().map_err(invalid)?;
        if !self.config.allows(&endpoint) {
            let key = self.kind.key();
            let problem = format!("{endpoint} is not in {key}.allow of pilot.toml");
            self.say(&problem);
            return Err((Code::Refused, problem));
        }
        if self.connections.len() >= CONNECTIONS_MAX {
            let problem = format!("a script has at most {CONNECTIONS_MAX} connections");
            return Err((Code::Limit, problem));
        }
        let raw = (endpoint.scheme() == Scheme::Tcp).then(|| {
            // It connects there, and not on the thread of scripts.
            let _requests = self.world.requests.enter();
            self.world.remotes.open(&self.version.config, &endpoint)
        });
        self.connections.push(Connection {
            endpoint,
            raw,
            is_handed: false,
        });
        Ok(number(self.connections.len() - 1))
    }

    /// `send_rpc`.
    pub(crate) fn send_rpc(&mut self, connection: u32, id: u64, text: &[u8]) -> Said<u32> {
        let to = live(&self.connections, connection)?;
        let (connection, endpoint) = (connection as usize, &to.endpoint);
        if self.by_id.contains_key(&(connection, id)) {
            let problem = format!("request {id} was sent on this connection before");
            return Err((Code::Duplicate, problem));
        }
        if self.rpcs.len() >= RPCS_MAX || self.sent + text.len() > SENT_LEN_MAX {
            let problem = format!(
                "a script sends at most {RPCS_MAX} requests, of {SENT_LEN_MAX} bytes in all"
            );
            return Err((Code::Limit, problem));
        }
        self.sent += text.len();
        let request = request::parse(text).map_err(|problem| (Code::Invalid, problem))?;
        let is_http = matches!(
            endpoint.scheme(),
            Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs
        );
        let key = match is_http {
            true => request.key.trim_start_matches('/'),
            false => &request.key,
        };
        if !self.config.allows_key(endpoint, key) {
            let problem = format!(
                "{endpoint}/{}: {}.allow of pilot.toml has no beginning of this key",
                key.escape_default(),
                self.kind.key()
            );
            self.say(&problem);
            return Err((Code::Refused, problem));
        }
        // A query may have a secret of the script.
        let shown = match is_http {
            true => key.split('?').next().unwrap_or_default(),
            false => key,
        };
        let from = match &to.raw {
            None => format!("{endpoint}/{shown}"),
            Some(_) => endpoint.to_string(),
        };
        let reply = to.request(&self.world.remotes, &self.version.config, request);
        self.by_id.insert((connection, id), self.rpcs.len());
        self.rpcs.push(Rpc::begin(&self.world, from, reply));
        Ok(0)
    }

    /// `recv_rpc_reply`: a handle.
    pub(crate) async fn recv_rpc_reply(&mut self, connection: u32, id: u64) -> Said<u32> {
        let at = self.rpc(connection, id)?;
        let Some(rpc) = self.rpcs.get_mut(at) else {
            return Err(no_handle());
        };
        rpc.wait().await.map(|()| number(at))
    }

    /// `reply_len`, `reply_status`.
    pub(crate) fn reply(&self, handle: u32) -> Said<Arc<RemoteReply>> {
        let rpc = self.rpcs.get(handle as usize);
        rpc.and_then(Rpc::reply).ok_or_else(no_handle)
    }

    /// `reply_read`: how many bytes were copied.
    pub(crate) fn read_reply(&mut self, handle: u32, at: u64, into: &mut [u8]) -> Said<u32> {
        let rpc = self.rpcs.get_mut(handle as usize);
        let read = rpc
            .and_then(|rpc| rpc.read(at, into))
            .ok_or_else(no_handle)?;
        let failed = |error: io::Error| (Code::Failed, format!("the reply: {error}"));
        read.map(number).map_err(failed)
    }

    /// `reply_value`: the text of a value of a reply that is JSON.
    pub(crate) fn value_of_reply(&mut self, handle: u32, path: &str) -> Said<String> {
        let len = self.reply(handle)?.memory.bytes();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        check_json(len)?;
        let mut json = vec![0; len];
        self.read_reply(handle, 0, &mut json)?;
        value_at(&json, path).ok_or_else(|| no_value("the reply"))
    }

    /// `send_reply`.
    pub(crate) fn send_reply(&mut self, message: u64, connection: u32, id: u64) -> Said<u32> {
        let at = self.rpc(connection, id)?;
        self.check_message(message)?;
        let (
            World {
                clock, requests, ..
            },
            link,
        ) = (&self.world, &self.link);
        let message_now = match (link, self.rpcs.get(at)) {
            (Some(link), Some(rpc)) => {
                let awaited = rpc.message(message, self.deadline);
                let sending = awaited.send(Arc::clone(clock), Arc::clone(link));
                Message::Going(Running::new(requests.spawn(sending)))
            }
            _ => Message::Reply(at),
        };
        self.messages.insert(message, message_now);
        Ok(0)
    }

    /// `transfer_conn`.
    pub(crate) fn transfer_conn(&mut self, id: u64, address: &[u8], connection: u32) -> Said<u32> {
        let to = live(&self.connections, connection)?;
        let refused = |problem: &str| Err((Code::Refused, problem.to_owned()));
        let Some(raw) = to.raw.clone() else {
            return refused(
                "only a connection to tcp://HOST:PORT can be handed over: the host keeps the others, and signs for them",
            );
        };
        if self.kind == ScriptKind::Shared {
            return refused(
                "a shared script has no connections to hand over: they are for one invocation",
            );
        }
        // Of what is longer, only the beginning is looked at: the text is as long as the script's memory, if the script wants.
        let address = address.get(..ADDRESS_LEN_MAX).unwrap_or(address);
        let address = String::from_utf8_lossy(address).into_owned();
        let names_it = address
            .parse()
            .is_ok_and(|named: Endpoint| named.is_same(&to.endpoint));
        if !names_it {
            let problem = format!(
                "the address \"{}\" is not that of the connection, {}",
                address.escape_default(),
                to.endpoint
            );
            return Err((Code::Invalid, problem));
        }
        if self.handed.contains_key(&id) {
            return Err((
                Code::Duplicate,
                format!("connection {id} was handed over before"),
            ));
        }
        if self.handed.len() >= HANDED_MAX {
            let problem = format!("a script hands at most {HANDED_MAX} connections over");
            return Err((Code::Limit, problem));
        }
        let takes = match self.version.config.runtime.forks() {
            true => Takes::Descriptor,
            false => Takes::Path,
        };
        let handing = Handing::begin(
            &self.world,
            (id, address),
            (raw.as_ref(), takes),
            self.deadline,
            self.link.clone(),
        );
        self.handed.insert(id, handing);
        if let Some(to) = self.connections.get_mut(connection as usize) {
            to.is_handed = true;
        }
        Ok(0)
    }

    /// `send_msg`.
    pub(crate) async fn send_msg(&mut self, message: u64, bytes: Vec<u8>) -> Said<u32> {
        self.check_message(message)?;
        let len = bytes.len() as u64;
        let most = u64::from(self.config.memory_mb) << 20;
        if self.copied + len > most {
            let problem = format!(
                "the messages that a script copies have at most {} MiB in all, as its memory ({}.memory_mb): hand over replies by \
                 reference",
                self.config.memory_mb,
                self.kind.key()
            );
            return Err((Code::Limit, problem));
        }
        self.copied += len;
        let World {
            remotes,
            clock,
            requests,
        } = &self.world;
        let began = clock.now();
        let kept = remotes.keep(&self.version.config.name, bytes);
        let kept = Running::new(requests.spawn(kept)).await;
        let ended = clock.now();
        match kept {
            Some(Ok(memory)) => {
                let kept = match &self.link {
                    None => Message::Bytes {
                        memory,
                        began,
                        ended,
                    },
                    Some(link) => {
                        let (transfer, given) = rpc::copied(message, &memory, (began, ended));
                        rpc::send(message, transfer.clone(), given, link.as_ref());
                        Message::Gone(transfer)
                    }
                };
                self.messages.insert(message, kept);
                Ok(0)
            }
            Some(Err(fault)) => Err((Code::Failed, fault.to_string())),
            None => Err((Code::Failed, "the daemon is stopping".to_owned())),
        }
    }

    /// `recv_msg`: a message of the function, which is waited for.
    pub(crate) async fn recv_msg(&mut self, id: u64) -> Said<Bytes> {
        let Some(link) = &self.link else {
            let problem = "a script gets messages only with during = \"invocation\": otherwise the function is called when it has ended";
            return Err((Code::Refused, problem.to_owned()));
        };
        let message = link.message(id).await;
        message.ok_or_else(|| {
            let problem = format!("message {id}: the function cannot send any more");
            (Code::Failed, problem)
        })
    }

    fn check_message(&self, id: u64) -> Said<()> {
        if self.messages.contains_key(&id) {
            return Err((Code::Duplicate, format!("message {id} was sent before")));
        }
        let most = self.kind.messages_max();
        if self.messages.len() >= most {
            let problem = format!("a script sends at most {most} messages");
            return Err((Code::Limit, problem));
        }
        Ok(())
    }

    fn rpc(&self, connection: u32, id: u64) -> Said<usize> {
        let found = self.by_id.get(&(connection as usize, id)).copied();
        found.ok_or_else(|| {
            let problem = format!("request {id} was not sent on this connection");
            (Code::Unknown, problem)
        })
    }
}

/// A connection that is still the script's.
fn live(connections: &[Connection], connection: u32) -> Said<&Connection> {
    let unknown = |problem: &str| (Code::Unknown, problem.to_owned());
    match connections.get(connection as usize) {
        None => Err(unknown("there is no such connection")),
        Some(one) if one.is_handed => Err(unknown("the connection was handed over")),
        Some(one) => Ok(one),
    }
}

/// Why it failed. `None`: it ended well.
fn problem_of(error: &wasmtime::Error) -> Option<(ScriptEnd, String)> {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        let end = match stop {
            Stop::Exit(0) => return None,
            Stop::Exit(_) => ScriptEnd::Exit,
            Stop::Cpu | Stop::Calls => ScriptEnd::Limit,
            Stop::Memory { .. } => ScriptEnd::Trap,
        };
        return Some((end, stop.to_string()));
    }
    let problem = match error.downcast_ref::<Trap>() {
        Some(trap) => trap.to_string(),
        None => in_words(error),
    };
    Some((ScriptEnd::Trap, problem))
}

/// Whether values are looked for in a text of this length: all of it is read at once, and other scripts wait.
pub(crate) fn check_json(len: usize) -> Said<()> {
    if len <= JSON_LEN_MAX {
        return Ok(());
    }
    let problem = format!("{len} bytes are not read as JSON, but {JSON_LEN_MAX} at most");
    Err((Code::Limit, problem))
}

/// For `event_value` and its like.
pub(crate) fn no_value(what: &str) -> (Code, String) {
    let problem = format!("{what} has no string, number or boolean there");
    (Code::Unknown, problem)
}

fn no_handle() -> (Code, String) {
    (Code::Unknown, "there is no such reply".to_owned())
}

/// A position in a list of bounded length.
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Computing in all, apart from waiting.
const CPU_MAX: Duration = Duration::from_millis(250);
/// The same in epochs.
const TICKS_MAX: u32 = 250;
const CALLS_MAX: u32 = 100_000;
const CONNECTIONS_MAX: usize = 16;
/// Longer than every address of a connection without a protocol.
const ADDRESS_LEN_MAX: usize = 512;
const RPCS_MAX: usize = 32;
const SENT_LEN_MAX: usize = 1 << 20;
/// The longest text in which a script has a value looked for.
const JSON_LEN_MAX: usize = 1 << 20;
/// What it can write to the function's log.
pub(crate) const SAID_LEN_MAX: usize = 4096;
const TABLES_MAX: usize = 4;
const TABLE_LEN_MAX: usize = 10_000;
