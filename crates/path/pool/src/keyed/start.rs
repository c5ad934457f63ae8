//! A start for a request that takes whatever of its key is there first: its own runtime, or one that was given back and cleaned
//! meanwhile. A burst is then served by the runtimes that are there, while those that it had started come up; they are kept for
//! the next one.

use std::pin::Pin;
use std::sync::Arc;

use pilot_model::ports::{PrewarmedRuntime, RuntimeHost, StartError};
use pilot_model::runtime_key::RuntimeKey;

use super::driver::{Driver, Origin};
use super::hold::{Claim, Hold};
use super::state::{Look, RuntimeId};

type Start = Pin<Box<dyn Future<Output = Result<Arc<dyn PrewarmedRuntime>, StartError>> + Send>>;

impl Driver {
    /// The runtime that the state machine wants started, or one that becomes available before it is up; with [`Look::Nowhere`] its own in
    /// any case, for what was there has not done. Dropped, the start is given up.
    pub(super) async fn start_or_find(
        self: &Arc<Self>,
        id: RuntimeId,
        host: &Arc<dyn RuntimeHost>,
        key: &Arc<RuntimeKey>,
        look: Look,
    ) -> Result<(Hold, Origin), StartError> {
        let claim = Claim::new(self, id);
        let mut start = self.begin(host, key);
        loop {
            // Before the look: what is settled from here on is heard of.
            let settled = self.settled.notified();
            if look != Look::Nowhere
                && let Some(hold) = self.find(key)
            {
                self.go_on(claim, start);
                return Ok((hold, Origin::Reused));
            }
            tokio::select! {
                biased;
                up = &mut start => return Ok((claim.up(up?), Origin::Started)),
                () = settled => {}
            }
        }
    }

    /// A host may start the base key alone: then the rest is applied.
    fn begin(self: &Arc<Self>, host: &Arc<dyn RuntimeHost>, key: &Arc<RuntimeKey>) -> Start {
        let start = host.start(key);
        let (driver, key) = (Arc::clone(self), Arc::clone(key));
        Box::pin(async move {
            let runtime = start.await?;
            if runtime.key() != key {
                let adapted = driver.adapt(&runtime, &key).await;
                adapted.map_err(|problem| StartError::Sandbox { problem })?;
            }
            Ok(runtime)
        })
    }

    /// Nobody waits for it any more.
    fn go_on(&self, claim: Claim, start: Start) {
        self.ahead.spawn(async move {
            match start.await {
                Ok(runtime) => claim.up_ahead(runtime),
                Err(error) => {
                    tracing::warn!(%error, "a runtime that is not waited for any more did not come up");
                }
            }
        });
    }

    /// One of the key that is available.
    fn find(self: &Arc<Self>, key: &Arc<RuntimeKey>) -> Option<Hold> {
        let mut gone = Vec::new();
        let found = {
            let runtimes = &mut self.state.lock().runtimes;
            runtimes.reuse(self.now(), key, |runtime| runtime.is_alive(), &mut gone)
        };
        self.bury(gone);
        found.map(|(id, runtime)| Hold::new(self, id, runtime))
    }
}
