//! The Extensions API (`2020-01-01`), as far as extensions need it to run: they register, wait for events and get them.
//!
//! Unlike Lambda, nobody waits for an extension: a worker is ready when its runtime polls, and free when it has answered. Events
//! wait for the extension, up to a bound. Extensions may register at any time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// One worker's extensions.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    /// In the order in which they registered; at most [`EXTENSIONS_MAX`]. The lock guards the list, and is held for a look-up.
    registered: Mutex<Vec<Arc<Extension>>>,
    /// Numbers events.
    events: AtomicU64,
}

/// An extension that has registered.
#[derive(Debug)]
pub(super) struct Extension {
    /// What it names itself with from now on: in the form of a UUID, unique within the worker.
    pub(super) id: String,
    name: String,
    subscribed: Subscribed,
    /// Events that it has not fetched; the oldest goes when there are more than [`EVENTS_MAX`].
    queue: Mutex<VecDeque<Bytes>>,
    fetch: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct Subscribed {
    invoke: bool,
    shutdown: bool,
}

/// Why an extension cannot register: the type and the message of the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) kind: &'static str,
    pub(super) message: String,
}

#[derive(Deserialize)]
struct Registration {
    /// `null` is none, too: so aws-lambda-go registers.
    events: Option<Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Invoke<'a> {
    event_type: &'static str,
    deadline_ms: u64,
    request_id: &'a str,
    invoked_function_arn: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracing: Option<Tracing<'a>>,
}

#[derive(Serialize)]
struct Tracing<'a> {
    r#type: &'static str,
    value: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shutdown {
    event_type: &'static str,
    shutdown_reason: &'static str,
    deadline_ms: u64,
}

