//! The costs that `auto` compares: a start, and holding a worker.

/// The cost of a start and of holding a worker.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// T, seconds: the wait of a request without a worker.
    pub(super) start_s: f64,
    /// The cost of holding a worker for one second, in seconds of waiting.
    pub(super) holding: f64,
}

impl Cost {
    /// Whether holding a worker pays if it is needed this often per second.
    pub(super) fn pays(self, hazard: f64) -> bool {
        hazard * self.start_s > self.holding
    }

    /// How long a worker can be held for the cost of one start, seconds.
    pub(super) fn break_even_s(self) -> f64 {
        self.start_s / self.holding
    }
}
