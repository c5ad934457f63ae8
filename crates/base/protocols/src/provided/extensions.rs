//! The Extensions API (`2020-01-01`): extensions register and poll for events.
//!
//! As in Lambda, the initialisation lasts until each extension has asked for its first event. An invocation lasts until each
//! extension that got its event has asked for the next one; this delays the next event, but not the runtime's answer. An
//! extension that is still busy at the invocation's deadline is not waited for until it asks again. Unlike in Lambda,
//! extensions may register at any time; a late one gets only later events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::calendar::unix_ms;
use pilot_model::{FunctionName, Seldom, WorkerId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::timeout;

/// One worker's extensions.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    /// In order of registration; at most [`EXTENSIONS_MAX`]. The lock guards the list and is held for a look-up.
    registered: Mutex<Vec<Arc<Extension>>>,
    /// Number of events; makes their identifiers.
    events: AtomicU64,
    /// Deadline of the last invocation that extensions got (Unix time, ms).
    deadline_ms: AtomicU64,
    /// Notified when an extension stops working.
    rested: Arc<Notify>,
}

/// An extension that has registered.
#[derive(Debug)]
pub(super) struct Extension {
    /// Its identifier from now on: in the form of a UUID, unique within the worker.
    pub(super) id: String,
    name: String,
    subscribed: Subscribed,
    /// Guards events and state; held for a look-up.
    inbox: Mutex<Inbox>,
    fetch: Notify,
    /// Shared by all extensions: see [`Extensions::rested`].
    rested: Arc<Notify>,
}

#[derive(Debug)]
struct Inbox {
    /// Events not fetched yet. Above [`EVENTS_MAX`] the oldest is dropped.
    events: VecDeque<Bytes>,
    stance: Stance,
}

/// The state of an extension, as far as somebody may have to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stance {
    /// It initialises, or works on an invocation.
    Working,
    /// It has asked for the next event.
    AtRest,
    /// It registered after the initialisation, or exceeded a deadline: nobody waits for it until it asks again.
    Behind,
    /// It reported an error and stopped: it gets no more events.
    Gone,
}

/// When an extension registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registers {
    /// During the initialisation, which then lasts until the extension has asked for its first event.
    InTime,
    /// After the initialisation.
    Late,
}

