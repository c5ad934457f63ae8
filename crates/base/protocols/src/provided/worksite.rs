//! Shared by a worker and its connections.

use std::sync::Arc;

use pilot_model::{Version, WorkerId};

use super::extensions::Extensions;
use super::queue::{InvocationQueue, OutOfTurn, Taken};
use crate::FunctionBudget;
use crate::life::Life;
use crate::pace::{Pace, PiecePace};

/// See the module.
#[derive(Debug)]
pub(super) struct Worksite {
    pub(super) id: WorkerId,
    pub(super) version: Arc<Version>,
    pub(super) life: Life,
    pub(super) queue: InvocationQueue,
    pub(super) extensions: Extensions,
    pub(super) pace: Pace,
    /// Of streamed answers.
    pub(super) pieces: PiecePace,
    pub(super) answers: FunctionBudget,
}

impl Worksite {
    /// Waits for an event for the runtime. Before the first one, the extensions must be ready; later, they must be done with
    /// the last invocation. With a concurrency above 1 they are not waited for, because it is unknown which invocation they are
    /// done with.
    pub(super) async fn poll(&self) -> Result<Taken, OutOfTurn> {
        self.queue.ask()?;
        if !self.queue.is_up() {
            self.extensions.at_rest().await;
        } else if self.version.config.concurrency == 1 {
            let function = &self.version.config.name;
            self.extensions.done_with_the_last(self.id, function).await;
        }
        let taken = self.queue.poll().await?;
        self.pace.allow_more();
        Ok(taken)
    }
}
