//! A chain by header: `X-Pilot-Target: NEXT` names the function that gets the answer as its event, and there may be several, one after
//! the other. The answers stay in the daemon, and every function of the chain starts to start when the request arrives.
//!
//! A function of another node is called when the answer before it is there.
//!
//! It is the caller that chains here. So the caller needs the right to invoke each function, and no function needs `invokes`.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use pilot_invoke::{Elsewhere, InvokeError, Payload, Request, Response, ResponseBody};
use pilot_model::ports::{CallAnswer, CallEnd};
use pilot_model::trace::{Hop, HopKind};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{FunctionName, Interface, Trace, Version};

use super::{Form, Named, checked_event, collect};
use crate::errors::RequestError;
use crate::gate::Gate;
use crate::headers;
use crate::request_context::new_id;
use crate::trace::Recording;

/// A function that gets the answer of the one before.
#[derive(Debug)]
pub(super) enum Link {
    /// On this node.
    Here { version: Arc<Version>, arn: String },
    /// On other nodes.
    There(Elsewhere),
}

/// The answer of a chain.
#[derive(Debug)]
pub(super) enum Answered {
    Here(Box<Response>),
    /// By this function on another node.
    There(FunctionName, CallAnswer),
}

impl Answered {
    fn name(&self) -> &FunctionName {
        match self {
            Self::Here(response) => &response.version.config.name,
            Self::There(name, _) => name,
        }
    }

    /// Why the function failed, if it did so before its answer began.
    fn failure(&self) -> String {
        match self {
            Self::Here(response) => response.outcome.as_str().to_owned(),
            Self::There(name, _) => format!("'{name}' failed on another node"),
        }
    }
}

/// The functions that the header names, in order. It may be repeated, and have several names with commas between them.
///
/// # Errors
/// An invalid name, or too many.
pub(super) fn targets(headers: &HeaderMap) -> Result<Vec<Named>, RequestError> {
    let mut targets = Vec::new();
    for value in headers.get_all(headers::PILOT_TARGET) {
        for name in headers::text(value).split(',') {
            let name = name.trim();
            let named = Named::parse(name, None).map_err(|_| RequestError::Target {
                problem: format!(
                    "'{}' is not a function name: write NAME, or several with commas between them",
                    name.chars().take(NAME_SHOWN_MAX).collect::<String>()
                ),
            })?;
            targets.push(named);
            if targets.len() > TARGETS_MAX {
                return Err(RequestError::Target {
                    problem: format!("it names more than {TARGETS_MAX} functions: split the chain"),
                });
            }
        }
    }
    Ok(targets)
}

/// Looks up the functions.
///
/// # Errors
/// There is no such function, or it takes no events.
pub(super) fn links(targets: &[Named], gate: &Gate, form: Form) -> Result<Vec<Link>, RequestError> {
    let link = |named: &Named| {
        let qualifier = named.qualifier.as_deref();
        if let Some(elsewhere) = gate.invoker.elsewhere(&named.name) {
            if qualifier.is_some_and(|qualifier| qualifier != "$LATEST") {
                return Err(RequestError::Target {
                    problem: format!(
                        "'{}' is on another node, where only its live version can be invoked: leave out the qualifier",
                        named.name
                    ),
                });
            }
            return Ok(Link::There(elsewhere));
        }
        let version = gate.invoker.find(&named.name, qualifier)?;
        if matches!(version.config.interface, Interface::Asgi | Interface::Wsgi) {
            return Err(RequestError::Target {
                problem: format!(
                    "'{}' is an application (interface asgi or wsgi) and takes no events: name another function",
                    named.name
                ),
            });
        }
        let mut inputs = version.config.inputs.values();
        if inputs.any(|input| input.is_body() && !input.optional) {
            return Err(RequestError::Target {
                problem: format!(
                    "'{}' needs the body of a request as an input, which only the first function of a chain has: name another function",
                    named.name
                ),
            });
        }
        let arn = version.arn(qualifier);
        Ok(Link::Here { version, arn })
    };
    let links: Vec<_> = targets.iter().map(link).collect::<Result<_, _>>()?;
    if form == Form::EventStream && matches!(links.last(), Some(Link::There(_))) {
        return Err(RequestError::Target {
            problem: "the last function is on another node, and its answer cannot be streamed: use the operation Invoke"
                .to_owned(),
        });
    }
    Ok(links)
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Answered, Stop>> + Send + 'a>>;

/// Why the chain ends before its last function.
enum Stop {
    Refused(RequestError),
    /// A function failed. Its answer is that of the chain.
    Failed(Answered),
}

impl From<InvokeError> for Stop {
    fn from(error: InvokeError) -> Self {
        Self::Refused(error.into())
    }
}

/// Invokes the functions one after the other. The answer is the last one's, or the first that failed.
///
/// Each invocation waits for its event, which is the answer of the one before. So all are announced to their pools at once, and workers
/// start meanwhile (see `join` in `path/invoke`).
///
/// # Errors
/// The payload's, and those of invoking one of the functions.
pub(super) async fn invoke(
    gate: &Gate,
    mut first: Request,
    payload: impl Future<Output = Result<Payload, RequestError>> + Send,
    targets: Vec<Link>,
) -> Result<Answered, RequestError> {
    let invoker = &gate.invoker;
    let (received, urgency) = (first.received, first.urgency);
    let deadline = urgency.finish_by.unwrap_or(received.after(TIME_MAX));
    let trace = first.trace.take();
    let recording = trace.as_ref().and_then(|trace| {
        Recording::of(gate, trace, |span| Hop {
            span,
            id: first.id.clone(),
            version: Arc::clone(&first.version),
            kind: HopKind::Chain,
            began: received,
            ended: received,
            error: None,
        })
    });
    let below = || trace.as_ref().map(Trace::below_request);
    first.trace = below();
    let mut answer: Answer<'_> = Box::pin(async move {
        let payload = async move { payload.await.map_err(Stop::Refused) };
        let response = invoker.invoke(first, payload).await?;
        Ok(Answered::Here(Box::new(response)))
    });
    for (link, depth) in targets.into_iter().zip(2..) {
        let (version, arn) = match link {
            Link::Here { version, arn } => (version, arn),
            Link::There(elsewhere) => {
                let (before, trace) = (answer, trace.as_ref().map(Trace::below_request));
                answer = Box::pin(async move {
                    let before = before.await?;
                    let caller = before.name().clone();
                    let event = event_of(before, gate).await?;
                    let left = Duration::from_nanos(deadline.0.saturating_sub(invoker.now().0));
                    let asked = elsewhere.invoke(&caller, depth, left, trace, event);
                    Ok(Answered::There(elsewhere.function.clone(), asked.await?))
                });
                continue;
            }
        };
        let request = Request {
            id: new_id(),
            arn,
            version,
            received,
            client_context: None,
            trace: below(),
            trigger: FaasTrigger::Other,
            urgency,
            chain: None,
            inputs: BTreeMap::new(),
        };
        let before = answer;
        answer = Box::pin(async move {
            let payload = async move {
                let event = event_of(before.await?, gate).await?;
                Ok::<_, Stop>(Payload::event(event))
            };
            let response = invoker.invoke(request, payload).await?;
            Ok(Answered::Here(Box::new(response)))
        });
    }
    let answer = answer.await;
    if let Some(recording) = recording {
        recording.ended(match &answer {
            Ok(_) => None,
            Err(Stop::Failed(answered)) => Some(answered.failure()),
            Err(Stop::Refused(error)) => Some(error.to_string()),
        });
    }
    match answer {
        Ok(answered) | Err(Stop::Failed(answered)) => Ok(answered),
        Err(Stop::Refused(error)) => Err(error),
    }
}

