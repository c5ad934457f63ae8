//! Ends a function whose ended workers have left more memory to its other processes than its `memory_mb`. Its template and its
//! workers are those who can have it. What is left is found out in [`crate::cgroup`].

use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use pilot_model::ports::MemoryShortage;
use tokio::task::JoinHandle;

use super::{ENDED, Sandboxed, WatchedSandboxes, end};
use crate::cgroup::{Cgroup, Hierarchy, LeftBehind};

/// Looks in a thread of its own, because the kernel may take long to free memory.
#[derive(Debug, Default)]
pub(super) struct LeftBehindWatch {
    looking: Option<JoinHandle<()>>,
}

impl LeftBehindWatch {
    /// Begins a look, if there is something to look at and the last one is over.
    pub(super) fn tick(&mut self, state: &Weak<Mutex<WatchedSandboxes>>) {
        if self
            .looking
            .as_ref()
            .is_some_and(|look| !look.is_finished())
        {
            return;
        }
        let Some(state) = state.upgrade() else {
            return;
        };
        let upgrade = |sandboxed: &Sandboxed| sandboxed.cgroup.upgrade();
        let cgroup = state.lock().watched.values().find_map(upgrade);
        let hierarchy = cgroup.as_deref().map(Cgroup::hierarchy).cloned();
        if let Some(hierarchy) = hierarchy.filter(Hierarchy::has_ended_groups) {
            let look = move || look(&hierarchy, &state);
            self.looking = Some(tokio::task::spawn_blocking(look));
        }
    }
}

fn look(hierarchy: &Hierarchy, state: &Mutex<WatchedSandboxes>) {
    for left in hierarchy.look_at_ended() {
        let all: Vec<Sandboxed> = state.lock().watched.values().cloned().collect();
        let inside = all.into_iter().filter(|sandboxed| {
            let cgroup: Option<Arc<Cgroup>> = sandboxed.cgroup.upgrade();
            cgroup.is_some_and(|cgroup| cgroup.is_of(&left.owner.version))
        });
        let sandboxes = end(inside.collect(), MemoryShortage::LeftBehind);
        if sandboxes > 0 {
            tell(&left, sandboxes);
        }
    }
}

fn tell(left: &LeftBehind, sandboxes: usize) {
    if let Some(left_out) = ENDED.admit(Instant::now()) {
        tracing::warn!(
            function = %left.owner.function,
            left_mb = left.bytes >> 20,
            memory_mb = left.bytes_max >> 20,
            workers = left.groups,
            sandboxes,
            left_out,
            "workers that have ended have left memory to the function's other processes, which is more than its memory_mb: these are ended"
        );
    }
}