/// The event of an invocation, for extensions.
#[derive(Debug, Clone)]
pub(super) struct Notice {
    event: Bytes,
    deadline_ms: u64,
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
    /// `null` means none, too: aws-lambda-go sends it.
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
    /// Registers an extension. `body` is `{"events": ["INVOKE", "SHUTDOWN"]}`.
    pub(super) fn register(
        &self,
        name: &str,
        body: &[u8],
        when: Registers,
    ) -> Result<Arc<Extension>, Rejected> {
        let reject = |kind, message: String| Err(Rejected { kind, message });
        if name.is_empty() {
            return reject(
                "Extension.InvalidExtensionName",
                "Empty extension name".to_owned(),
            );
        }
        if name.len() > NAME_LEN_MAX {
            let message = format!("Extension name is longer than {NAME_LEN_MAX} bytes");
            return reject("Extension.InvalidExtensionName", message);
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
            inbox: Mutex::new(Inbox {
                events: VecDeque::new(),
                stance: match when {
                    Registers::InTime => Stance::Working,
                    Registers::Late => Stance::Behind,
                },
            }),
            fetch: Notify::new(),
            rested: Arc::clone(&self.rested),
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

    /// The runtime got an invocation: tells the subscribed extensions.
    pub(super) fn tell_of_invocation(&self, notice: &Notice) {
        self.deadline_ms
            .store(notice.deadline_ms, Ordering::Relaxed);
        for extension in self.registered.lock().iter() {
            if extension.subscribed.invoke {
                extension.push(notice.event.clone(), EventKind::Invoke);
            }
        }
    }

    /// Waits until no extension is working. Has no limit of its own; the caller sets one.
    pub(super) async fn at_rest(&self) {
        loop {
            // Created before the check, so that no notification is missed (Notify::notify_waiters).
            let rested = self.rested.notified();
            if self.working().is_none() {
                return;
            }
            rested.await;
        }
    }

    /// Waits until the extensions of this worker are done with the last invocation, but not beyond its deadline.
    pub(super) async fn done_with_the_last(&self, worker: WorkerId, function: &FunctionName) {
        if self.working().is_none() {
            return;
        }
        let now_ms = unix_ms(SystemTime::now());
        let left_ms = self
            .deadline_ms
            .load(Ordering::Relaxed)
            .saturating_sub(now_ms);
        let rest = timeout(Duration::from_millis(left_ms), self.at_rest());
        if rest.await.is_ok() {
            return;
        }
        for extension in self.registered.lock().iter() {
            if extension.fall_behind()
                && let Some(left_out) = FELL_BEHIND.admit(Instant::now())
            {
                tracing::warn!(
                    %worker, %function, extension = %extension.name, left_out,
                    "an extension did not ask for its next event before the last invocation's deadline; it is not waited for until \
                     it does"
                );
            }
        }
    }

    /// The name of an extension that is working, if any.
    pub(super) fn working(&self) -> Option<String> {
        let registered = self.registered.lock();
        let mut working = registered.iter().filter(|one| one.is_working());
        working.next().map(|one| one.name.clone())
    }

    /// Whether an extension has to get the SHUTDOWN event.
    pub(super) fn awaits_shutdown(&self) -> bool {
        let registered = self.registered.lock();
        registered
            .iter()
            .any(|one| one.subscribed.shutdown && !one.is_gone())
    }

    /// The worker is released; it ends at `deadline_ms` (Unix time) at the latest.
    pub(super) fn tell_of_shutdown(&self, deadline_ms: u64) {
        let notice = to_json(&Shutdown {
            event_type: "SHUTDOWN",
            shutdown_reason: "spindown",
            deadline_ms,
        });
        for extension in self.registered.lock().iter() {
            if extension.subscribed.shutdown {
                extension.push(notice.clone(), EventKind::Shutdown);
            }
        }
    }
}

/// What an extension does with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    /// It works on it and then asks for the next.
    Invoke,
    /// It ends.
    Shutdown,
}

impl Extension {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next event. A request that finds none means that the extension is done with the earlier ones.
    pub(super) async fn next(&self) -> Bytes {
        loop {
            {
                let mut inbox = self.inbox.lock();
                if let Some(event) = inbox.events.pop_front() {
                    if !inbox.events.is_empty() {
                        self.fetch.notify_one();
                    }
                    return event;
                }
                if inbox.stance != Stance::Gone {
                    inbox.stance = Stance::AtRest;
                }
            }
            self.rested.notify_waiters();
            self.fetch.notified().await;
        }
    }

    /// The extension reported that it cannot continue.
    pub(super) fn goes(&self) {
        self.inbox.lock().stance = Stance::Gone;
        self.rested.notify_waiters();
    }

    fn is_working(&self) -> bool {
        self.inbox.lock().stance == Stance::Working
    }

    fn is_gone(&self) -> bool {
        self.inbox.lock().stance == Stance::Gone
    }

    /// Nobody waits for it any more. Returns whether somebody had to wait until now.
    fn fall_behind(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let was_working = inbox.stance == Stance::Working;
        if was_working {
            inbox.stance = Stance::Behind;
        }
        was_working
    }

