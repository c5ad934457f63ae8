//! A worker that was released between invocations: its sandbox, and the time that its processes have to end.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::Farewell;
use pilot_protocols::{Awaited, Held};
use tokio::sync::oneshot;
use tokio::time::{Instant as Deadline, timeout_at};

use super::{Body, Link};
use crate::child::END_TIME_MAX;

/// A sandbox after a use.
#[derive(Debug)]
pub(crate) struct Released {
    pub(crate) body: Body,
    /// The grace period, if its processes were told to end.
    pub(crate) grace: Option<Grace>,
}

/// Time for processes that were told to end.
#[derive(Debug)]
pub(crate) struct Grace {
    until: Deadline,
    /// Which processes are waited for.
    awaited: Awaited,
    /// Of a worker with a channel: it stays open until then.
    link: Option<Arc<Link>>,
    /// Takes what it printed since its last answer.
    said: Option<oneshot::Sender<Bytes>>,
    /// Dropped after they have ended.
    held: Held,
}

impl Grace {
    /// Its main process has SIGTERM, and time until then.
    pub(crate) fn until(until: Deadline, awaited: Awaited, held: Held) -> Self {
        Self {
            until,
            awaited,
            link: None,
            said: None,
            held,
        }
    }

    /// Signals the main process of a worker with a channel. The channel, whose end also ends it, stays open. Resolves with what it
    /// printed since its last answer.
    pub(super) fn begin(
        farewell: Farewell,
        body: &Body,
        link: Arc<Link>,
    ) -> (Self, oneshot::Receiver<Bytes>) {
        let (said, heard) = oneshot::channel();
        let (signal, time) = match farewell {
            Farewell::Sigterm(grace) => (SIGTERM, grace),
            Farewell::Kill => (SIGKILL, END_TIME_MAX),
        };
        body.sandbox.control().tell_signal(signal);
        let grace = Self {
            until: Deadline::now() + time,
            awaited: Awaited::MainProcess,
            link: Some(link),
            said: Some(said),
            held: Held::default(),
        };
        (grace, heard)
    }
}

impl Released {
    /// What was released, after the grace period. A main process that still runs then was sent SIGKILL.
    pub(crate) async fn after_grace(self) -> Body {
        let Self { body, grace } = self;
        let Some(Grace {
            until,
            awaited,
            link,
            said,
            held,
        }) = grace
        else {
            return body;
        };
        let ended = async {
            match &link {
                Some(link) => link.drain_while(body.process.end()).await,
                None => body.process.end().await,
            };
            if awaited == Awaited::Everything {
                body.sandbox.control().at_rest().await;
            }
        };
        if timeout_at(until, ended).await.is_err() && !body.process.has_ended() {
            body.sandbox.control().tell_signal(SIGKILL);
        }
        if let (Some(link), Some(said)) = (&link, said) {
            // Nobody may want it.
            let _ = said.send(link.last_output().await);
        }
        drop((link, held));
        body
    }
}

/// signal(7).
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGKILL: i32 = 9;
