//! What initscripts send requests to: the stores and the queues of `pilotd.toml` by their names, with the daemon's credentials, and
//! servers of the internet by their hosts, without any. Replies lie in the same buffers as inputs.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pilot_model::initscript::{Endpoint, check_target};
use pilot_model::inputs::{Location, Scheme, check_key};
use pilot_model::ports::{
    BlankMemory, InputFaultKind as Kind, InputMemory, MemoryFault, QueueRequest, RawConnection,
    RemoteFault, RemoteReply, RemoteRequest, Remotes, StoreRead,
};
use pilot_model::{BoxFuture, FunctionConfig, FunctionName, Instant};

use crate::buffers::Buffers;
use crate::buffers::buffer::Until;
use crate::buffers::index::ObjectId;
use crate::flight::{Fetch, fetch};
use crate::handover::Blank;
use crate::raw::Raw;
use crate::room::Waiting;
use crate::source::Data;
use crate::stores::direct::{HttpRequest, STATUS};
use crate::stores::grpc::GrpcCall;
use crate::stores::queue::OneAnswer;
use crate::stores::{Store, StoreError};

/// What a request goes to.
#[derive(Debug)]
enum Target {
    /// A store of the operator, by its name.
    Store(Arc<dyn Store>),
    Http,
    Grpc,
    Redis,
    /// The queues of a connection of the operator, by its name.
    Queues,
    /// A connection without a protocol.
    Raw,
}

impl Data {
    /// What an endpoint is for a function. A store comes before a host of the same name.
    fn target(&self, function: &FunctionName, endpoint: &Endpoint) -> Result<Target, String> {
        let has_store = endpoint.port().is_none() && self.scheme_of(endpoint.host()).is_some();
        match endpoint.scheme() {
            Scheme::Http if !has_store => Ok(Target::Http),
            Scheme::Https if !has_store => Ok(Target::Http),
            Scheme::Redis if !has_store => Ok(Target::Redis),
            Scheme::Grpc | Scheme::Grpcs => Ok(Target::Grpc),
            Scheme::Tcp => Ok(Target::Raw),
            Scheme::Sqs => {
                let checked = self.queues.check(function.as_str(), endpoint.host());
                checked.map(|()| Target::Queues)
            }
            Scheme::Rediss if !has_store => Err(format!(
                "{endpoint}: a Redis over TLS must be a store: the operator adds it to [stores] in pilotd.toml"
            )),
            _ => {
                let location = Location::literal(&format!("{endpoint}/key"))?;
                self.named(function, &location).map(Target::Store)
            }
        }
    }

    fn begin(
        &self,
        config: &FunctionConfig,
        endpoint: &Endpoint,
        request: RemoteRequest,
    ) -> Result<(Arc<dyn Store>, ObjectId), StoreError> {
        let target = self.target(&config.name, endpoint);
        let target = target.map_err(|problem| StoreError::new(Kind::Forbidden, &problem))?;
        let wrong = |problem: &str| StoreError::new(Kind::Key, problem);
        match &target {
            Target::Http | Target::Grpc => {
                check_target(&request.key).map_err(|problem| wrong(&problem))?;
            }
            Target::Queues if !request.headers.is_empty() => {
                return Err(wrong("a request to a queue has no headers"));
            }
            Target::Queues | Target::Raw => {}
            Target::Store(_) | Target::Redis => {
                let is_plain = request.method == "GET"
                    && request.headers.is_empty()
                    && request.body.is_empty();
                if !is_plain {
                    let problem =
                        "a request to a store or a Redis is GET and a key, and nothing else";
                    return Err(wrong(problem));
                }
            }
        }
        if !matches!(target, Target::Http | Target::Grpc) {
            check_key(&request.key).map_err(|missing| wrong(&missing.to_string()))?;
        }
        let number = self.direct.number();
        let mut object = ObjectId {
            owner: config.owner().to_owned(),
            // The name of a store has no slash.
            store: format!("{endpoint}/{number}"),
            key: request.key.clone(),
            decoder: None,
        };
        let store = match target {
            Target::Store(store) => {
                endpoint.host().clone_into(&mut object.store);
                store
            }
            Target::Http => {
                let request = HttpRequest::new(endpoint, request)?;
                self.direct.http.once(request)
            }
            Target::Grpc => self.direct.grpc.once(GrpcCall::new(endpoint, &request)?),
            Target::Redis => self.direct.redis.at(endpoint),
            Target::Raw => return Err(wrong("it has no requests of its own")),
            Target::Queues => Arc::new(OneAnswer {
                queues: Arc::clone(&self.queues),
                request: QueueRequest {
                    function: config.name.clone(),
                    connection: endpoint.host().to_owned(),
                    queue: request.key,
                    action: request.method,
                    arguments: request.body,
                },
            }),
        };
        Ok((store, object))
    }
}

