//! How much of something one function may have at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pilot_model::FunctionName;
use tokio::sync::Semaphore;

/// The same number of permits for each function.
#[derive(Debug)]
pub(crate) struct Shares {
    each: usize,
    /// Those of functions that have a permit, or wait for one.
    by_function: Mutex<HashMap<FunctionName, Weak<Semaphore>>>,
}

impl Shares {
    pub(crate) fn new(each: usize) -> Self {
        Self {
            each,
            by_function: Mutex::default(),
        }
    }

    /// The permits of a function.
    pub(crate) fn of(&self, function: &FunctionName) -> Arc<Semaphore> {
        let mut shares = self.by_function.lock();
        if let Some(share) = shares.get(function).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.each));
        shares.insert(function.clone(), Arc::downgrade(&share));
        share
    }
}