impl Extensions {
    /// Takes an extension in. `body` is `{"events": ["INVOKE", "SHUTDOWN"]}`.
    pub(super) fn register(&self, name: &str, body: &[u8]) -> Result<Arc<Extension>, Rejected> {
        let reject = |kind, message: String| Err(Rejected { kind, message });
        if name.is_empty() {
            return reject(
                "Extension.InvalidExtensionName",
                "Empty extension name".to_owned(),
            );
        }
        let registration: Registration = match serde_json::from_slice(body) {
            Ok(registration) => registration,
            Err(error) => return reject("InvalidRequestFormat", error.to_string()),
        };
        let mut subscribed = Subscribed::default();
        for event in registration.events.iter().flatten() {
            match event.as_str() {
                "INVOKE" => subscribed.invoke = true,
                "SHUTDOWN" => subscribed.shutdown = true,
                other => {
                    let message = format!("{other}: the events are INVOKE and SHUTDOWN");
                    return reject("Extension.InvalidEventType", message);
                }
            }
        }
        let mut registered = self.registered.lock();
        if registered.iter().any(|other| other.name == name) {
            let message = "Extension with this name already registered".to_owned();
            return reject("Extension.InvalidExtensionState", message);
        }
        if registered.len() >= EXTENSIONS_MAX {
            let message = format!("Extension limit ({EXTENSIONS_MAX}) reached");
            return reject("Extension.TooManyExtensions", message);
        }
        let extension = Arc::new(Extension {
            id: identifier(registered.len() as u64 + 1),
            name: name.to_owned(),
            subscribed,
            queue: Mutex::default(),
            fetch: Notify::new(),
        });
        registered.push(Arc::clone(&extension));
        Ok(extension)
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Extension>> {
        let registered = self.registered.lock();
        registered.iter().find(|one| one.id == id).cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.registered.lock().is_empty()
    }

    /// The next event's identifier.
    pub(super) fn event_id(&self) -> String {
        identifier(self.events.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// An invocation was given to the runtime. `notice` is as of [`invoke_notice`].
    pub(super) fn tell_of_invocation(&self, notice: &Bytes) {
        if notice.is_empty() {
            return;
        }
        for extension in self.registered.lock().iter() {
            if extension.subscribed.invoke {
                extension.push(notice.clone());
            }
        }
    }

    /// The worker is let go; it ends at `deadline_ms` (Unix time) at the latest.
    pub(super) fn tell_of_shutdown(&self, deadline_ms: u64) {
        let notice = to_json(&Shutdown {
            event_type: "SHUTDOWN",
            shutdown_reason: "spindown",
            deadline_ms,
        });
        for extension in self.registered.lock().iter() {
            if extension.subscribed.shutdown {
                extension.push(notice.clone());
            }
        }
    }
}

impl Extension {
    /// Waits for the next event.
    pub(super) async fn next(&self) -> Bytes {
        loop {
            {
                let mut queue = self.queue.lock();
                if let Some(event) = queue.pop_front() {
                    if !queue.is_empty() {
                        self.fetch.notify_one();
                    }
                    return event;
                }
            }
            self.fetch.notified().await;
        }
    }

    fn push(&self, event: Bytes) {
        {
            let mut queue = self.queue.lock();
            if queue.len() >= EVENTS_MAX {
                queue.pop_front();
                tracing::debug!(extension = %self.name, "an extension does not fetch its events; the oldest is dropped");
            }
            queue.push_back(event);
        }
        self.fetch.notify_one();
    }
}

/// What extensions are told of an invocation.
pub(super) fn invoke_notice(id: &str, arn: &str, deadline_ms: u64, trace: Option<&str>) -> Bytes {
    to_json(&Invoke {
        event_type: "INVOKE",
        deadline_ms,
        request_id: id,
        invoked_function_arn: arn,
        tracing: trace.map(|value| Tracing {
            r#type: "X-Amzn-Trace-Id",
            value,
        }),
    })
}

fn to_json(notice: &impl Serialize) -> Bytes {
    serde_json::to_vec(notice)
        .expect("text and numbers are always JSON")
        .into()
}

/// A number in the form of a UUID, which clients check. It need not be secret: whoever is in the sandbox is the function.
fn identifier(number: u64) -> String {
    format!("00000000-0000-4000-8000-{:012x}", number & 0xffff_ffff_ffff)
}

/// Extensions of one worker, as in Lambda.
const EXTENSIONS_MAX: usize = 10;

/// Events that wait for one extension.
const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_extension_gets_the_events_that_it_asked_for_in_order() {
        let extensions = Extensions::default();
        let both = extensions
            .register("both", br#"{"events": ["INVOKE", "SHUTDOWN"]}"#)
            .unwrap();
        let none = extensions.register("none", br#"{"events": []}"#).unwrap();
        let null = extensions.register("null", br#"{"events":null}"#).unwrap();
        extensions.tell_of_invocation(&invoke_notice("id", "arn", 7, Some("Root=1")));
        extensions.tell_of_shutdown(9);
        let first = both.next().now_or_never().unwrap();
        assert_eq!(
            first,
            r#"{"eventType":"INVOKE","deadlineMs":7,"requestId":"id","invokedFunctionArn":"arn","tracing":{"type":"X-Amzn-Trace-Id","value":"Root=1"}}"#
        );
        let second = both.next().now_or_never().unwrap();
        assert_eq!(
            second,
            r#"{"eventType":"SHUTDOWN","shutdownReason":"spindown","deadlineMs":9}"#
        );
        assert!(both.next().now_or_never().is_none());
        assert!(none.next().now_or_never().is_none());
        assert!(null.next().now_or_never().is_none());
    }

    #[test]
    fn the_oldest_events_go_when_nobody_fetches_them() {
        let extensions = Extensions::default();
        let slow = extensions
            .register("slow", br#"{"events": ["INVOKE"]}"#)
            .unwrap();
        for number in 0..=EVENTS_MAX as u64 {
            extensions.tell_of_invocation(&invoke_notice("id", "arn", number, None));
        }
        let first = slow.next().now_or_never().unwrap();
        assert!(first.windows(14).any(|text| text == b"\"deadlineMs\":1"));
    }

    #[test]
    fn what_cannot_register_is_told_why() {
        let extensions = Extensions::default();
        let kind = |name: &str, body: &str| match extensions.register(name, body.as_bytes()) {
            Ok(_) => "",
            Err(rejected) => rejected.kind,
        };
        assert_eq!(
            kind("", r#"{"events": []}"#),
            "Extension.InvalidExtensionName"
        );
        assert_eq!(kind("a", "no json"), "InvalidRequestFormat");
        assert_eq!(
            kind("a", r#"{"events": ["OTHER"]}"#),
            "Extension.InvalidEventType"
        );
        for number in 0..EXTENSIONS_MAX {
            assert_eq!(kind(&number.to_string(), "{}"), "");
        }
        assert_eq!(kind("0", "{}"), "Extension.InvalidExtensionState");
        assert_eq!(kind("a", "{}"), "Extension.TooManyExtensions");
    }
}