impl Remotes for Data {
    fn check(&self, config: &FunctionConfig) -> Result<(), String> {
        let scripts = config.initscripts();
        let allowed =
            scripts.flat_map(|(kind, script)| script.allow.iter().map(move |one| (kind, one)));
        for (kind, allowed) in allowed {
            let endpoint = allowed.endpoint();
            let literal = endpoint.host().trim_matches(['[', ']']).parse::<IpAddr>();
            let checked =
                self.target(&config.name, endpoint)
                    .and_then(|target| match (target, literal) {
                        (
                            Target::Http | Target::Grpc | Target::Redis | Target::Raw,
                            Ok(address),
                        ) => self.networks.check(address),
                        _ => Ok(()),
                    });
            checked.map_err(|problem| {
                let entry = String::from(allowed.clone());
                format!(
                    "functions.{}.{}.allow: \"{entry}\": {problem}",
                    config.name,
                    kind.key()
                )
            })?;
        }
        Ok(())
    }

    fn request(
        &self,
        config: &FunctionConfig,
        endpoint: &Endpoint,
        request: RemoteRequest,
    ) -> BoxFuture<'static, Result<RemoteReply, RemoteFault>> {
        let key = request.key.clone();
        let begun = self.begin(config, endpoint, request);
        let (buffers, function) = (Arc::clone(&self.buffers), config.name.clone());
        let names_objects = self.drop_ins && config.drop_ins;
        let asked = self.clock.now();
        Box::pin(async move {
            let reply = async {
                let (store, object) = begun?;
                reply(
                    &buffers,
                    &store,
                    object,
                    &function,
                    names_objects.then_some((key, asked)),
                )
                .await
            };
            reply.await.map_err(|error: StoreError| RemoteFault {
                kind: error.kind,
                problem: error.problem,
            })
        })
    }

    fn open(&self, config: &FunctionConfig, endpoint: &Endpoint) -> Arc<dyn RawConnection> {
        Arc::new(Raw::open(
            self.networks.clone(),
            Arc::clone(&self.direct.relays),
            config.name.clone(),
            endpoint.clone(),
        ))
    }

    fn keep(
        &self,
        function: &FunctionName,
        bytes: Vec<u8>,
    ) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>> {
        let (buffers, handed) = (Arc::clone(&self.buffers), Arc::clone(&self.handed));
        let function = function.clone();
        Box::pin(async move {
            let blank = Blank::new(&buffers, &handed, &function, bytes.len() as u64).await?;
            let blank = Arc::new(blank);
            let written = blank.descriptor().map_or(Ok(()), |descriptor| {
                File::from(descriptor.try_clone()?).write_all_at(&bytes, 0)
            });
            written.map_err(|error| MemoryFault::Failed {
                problem: format!("no memory for a message: {error}"),
            })?;
            blank.seal().await
        })
    }
}

async fn reply(
    buffers: &Arc<Buffers>,
    store: &Arc<dyn Store>,
    object: ObjectId,
    function: &FunctionName,
    named: Option<(String, Instant)>,
) -> Result<RemoteReply, StoreError> {
    // An initscript may have read it already, so what it got cannot be given back.
    let waiting = Waiting::default();
    let Fetch { used, way, .. } = fetch(
        buffers,
        store,
        object,
        function,
        Until::Whole,
        waiting.place(0),
    )
    .await?;
    let said = used.headers();
    let headers: BTreeMap<&str, &str> = said
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let status = headers.get(STATUS).and_then(|status| status.parse().ok());
    let object = named.and_then(|(key, asked)| {
        let object = store.named(&key, &said)?;
        Some(StoreRead { object, asked })
    });
    Ok(RemoteReply {
        object: object.map(Arc::new),
        status: status.unwrap_or(200),
        way,
        memory: Arc::new(used),
    })
}