    fn push(&self, event: Bytes, kind: EventKind) {
        {
            let mut inbox = self.inbox.lock();
            inbox.stance = match (inbox.stance, kind) {
                (Stance::Gone, _) => return,
                (Stance::AtRest, EventKind::Invoke) => Stance::Working,
                (stance, _) => stance,
            };
            if inbox.events.len() >= EVENTS_MAX {
                inbox.events.pop_front();
                tracing::debug!(extension = %self.name, "an extension does not fetch its events; the oldest is dropped");
            }
            inbox.events.push_back(event);
        }
        self.fetch.notify_one();
    }
}

/// The event of an invocation, for extensions.
pub(super) fn invoke_notice(id: &str, arn: &str, deadline_ms: u64, trace: Option<&str>) -> Notice {
    let event = to_json(&Invoke {
        event_type: "INVOKE",
        deadline_ms,
        request_id: id,
        invoked_function_arn: arn,
        tracing: trace.map(|value| Tracing {
            r#type: "X-Amzn-Trace-Id",
            value,
        }),
    });
    Notice { event, deadline_ms }
}

fn to_json(notice: &impl Serialize) -> Bytes {
    serde_json::to_vec(notice)
        .expect("text and numbers are always JSON")
        .into()
}

/// A number in the form of a UUID, which clients check. It need not be secret: everything in the sandbox belongs to the
/// function.
fn identifier(number: u64) -> String {
    format!("00000000-0000-4000-8000-{:012x}", number & 0xffff_ffff_ffff)
}

/// Most extensions of one worker, as in Lambda.
const EXTENSIONS_MAX: usize = 10;

/// Bytes of an extension's name, which is in messages and in the daemon's log.
const NAME_LEN_MAX: usize = 128;

/// Extensions that took too long and are logged, per interval, of all functions.
static FELL_BEHIND: Seldom = Seldom::new(20);

/// Most events that wait for one extension.
const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_extension_gets_the_events_that_it_asked_for_in_order() {
        let extensions = Extensions::default();
        let both = extensions
            .register(
                "both",
                br#"{"events": ["INVOKE", "SHUTDOWN"]}"#,
                Registers::InTime,
            )
            .unwrap();
        let register =
            |name: &str, body: &[u8]| extensions.register(name, body, Registers::InTime).unwrap();
        let none = register("none", br#"{"events": []}"#);
        let null = register("null", br#"{"events":null}"#);
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
            .register("slow", br#"{"events": ["INVOKE"]}"#, Registers::Late)
            .unwrap();
        for number in 0..=EVENTS_MAX as u64 {
            extensions.tell_of_invocation(&invoke_notice("id", "arn", number, None));
        }
        let first = slow.next().now_or_never().unwrap();
        assert!(first.windows(14).any(|text| text == b"\"deadlineMs\":1"));
    }

    fn registered(extensions: &Extensions, name: &str, when: Registers) -> Arc<Extension> {
        let body = br#"{"events": ["INVOKE", "SHUTDOWN"]}"#;
        extensions.register(name, body, when).unwrap()
    }

    #[test]
    fn what_they_are_at_is_over_when_each_has_asked_for_more() {
        let extensions = Extensions::default();
        let stays = registered(&extensions, "stays", Registers::InTime);
        let goes = registered(&extensions, "goes", Registers::InTime);
        assert!(extensions.at_rest().now_or_never().is_none());
        assert!(stays.next().now_or_never().is_none());
        assert_eq!(extensions.working().as_deref(), Some("goes"));
        goes.goes();
        assert!(extensions.at_rest().now_or_never().is_some());

        extensions.tell_of_invocation(&invoke_notice("id", "arn", u64::MAX, None));
        assert_eq!(extensions.working().as_deref(), Some("stays"));
        assert!(stays.next().now_or_never().is_some());
        assert_eq!(extensions.working().as_deref(), Some("stays"));
        assert!(stays.next().now_or_never().is_none());
        assert_eq!(extensions.working(), None);
    }

    #[test]
    fn whoever_waits_for_them_is_told_when_the_last_has_asked() {
        let extensions = Extensions::default();
        let slow = registered(&extensions, "slow", Registers::InTime);
        let mut rest = Box::pin(extensions.at_rest());
        assert!((&mut rest).now_or_never().is_none());
        assert!(slow.next().now_or_never().is_none());
        assert!(rest.now_or_never().is_some());
    }

    #[test]
    fn one_that_registers_late_is_waited_for_once_it_has_asked() {
        let extensions = Extensions::default();
        let late = registered(&extensions, "late", Registers::Late);
        extensions.tell_of_invocation(&invoke_notice("1", "arn", u64::MAX, None));
        assert_eq!(extensions.working(), None);
        assert!(late.next().now_or_never().is_some());
        assert!(late.next().now_or_never().is_none());
        extensions.tell_of_invocation(&invoke_notice("2", "arn", u64::MAX, None));
        assert_eq!(extensions.working().as_deref(), Some("late"));
    }

    #[tokio::test]
    async fn one_that_takes_longer_than_its_invocation_may_is_not_waited_for_until_it_asks() {
        let extensions = Extensions::default();
        let slow = registered(&extensions, "slow", Registers::InTime);
        assert!(slow.next().now_or_never().is_none());
        // Its deadline is long past.
        extensions.tell_of_invocation(&invoke_notice("1", "arn", 1, None));
        assert!(extensions.working().is_some());
        extensions.done_with_the_last(WORKER, &function()).await;
        extensions.tell_of_invocation(&invoke_notice("2", "arn", u64::MAX, None));
        assert_eq!(extensions.working(), None);
        for _ in 0..2 {
            assert!(slow.next().now_or_never().is_some());
        }
        assert!(slow.next().now_or_never().is_none());
        extensions.tell_of_invocation(&invoke_notice("3", "arn", u64::MAX, None));
        assert!(extensions.working().is_some());
    }

    const WORKER: WorkerId = WorkerId(7);

    fn function() -> FunctionName {
        "late".parse().unwrap()
    }

    /// Counts the messages of the daemon's log.
    #[derive(Debug, Default, Clone)]
    struct Messages(Arc<AtomicU64>);

    impl tracing::Subscriber for Messages {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::INFO
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test]
    async fn one_that_always_takes_too_long_does_not_fill_the_log() {
        let messages = Messages::default();
        let _logged = tracing::subscriber::set_default(messages.clone());
        let extensions = Extensions::default();
        let slow = registered(&extensions, "slow", Registers::InTime);
        for _ in 0..500 {
            extensions.tell_of_invocation(&invoke_notice("1", "arn", 1, None));
            assert!(extensions.working().is_some());
            extensions.done_with_the_last(WORKER, &function()).await;
            while slow.next().now_or_never().is_some() {}
        }
        let messages = messages.0.load(Ordering::Relaxed);
        assert!((1..100).contains(&messages), "{messages}");
    }

    #[test]
    fn what_cannot_register_is_told_why() {
        let extensions = Extensions::default();
        let kind = |name: &str, body: &str| match extensions.register(
            name,
            body.as_bytes(),
            Registers::InTime,
        ) {
            Ok(_) => "",
            Err(rejected) => rejected.kind,
        };
        assert_eq!(
            kind("", r#"{"events": []}"#),
            "Extension.InvalidExtensionName"
        );
        assert_eq!(
            kind(&"a".repeat(NAME_LEN_MAX + 1), r#"{"events": []}"#),
            "Extension.InvalidExtensionName"
        );
        assert_eq!(kind("a", "no json"), "InvalidRequestFormat");
        assert_eq!(
            kind("a", r#"{"events": ["OTHER"]}"#),
            "Extension.InvalidEventType"
        );
        let longest = "a".repeat(NAME_LEN_MAX);
        assert_eq!(kind(&longest, "{}"), "");
        for number in 1..EXTENSIONS_MAX {
            assert_eq!(kind(&number.to_string(), "{}"), "");
        }
        assert_eq!(kind("1", "{}"), "Extension.InvalidExtensionState");
        assert_eq!(kind("a", "{}"), "Extension.TooManyExtensions");
    }
}