/// The answer of a function as the event of the next one.
async fn event_of(answered: Answered, gate: &Gate) -> Result<Bytes, Stop> {
    let mut response = match answered {
        Answered::There(
            name,
            CallAnswer {
                end: CallEnd::Done,
                body,
            },
        ) => return next_event(&name, body),
        failed @ Answered::There(..) => return Err(Stop::Failed(failed)),
        Answered::Here(response) => response,
    };
    let limit = gate.config.result_bytes_max;
    let body = std::mem::replace(&mut response.body, ResponseBody::Result(Bytes::new()));
    match body {
        ResponseBody::Result(answer) => next_event(&response.version.config.name, answer),
        ResponseBody::Http { mut body, .. } => {
            let memory = gate.config.answers.of(&response.version.config.name);
            match collect(&mut body, &response.id, &[], limit, memory.nothing()).await {
                Ok(whole) => next_event(&response.version.config.name, whole),
                Err(error) => {
                    response.body = ResponseBody::FunctionError(error);
                    Err(Stop::Failed(Answered::Here(response)))
                }
            }
        }
        // Calls never have the last two.
        failed @ (ResponseBody::FunctionError(_)
        | ResponseBody::Passed(_)
        | ResponseBody::Upgraded(_)) => {
            response.body = failed;
            Err(Stop::Failed(Answered::Here(response)))
        }
    }
}

/// The answer of this function as the next one's event. Clients of the Runtime API and other nodes answer what they like.
fn next_event(name: &FunctionName, answer: Bytes) -> Result<Bytes, Stop> {
    checked_event(answer).map_err(|error| {
        Stop::Refused(RequestError::Target {
            problem: format!(
                "the answer of '{name}' cannot be the event of the next function: {error}"
            ),
        })
    })
}

/// Most functions after the first one: as many as functions that invoke each other can have.
const TARGETS_MAX: usize = 15;
/// How long a function on another node may take if the request says nothing: as long as in Lambda.
const TIME_MAX: Duration = Duration::from_secs(900);
/// Characters of a wrong name in a message.
const NAME_SHOWN_MAX: usize = 140;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(values: &[&'static str]) -> Result<Vec<String>, String> {
        let name = headers::PILOT_TARGET;
        let values = values.iter().copied().map(HeaderValue::from_static);
        let headers = values.map(|value| (name.clone(), value)).collect();
        let targets = targets(&headers).map_err(|error| error.to_string())?;
        Ok(targets.into_iter().map(|target| target.name).collect())
    }

    #[test]
    fn targets_are_names_in_order() {
        assert_eq!(read(&[]).unwrap(), [""; 0]);
        assert_eq!(read(&["b", "c , d:2"]).unwrap(), ["b", "c", "d"]);
    }

    #[test]
    fn what_is_no_name_or_too_many_is_refused() {
        for wrong in ["", "a,", "a/b", "a b"] {
            assert!(
                read(&[wrong])
                    .unwrap_err()
                    .contains("is not a function name"),
                "{wrong}"
            );
        }
        assert_eq!(read(&["a"; 15]).unwrap().len(), 15);
        assert!(read(&["a"; 16]).unwrap_err().contains("more than 15"));
    }
}
