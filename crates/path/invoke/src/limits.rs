//! The named bounds of the path.

use std::time::Duration;

use pilot_model::StartRule;

/// The named bounds of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one function that may wait for a worker; one more is refused.
    pub queue_max: usize,
    /// The longest that a request waits for a worker that is being started, if the function's timeout is shorter.
    pub start_wait_max: Duration,
    /// The longest that a request waits for a busy worker, if its function does not say. `None`: the function's timeout.
    pub wait_max: Option<Duration>,
    /// Largest payload, bytes. Lambda's is 6 MiB.
    pub payload_bytes_max: usize,
    /// When the PSS of all workers and templates exceeds this, idle workers and then templates are evicted; `None`: no limit.
    pub memory_bytes_max: Option<u64>,
    /// What the kernel lets everything below the daemon have together; `None`: no limit.
    pub total_memory_bytes: Option<u64>,
    /// How often memory is sampled.
    pub memory_sample_every: Duration,
    /// Most workers of all functions together.
    pub workers_max: usize,
    /// Versions of one function, besides the live one, that can still be invoked by number.
    pub older_versions_max: usize,
    /// When another worker is started for requests that wait.
    pub start_rule: StartRule,
    /// CPUs of the machine. They limit how many short starts are in progress at once.
    pub cpus: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_max: 1000,
            start_wait_max: Duration::from_secs(30),
            wait_max: None,
            payload_bytes_max: 6 * 1024 * 1024,
            memory_bytes_max: None,
            total_memory_bytes: None,
            memory_sample_every: Duration::from_secs(5),
            workers_max: usize::MAX,
            older_versions_max: 4,
            start_rule: StartRule::default(),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }
}
