//! A store whose objects are decoded: a decoder between another store and the buffer. To everything else it is a store like others, so that
//! what was decoded is shared, kept, charged and given up as any input is, and the store is asked before it is used again.
//!
//! The decoder is a process that believes the store, and that the daemon does not believe (`pilot_model::ports::DecoderHost`). It
//! gets the bytes over a socket while they arrive, and sends the result back. It never has a descriptor of the buffer. What it says
//! of the result is checked, and each wait for it has a limit.

mod permits;

use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::OptionFuture;
use futures_util::stream::{BoxStream, try_unfold};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use pilot_model::inputs::decoded::{DecodeAnswer, DecodeRequest, Decoded, HEADER_LEN_MAX, Layout};
use pilot_model::inputs::{Decoder, Form};
use pilot_model::ports::{Clock, DecoderHost, DecoderProcess, InputFaultKind};
use pilot_model::{BoxFuture, FunctionName, Instant};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::flight::wrong_length;
use crate::stores::{Got, Object, Store, StoreError, Validator, too_large};
use permits::{DecoderPermit, DecoderPermits};

/// The decoders of all inputs.
#[derive(Debug)]
pub(crate) struct Decoders {
    host: Arc<dyn DecoderHost>,
    permits: DecoderPermits,
    clock: Arc<dyn Clock>,
}

/// What is known of a decoded object.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) decoded: Decoded,
    /// The decoder had all of the store's bytes.
    pub(crate) began: Instant,
}

/// What is known of an object from [`DecodedStore`]. `headers`: its headers.
pub(crate) fn described(headers: &[(String, String)]) -> Option<Described> {
    let (_, json) = headers.iter().find(|(name, _)| name == DESCRIBED)?;
    serde_json::from_str(json).ok()
}

impl Decoders {
    pub(crate) fn new(host: Arc<dyn DecoderHost>, clock: Arc<dyn Clock>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            host,
            permits: DecoderPermits::new(cpus),
            clock,
        }
    }

    /// The objects of a store, decoded for a function. `bytes_max`: the longest object, decoded or not.
    pub(crate) fn over(
        self: Arc<Self>,
        store: &Arc<dyn Store>,
        function: &FunctionName,
        (by, form): (Decoder, Form),
        bytes_max: u64,
    ) -> DecodedStore {
        DecodedStore {
            store: Arc::clone(store),
            function: function.clone(),
            by,
            form,
            bytes_max,
            decoders: self,
        }
    }

    /// A process that has read nothing yet.
    async fn start(&self, mut permit: DecoderPermit) -> Result<Started, StoreError> {
        permit.take_turn().await;
        let process = self.host.start().await;
        permit.give_turn();
        let process = process.map_err(|problem| not_started(&problem))?;
        Ok(Started { process, permit })
    }
}

/// A process that has read nothing yet.
struct Started {
    process: Box<dyn DecoderProcess>,
    permit: DecoderPermit,
}

impl Started {
    fn running(mut self, by: Decoder) -> Result<Running, StoreError> {
        let socket = self.process.socket();
        let socket = socket.ok_or_else(|| not_started("it has no socket"))?;
        let socket = UnixStream::from_std(StdUnixStream::from(socket));
        Ok(Running {
            by,
            socket: socket.map_err(|error| not_started(&error.to_string()))?,
            process: self.process,
            permit: self.permit,
        })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DecodedStore {
    store: Arc<dyn Store>,
    function: FunctionName,
    by: Decoder,
    form: Form,
    bytes_max: u64,
    decoders: Arc<Decoders>,
}

impl Store for DecodedStore {
    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let permits = &self.decoders.permits;
            let now = || permits.take(&self.function);
            // What is known has seldom changed, so nothing is started for it in advance.
            let mut permit = if known.is_none() { now() } else { None };
            loop {
                // The process starts while the store is asked.
                let starting = permit.take().map(|permit| self.decoders.start(permit));
                let starting = OptionFuture::from(starting);
                let (got, started) = tokio::join!(self.store.get(key, known), starting);
                let object = match got {
                    Ok(Got::Object(object)) => object,
                    // Nobody has used the process.
                    other => {
                        if let Some(Ok(started)) = started {
                            started.process.unused();
                        }
                        // What is known of the result is not what the store says about the object.
                        return other.map(|_| Got::Unchanged(None));
                    }
                };
                let started = match started {
                    Some(started) => Some(started),
                    None => OptionFuture::from(now().map(|it| self.decoders.start(it))).await,
                };
                if let Some(started) = started {
                    return self.decode(object, started?).await.map(Got::Object);
                }
                // Who waits has no connection meanwhile.
                drop(object);
                permit = permits.wait(&self.function).await;
            }
        })
    }

    fn retries(&self) -> u32 {
        self.store.retries()
    }
}

