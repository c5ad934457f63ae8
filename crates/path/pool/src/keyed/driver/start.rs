//! A start for a request that takes the first available runtime of its key: the one that it started, or one that was given back
//! and cleaned in the meantime. A burst is then served by the existing runtimes, while those that it had started become ready.
//! These are kept for the next burst.

use std::pin::Pin;
use std::sync::Arc;

use pilot_model::ports::{PrewarmedRuntime, RuntimeHost, StartError};
use pilot_model::runtime_key::RuntimeKey;

use super::super::state::{Look, RuntimeId};
use super::hold::{Claim, Hold};
use super::{Driver, Origin};

type Start = Pin<Box<dyn Future<Output = Result<Arc<dyn PrewarmedRuntime>, StartError>> + Send>>;

impl Driver {
    /// The runtime that is started for the request, or one that becomes available earlier. With [`Look::Nowhere`] always the
    /// started one, because the available ones could not be adapted. Dropping the future cancels the start.
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
            // Created before the look, so that no notification after it is missed.
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

    /// A host may start only the base key; then the other settings are applied here.
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

    /// Continues a start that no request waits for any more.
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

    /// An available runtime of the key.
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
