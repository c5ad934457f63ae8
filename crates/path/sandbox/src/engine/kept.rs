//! How long the template of an environment runs: as long as a version that is forked from it is deployed, also while that version has no
//! template of its own. Imports of packages often take longer than all else that a start needs, so the next start of a version that was
//! evicted should find them. Where memory is short, templates of environments end that no function's template is forked from.
//!
//! Nothing here ends a template that somebody uses: functions' nodes, templates below it, and whoever builds one of them hold it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::TemplateTree;
use super::bases::Base;
use super::nodes::Function;
use crate::slots::Handle;

/// The node of a deployed version, and the template of its environment.
#[derive(Debug, Default)]
pub(super) struct Kept {
    node: Option<Arc<Function>>,
    environment: Option<Arc<Base>>,
    /// When there was a node last.
    left: Option<Instant>,
}

impl Handle for Kept {
    type Node = Function;

    fn hold(&mut self, node: &Arc<Function>) {
        self.environment = node.environment();
        self.node = Some(Arc::clone(node));
    }

    fn node(&self) -> Option<Arc<Function>> {
        self.node.clone()
    }

    fn let_go(&mut self) {
        if self.node.take().is_some() {
            self.left = Some(Instant::now());
        }
    }

    fn is_empty(&self) -> bool {
        self.node.is_none() && self.environment.is_none()
    }
}

/// A template that is kept for versions without a node.
struct Unused {
    environment: Arc<Base>,
    keepers: usize,
    since: Option<Instant>,
}

impl TemplateTree {
    /// Ends templates of environments that nothing is forked from, those first that were unused longest, until their memory adds up to
    /// `bytes`. Returns the freed bytes.
    pub(super) fn give_up_environments(&self, bytes: u64) -> u64 {
        let mut unused: HashMap<*const Base, Unused> = HashMap::new();
        self.functions.visit(|kept| {
            if let (None, Some(environment)) = (&kept.node, &kept.environment) {
                let unused = unused
                    .entry(Arc::as_ptr(environment))
                    .or_insert_with(|| Unused {
                        environment: Arc::clone(environment),
                        keepers: 0,
                        since: None,
                    });
                unused.keepers += 1;
                unused.since = unused.since.max(kept.left);
            }
        });
        // The others are used. Its keepers, and this map, hold each one.
        unused.retain(|_, unused| Arc::strong_count(&unused.environment) == unused.keepers + 1);
        let mut oldest_first: Vec<_> = unused.iter().map(|(at, one)| (one.since, *at)).collect();
        oldest_first.sort_unstable();
        let mut freed = 0;
        for (_, at) in oldest_first {
            if freed >= bytes {
                unused.remove(&at);
            } else if let Some(unused) = unused.get(&at) {
                freed += unused.environment.memory_bytes();
            }
        }
        self.functions.visit(|kept| {
            if kept.node.is_none() {
                kept.environment
                    .take_if(|environment| unused.contains_key(&Arc::as_ptr(environment)));
            }
        });
        freed
    }
}