impl DecodedStore {
    async fn decode(&self, object: Object, started: Started) -> Result<Object, StoreError> {
        if let Some(len) = object.len.filter(|len| *len > self.bytes_max) {
            return Err(too_large(Some(len), self.bytes_max));
        }
        let mut running = started.running(self.by)?;
        let request = DecodeRequest {
            by: self.by,
            form: self.form,
            len: object.len,
            bytes_max: self.bytes_max,
            memory_bytes: self.decoders.host.memory_bytes(),
        };
        let told = match running.tell(&request, object.len, object.body).await {
            Ok(()) => {
                let began = self.decoders.clock.now();
                running.answer(&request).await.map(|it| (began, it))
            }
            // It may have said why.
            Err(Failure::Ended) => match running.answer(&request).await {
                Err(failure) => Err(failure),
                Ok(_) => Err(Failure::Ended),
            },
            Err(known) => Err(known),
        };
        // What is left is to send the result, for which there may be no room yet.
        running.permit.give_turn();
        let (began, (len, layout)) = match told {
            Ok(told) => told,
            Err(Failure::Known(error)) => return Err(error),
            Err(Failure::Ended) => return Err(running.ended().await),
        };
        let decoded = Decoded {
            by: self.by,
            layout,
        };
        let described = serde_json::to_string(&Described { decoded, began });
        let described = described.map_err(|error| self.by.fault(&error.to_string()))?;
        Ok(Object {
            len: Some(len),
            validator: object.validator,
            headers: vec![(DESCRIBED.to_owned(), described)],
            body: running.body(len),
        })
    }
}

/// A process that decodes an object.
struct Running {
    by: Decoder,
    socket: UnixStream,
    process: Box<dyn DecoderProcess>,
    permit: DecoderPermit,
}

/// Why a process has no result.
enum Failure {
    Known(StoreError),
    /// It has closed its socket.
    Ended,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Known(error)
    }
}

impl Running {
    /// Sends it the object, as it comes from the store.
    async fn tell(
        &mut self,
        request: &DecodeRequest,
        announced: Option<u64>,
        mut body: BoxStream<'static, Result<Bytes, StoreError>>,
    ) -> Result<(), Failure> {
        let line = serde_json::to_vec(request);
        let mut line = line.map_err(|error| self.by.fault(&error.to_string()))?;
        line.push(b'\n');
        self.permit.take_turn().await;
        self.send(&line).await?;
        let mut len = 0;
        loop {
            let next = match body.try_next().now_or_never() {
                Some(next) => next,
                // Others need not wait for this store.
                None => {
                    self.permit.give_turn();
                    let next = body.try_next().await;
                    self.permit.take_turn().await;
                    next
                }
            };
            let Some(bytes) = next? else { break };
            len += bytes.len() as u64;
            match announced {
                Some(announced) if len > announced => {
                    return Err(wrong_length(announced, "more").into());
                }
                None if len > request.bytes_max => {
                    return Err(too_large(None, request.bytes_max).into());
                }
                _ => self.send(&bytes).await?,
            }
        }
        if let Some(announced) = announced.filter(|announced| len < *announced) {
            return Err(wrong_length(announced, "less").into());
        }
        self.socket.shutdown().await.map_err(|_| Failure::Ended)
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match timeout(STEP_TIME_MAX, self.socket.write_all(bytes)).await {
            Ok(sent) => sent.map_err(|_| Failure::Ended),
            Err(_) => Err(self.too_slow()),
        }
    }

