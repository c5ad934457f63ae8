//! What an exchange holds until it ends: a slot of its worker, and the invocation's record. The future of the exchange is not
//! included; it is dropped first.

use std::sync::Arc;

use pilot_model::ports::Worker;
use pilot_model::{EndReason, InvocationRecord, Outcome};
use pilot_pool::Lease;

use super::upload::Watch;
use crate::fault::LastOutput;
use crate::invocation::Invocation;

/// What an exchange holds. If it is dropped before [`Held::end`], the exchange was cancelled; its worker can still be used.
#[derive(Debug)]
pub(crate) struct Held {
    /// `None` after the end, and while it waits for another one.
    lease: Option<Lease>,
    has_ended: bool,
    /// `None` if the request has no body.
    upload: Option<Arc<Watch>>,
    invocation: Invocation,
    /// How the exchange ends if the response is passed on whole.
    outcome: Outcome,
}

/// What happens to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It can serve the next request.
    ServesOn,
    /// It has ended or must not be used again, for this reason.
    Ends(EndReason),
}

impl Held {
    /// The exchange begins.
    pub(crate) fn new(
        lease: Lease,
        mut invocation: Invocation,
        upload: Option<Arc<Watch>>,
    ) -> Self {
        invocation.begins();
        Self {
            lease: Some(lease),
            has_ended: false,
            upload,
            invocation,
            outcome: Outcome::Ok,
        }
    }

    /// The response says that the function failed.
    pub(crate) fn says(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome
    }

    pub(crate) fn invocation(&self) -> &Invocation {
        &self.invocation
    }

    /// The worker has not got the request. Another one for it is given with [`Held::goes_to`].
    pub(crate) fn leaves(&mut self) -> Option<(Lease, &mut Invocation)> {
        let lease = self.lease.take()?;
        Some((lease, &mut self.invocation))
    }

    /// The exchange begins with another worker.
    pub(crate) fn goes_to(&mut self, mut lease: Lease) {
        self.invocation.use_worker(&mut lease);
        self.invocation.timeline.started = Some(self.invocation.now());
        self.lease = Some(lease);
    }

    /// The worker; `None` if there is none.
    pub(crate) fn worker(&self) -> Option<&Arc<dyn Worker>> {
        self.lease.as_ref().map(Lease::worker)
    }

    /// The response's head has arrived.
    pub(crate) fn head_came(&mut self) {
        self.invocation.timeline.first_byte = Some(self.invocation.now());
    }

    /// Counts bytes of the response that were passed on.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.invocation.bytes_out += bytes as u64;
    }

    /// Counts all bytes that passed through a tunnel.
    pub(crate) fn tunnelled(&mut self, bytes_in: u64, bytes_out: u64) {
        self.invocation.bytes_in = bytes_in;
        self.invocation.bytes_out = bytes_out;
    }

    /// Why the request's body broke off, if it did.
    pub(crate) fn upload_broke(&self) -> Option<String> {
        self.upload.as_ref()?.broke()
    }

    /// Whether the exchange is slow because the client is: the server has not got all of the request, and waits for it.
    pub(crate) fn awaits_client(&self) -> bool {
        (self.upload.as_ref()).is_some_and(|upload| upload.awaits_client())
    }

    /// The exchange has ended. `output` is the message about its end, which follows what the worker has printed. The worker goes
    /// back first, so that the next request need not wait for the record. A second call does nothing.
    pub(crate) fn end(
        &mut self,
        then: Then,
        outcome: Outcome,
        mut output: LastOutput,
    ) -> Option<Arc<InvocationRecord>> {
        if std::mem::replace(&mut self.has_ended, true) {
            return None;
        }
        let now = self.invocation.now();
        if let Some(lease) = self.lease.take() {
            output = self.invocation.output(&lease, output);
            self.invocation.measure(&lease, now);
            match then {
                Then::ServesOn => lease.finish(now),
                Then::Ends(reason) => lease.lose(now, reason),
            }
        }
        if let Some(upload) = self.upload.take() {
            self.invocation.bytes_in += upload.close();
        }
        self.invocation.timeline.returned = Some(now);
        Some(self.invocation.end(now, outcome, output))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end(Then::ServesOn, Outcome::Cancelled, LastOutput::default());
    }
}
