//! The connections of a script: the endpoints that it sends requests to, and those without a protocol, which it may give to the function.

use std::sync::Arc;

use pilot_model::initscript::Endpoint;
use pilot_model::ports::{
    HandedConnection, HandedSocket, InputFaultKind, RawConnection, RemoteFault, RemoteReply,
    RemoteRequest, Remotes, ScriptLink, ScriptSent, Takes,
};
use pilot_model::{BoxFuture, FunctionConfig, TransferWay};
use tokio::time::{Instant as Deadline, timeout_at};

use super::World;
use crate::threads::Running;

/// A connection of a script.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) endpoint: Endpoint,
    /// Only of the scheme `tcp`. Other connections are the host's: it pools them, and signs for them.
    pub(crate) raw: Option<Arc<dyn RawConnection>>,
    /// It is the function's now.
    pub(crate) is_handed: bool,
}

impl Connection {
    /// Sends a request.
    pub(crate) fn request(
        &self,
        remotes: &Arc<dyn Remotes>,
        config: &FunctionConfig,
        request: RemoteRequest,
    ) -> BoxFuture<'static, Result<RemoteReply, RemoteFault>> {
        let Some(raw) = &self.raw else {
            return remotes.request(config, &self.endpoint, request);
        };
        let (reply, remotes, function) = (
            raw.exchange(request),
            Arc::clone(remotes),
            config.name.clone(),
        );
        Box::pin(async move {
            let bytes = reply.await?;
            let kept = remotes.keep(&function, bytes).await;
            let memory = kept.map_err(|fault| RemoteFault {
                kind: InputFaultKind::Unavailable,
                problem: fault.to_string(),
            })?;
            Ok(RemoteReply {
                memory,
                object: None,
                status: 200,
                way: TransferWay::Fetched,
            })
        })
    }
}

/// A connection that becomes the function's as soon as its exchanges have ended.
#[derive(Debug)]
pub(crate) struct Handing {
    id: u64,
    address: String,
    socket: Running<Result<HandedSocket, String>>,
}

impl Handing {
    /// `link`: it goes to the function as soon as it is there.
    pub(crate) fn begin(
        world: &World,
        (id, address): (u64, String),
        (raw, takes): (&dyn RawConnection, Takes),
        deadline: Deadline,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> Self {
        let handed = raw.hand_over(takes);
        let (shown, of_task) = (address.clone(), address);
        let socket = world.requests.spawn(async move {
            let socket = match timeout_at(deadline, handed).await {
                Err(_) => Err("it was not there in time".to_owned()),
                Ok(socket) => socket.map_err(|fault| fault.problem),
            };
            let Some(link) = link else { return socket };
            let problem = socket.as_ref().err().cloned();
            link.sent(ScriptSent::Connection(HandedConnection {
                id,
                address: of_task,
                socket,
            }));
            // It is the function's.
            Err(problem.unwrap_or_default())
        });
        Self {
            id,
            address: shown,
            socket: Running::new(socket),
        }
    }

    /// Waits for it. An error without a text: the function has it.
    pub(crate) async fn collect(self, deadline: Deadline) -> HandedConnection {
        let socket = timeout_at(deadline, self.socket).await;
        let late = || Err("it was not there in time".to_owned());
        HandedConnection {
            id: self.id,
            address: self.address,
            socket: socket.ok().flatten().unwrap_or_else(late),
        }
    }
}