    fn too_slow(&self) -> Failure {
        let seconds = STEP_TIME_MAX.as_secs();
        let problem = format!("the decoder needs more than {seconds} s");
        Failure::Known(self.by.fault(&problem))
    }

    /// The length of the result, and what lies where in it.
    async fn answer(&mut self, request: &DecodeRequest) -> Result<(u64, Layout), Failure> {
        let bytes_max = request.bytes_max;
        let read = timeout(STEP_TIME_MAX, read_answer(&mut self.socket)).await;
        let Ok(json) = read else {
            return Err(self.too_slow());
        };
        let json = json.map_err(|_| Failure::Ended)?;
        let fault = |problem: &str| Failure::Known(self.by.fault(problem));
        match serde_json::from_slice(&json) {
            Err(_) => Err(fault("the decoder's answer cannot be read")),
            Ok(DecodeAnswer::Failed { problem }) => Err(fault(&problem)),
            Ok(DecodeAnswer::Done { len, .. }) if len > bytes_max => {
                Err(too_large(Some(len), bytes_max).into())
            }
            Ok(DecodeAnswer::Done { layout, .. }) if layout.form() != request.form => Err(fault(
                "the decoder's answer has another form than it should",
            )),
            Ok(DecodeAnswer::Done { len, layout }) => match layout.check(len) {
                Ok(()) => Ok((len, layout)),
                Err(problem) => Err(fault(&format!("the decoder's answer: {problem}"))),
            },
        }
    }

    /// The result, of which this many bytes follow.
    fn body(self, len: u64) -> BoxStream<'static, Result<Bytes, StoreError>> {
        let pieces = try_unfold((self, len), |(mut running, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let room = usize::try_from(left).unwrap_or(PIECE_LEN).min(PIECE_LEN);
            let mut piece = BytesMut::with_capacity(room);
            let mut rest = (&mut running.socket).take(left);
            let Ok(read) = timeout(STEP_TIME_MAX, rest.read_buf(&mut piece)).await else {
                return Err(running.by.fault("the decoder does not send its result"));
            };
            match read {
                Ok(1..) => {
                    let left = left - piece.len() as u64;
                    Ok(Some((piece.freeze(), (running, left))))
                }
                Ok(0) | Err(_) => Err(running.ended().await),
            }
        });
        pieces.boxed()
    }

    async fn ended(self) -> StoreError {
        let end = self.process.ended().await;
        self.by.fault(&format!("the decoder failed: {end}"))
    }
}

async fn read_answer(socket: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let len = socket.read_u32_le().await?;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > HEADER_LEN_MAX {
        return Ok(Vec::new());
    }
    let mut json = vec![0; len];
    socket.read_exact(&mut json).await?;
    Ok(json)
}

trait Faults {
    /// Why an object cannot be decoded.
    fn fault(self, problem: &str) -> StoreError;
}

impl Faults for Decoder {
    fn fault(self, problem: &str) -> StoreError {
        let problem = format!("it cannot be decoded as {}: {problem}", self.as_str());
        StoreError::new(InputFaultKind::Decode, &problem)
    }
}

fn not_started(problem: &str) -> StoreError {
    let problem = format!("no decoder could be started: {problem}");
    StoreError::new(InputFaultKind::Unavailable, &problem)
}

/// No name of an HTTP header, so no store says it.
const DESCRIBED: &str = "decoded:";
/// How long a process may take for what it does at a time: read a part of the object, decode all of it, send a part of the result.
const STEP_TIME_MAX: Duration = Duration::from_secs(30);
/// What is read of a result at once, bytes.
const PIECE_LEN: usize = 256 << 10;

#[cfg(test)]
mod tests;
