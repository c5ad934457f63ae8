//! What it costs that invocations share a worker (`concurrency` above 1): the dual penalty of §3.1 of *Demystifying Serverless Costs on
//! Public Platforms*. Invocations that compute at the same time slow each other down. Where time is billed, each becomes more expensive.

use serde::{Deserialize, Serialize};

use crate::config::FunctionConfig;

/// Sums over the invocations of a function whose workers are shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sharing {
    /// Invocations during which their worker served nothing else.
    pub alone: u64,
    /// Their time in the handler, nanoseconds.
    pub alone_ns: u64,
    /// Invocations during which their worker served others, too.
    pub shared: u64,
    /// Their time in the handler, nanoseconds.
    pub shared_ns: u64,
    /// Sum over the shared invocations: how many invocations the worker ran at the same time, this one included, when it began or
    /// when it ended, whichever is more.
    pub at_once: u64,
    /// CPU time of the workers for all these invocations, nanoseconds.
    pub cpu_ns: u64,
}

/// A setting of `concurrency` that makes invocations more expensive than a second worker would.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DualPenalty {
    /// Mean time of an invocation that has a worker for itself, ms.
    pub alone_ms: f64,
    /// Mean time of an invocation that shares its worker, ms.
    pub shared_ms: f64,
    /// Mean CPU time of an invocation, ms.
    pub cpu_ms: f64,
    /// Mean number of invocations that a shared worker ran at the same time.
    pub at_once: f64,
    /// The largest `concurrency` with which the CPU limit suffices.
    pub concurrency: u32,
}

impl DualPenalty {
    /// How many times as much an invocation costs where its time is billed.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.shared_ms / self.alone_ms
    }
}

impl Sharing {
    /// Whether sharing makes the function's invocations more expensive because they share too little CPU. `None`: it does not, or
    /// there were too few invocations to tell.
    #[must_use]
    pub fn penalty(&self, config: &FunctionConfig) -> Option<DualPenalty> {
        if self.alone < CALLS_MIN || self.shared < CALLS_MIN {
            return None;
        }
        let alone_ms = mean_ms(self.alone_ns, self.alone);
        let shared_ms = mean_ms(self.shared_ns, self.shared);
        let cpu_ms = mean_ms(self.cpu_ns, self.alone + self.shared);
        let at_once = ratio(self.at_once, self.shared);
        let cpus = f64::from(config.cpu_milli) / 1e3;
        // They need more CPU time than there is in the time of one. Otherwise they wait for something else, which a second worker would
        // not bring.
        let is_short_of_cpu = at_once * cpu_ms > CPU_SHARE_MIN * cpus * alone_ms;
        if alone_ms <= 0.0 || shared_ms < TIMES_MIN * alone_ms || !is_short_of_cpu {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range of concurrency"
        )]
        let fits = (alone_ms * cpus / cpu_ms.max(f64::MIN_POSITIVE))
            .clamp(1.0, f64::from(config.concurrency)) as u32;
        (fits < config.concurrency).then_some(DualPenalty {
            alone_ms,
            shared_ms,
            cpu_ms,
            at_once,
            concurrency: fits,
        })
    }
}

fn mean_ms(sum_ns: u64, count: u64) -> f64 {
    ratio(sum_ns, count) / 1e6
}

#[expect(
    clippy::cast_precision_loss,
    reason = "means need no more than 53 bits"
)]
fn ratio(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}

/// Invocations of either kind below which a mean says little.
const CALLS_MIN: u64 = 10;
/// Slower than this, relative to alone, is a penalty; less is noise.
const TIMES_MIN: f64 = 1.2;
/// Invocations that share need this part of the CPU limit, or CPU is not what they lack.
const CPU_SHARE_MIN: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::FunctionSpec;

    const MS: u64 = 1_000_000;

    fn config(cpu: f64, concurrency: u32) -> FunctionConfig {
        let spec = FunctionSpec {
            handler: Some("app.handler".to_owned()),
            cpu: Some(cpu),
            concurrency: Some(concurrency),
            ..FunctionSpec::default()
        };
        spec.check(&"f".parse().unwrap()).unwrap()
    }

    fn seen(alone_ms: u64, shared_ms: u64, at_once: u64, cpu_ms: u64) -> Sharing {
        Sharing {
            alone: 20,
            alone_ns: 20 * alone_ms * MS,
            shared: 100,
            shared_ns: 100 * shared_ms * MS,
            at_once: 100 * at_once,
            cpu_ns: 120 * cpu_ms * MS,
        }
    }

    #[test]
    fn two_that_compute_in_one_worker_cost_twice_as_much() {
        // The paper's example: two requests of 1 s of CPU time each in a sandbox with one vCPU.
        let penalty = seen(1000, 2000, 2, 1000).penalty(&config(1.0, 80)).unwrap();
        assert!((penalty.times() - 2.0).abs() < 1e-9, "{penalty:?}");
        assert_eq!(penalty.concurrency, 1);
    }

    #[test]
    fn those_that_wait_may_share_as_many_as_the_cpu_has_room_for() {
        let waiting = seen(100, 101, 8, 10);
        assert_eq!(
            waiting.penalty(&config(1.0, 80)),
            None,
            "they do not slow each other down"
        );
        let penalty = seen(100, 300, 30, 10).penalty(&config(1.0, 80)).unwrap();
        assert_eq!(penalty.concurrency, 10);
        assert_eq!(
            seen(100, 300, 30, 10).penalty(&config(1.0, 10)),
            None,
            "it is as it should be"
        );
    }

    #[test]
    fn a_slow_neighbour_elsewhere_and_few_calls_say_nothing() {
        let elsewhere = seen(100, 300, 4, 1);
        assert_eq!(
            elsewhere.penalty(&config(1.0, 80)),
            None,
            "CPU is not what they lack"
        );
        let few = Sharing {
            alone: 3,
            ..seen(1000, 2000, 2, 1000)
        };
        assert_eq!(few.penalty(&config(1.0, 80)), None);
        assert_eq!(Sharing::default().penalty(&config(1.0, 80)), None);
    }
}
