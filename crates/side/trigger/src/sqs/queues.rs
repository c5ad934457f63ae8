//! [`ConnectedQueues`]: the queues of connections for initscripts. A script names a connection, a queue below its URL and an action; the
//! URL, the signature and the credentials are the daemon's.

use std::collections::BTreeMap;
use std::sync::Arc;

use http_body_util::BodyExt;
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::{
    BodyError, InputFaultKind as Kind, QueueRequest, Queues, RemoteFault, StreamedBody,
};
use serde_json::{Map, Value};

use super::client::{Queue, SqsAccess};
use crate::connections::{Connections, contains};

/// The queues of all connections. Implements the port.
#[derive(Debug)]
pub struct ConnectedQueues(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    /// The clients of the connections that were used, with their open connections. Guards the map; held for one look-up, and while a
    /// client is made.
    open: Mutex<BTreeMap<String, Queue>>,
}

impl ConnectedQueues {
    /// Connects to nothing.
    #[must_use]
    pub fn new(connections: Arc<Connections>) -> Self {
        Self(Arc::new(Inner {
            connections,
            open: Mutex::default(),
        }))
    }
}

impl Inner {
    fn access(&self, request: &QueueRequest) -> Result<(&SqsAccess, String), RemoteFault> {
        let forbidden = |problem: String| fault(Kind::Forbidden, problem);
        let access = self
            .connections
            .queues(request.function.as_str(), &request.connection)
            .map_err(forbidden)?;
        let url = format!("{}/{}", access.url.trim_end_matches('/'), request.queue);
        let is_name = request
            .queue
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
        if !is_name || request.queue.is_empty() || !contains(&access.url, &url) {
            return Err(fault(
                Kind::Key,
                format!(
                    "\"{}\" is not the name of a queue: a name has letters, digits, '-', '_' and '.'",
                    request.queue.escape_default()
                ),
            ));
        }
        Ok((access, url))
    }

    fn queue(&self, request: &QueueRequest) -> Result<Queue, RemoteFault> {
        let (access, url) = self.access(request)?;
        let mut open = self.open.lock();
        let there = match open.get(&request.connection) {
            Some(there) => there.clone(),
            None => {
                let opened = Queue::open(access, &access.url)
                    .map_err(|problem| fault(Kind::Unavailable, problem))?;
                open.insert(request.connection.clone(), opened.clone());
                opened
            }
        };
        Ok(there.at(url))
    }
}

impl Queues for ConnectedQueues {
    fn check(&self, function: &str, connection: &str) -> Result<(), String> {
        self.0.connections.queues(function, connection).map(drop)
    }

    fn url(&self, request: &QueueRequest) -> Option<String> {
        let access = self.0.access(request);
        access.ok().map(|(_, url)| url)
    }

    fn call(&self, request: QueueRequest) -> BoxFuture<'static, Result<StreamedBody, RemoteFault>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let (arguments, queue) = (arguments(&request)?, inner.queue(&request)?);
            let response = queue.send(&request.action, arguments).await;
            let response = response.map_err(|problem| fault(Kind::Unavailable, problem))?;
            let body = http::Response::from(response).into_body();
            // The error of the client would tell the URL once more.
            let body = body.map_err(|error| BodyError::from(error.without_url()));
            Ok(body.boxed_unsync())
        })
    }
}

/// The arguments of an action that scripts may ask for.
fn arguments(request: &QueueRequest) -> Result<Map<String, Value>, RemoteFault> {
    if !ACTIONS.contains(&request.action.as_str()) {
        return Err(fault(
            Kind::Key,
            format!(
                "\"{}\" is not for initscripts: use one of {}",
                request.action.escape_default(),
                ACTIONS.join(", ")
            ),
        ));
    }
    if request.arguments.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&request.arguments).map_err(|error| {
        let action = &request.action;
        fault(
            Kind::Key,
            format!("the arguments of {action} must be an object of JSON: {error}"),
        )
    })
}

fn fault(kind: Kind, problem: String) -> RemoteFault {
    RemoteFault { kind, problem }
}

/// What takes, returns and adds messages. Nothing here changes a queue itself, or empties it.
const ACTIONS: [&str; 8] = [
    "ReceiveMessage",
    "DeleteMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "SendMessage",
    "SendMessageBatch",
    "GetQueueAttributes",
];

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::connections::{ConnectionConfig, ConnectionKind};
    use crate::sqs::client::{SqsAccess, SqsCredentials};

    fn queues() -> ConnectedQueues {
        let access = SqsAccess {
            url: "http://127.0.0.1:1/account".to_owned(),
            region: None,
            credentials: SqsCredentials::Anonymous,
            ca_pem: None,
        };
        let connection = ConnectionConfig {
            name: "jobs".to_owned(),
            functions: vec!["resize".to_owned()],
            kind: ConnectionKind::Sqs(access),
        };
        ConnectedQueues::new(Arc::new(Connections::new(vec![connection])))
    }

    async fn refused(function: &str, queue: &str, action: &str, arguments: &'static str) -> Kind {
        let request = QueueRequest {
            function: function.parse().unwrap(),
            connection: "jobs".to_owned(),
            queue: queue.to_owned(),
            action: action.to_owned(),
            arguments: Bytes::from_static(arguments.as_bytes()),
        };
        queues().call(request).await.unwrap_err().kind
    }

    #[tokio::test]
    async fn a_script_gets_only_messages_of_queues_of_its_connection() {
        assert!(queues().check("resize", "jobs").is_ok());
        let problem = queues().check("other", "jobs").unwrap_err();
        assert!(problem.contains("[connections.jobs]"), "{problem}");
        let receive = "ReceiveMessage";
        assert_eq!(
            refused("other", "tasks", receive, "").await,
            Kind::Forbidden
        );
        for queue in [
            "",
            "..",
            "../other/q",
            "a/../../q",
            "tasks?x",
            "a%2e",
            "ä",
            "a b",
        ] {
            assert_eq!(
                refused("resize", queue, receive, "").await,
                Kind::Key,
                "{queue}"
            );
        }
        for action in [
            "PurgeQueue",
            "DeleteQueue",
            "SetQueueAttributes",
            "x\r\ny: z",
        ] {
            assert_eq!(
                refused("resize", "tasks", action, "").await,
                Kind::Key,
                "{action}"
            );
        }
        for arguments in ["[]", "{", "1"] {
            assert_eq!(
                refused("resize", "tasks", receive, arguments).await,
                Kind::Key
            );
        }
    }
}
