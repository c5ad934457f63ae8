//! When idle workers rest: first they are frozen or throttled, later their memory is reclaimed. A lease wakes a worker; its driver
//! does that, because only it knows whether the worker rests by now.

use std::time::Duration;

use pilot_model::Instant;

use super::words::{Action, RestStage};
use super::{Mode, PoolState, WorkerState};

/// Which idle workers have reached which stage. They are in the order of their idle times, so the newest one says it of all.
#[derive(Debug, Default)]
pub(super) struct Rested {
    rest: Option<Instant>,
    reclaim: Option<Instant>,
}

impl Rested {
    fn of(&mut self, stage: RestStage) -> &mut Option<Instant> {
        match stage {
            RestStage::Rest => &mut self.rest,
            RestStage::Reclaim => &mut self.reclaim,
        }
    }
}

impl<W: Clone, Q> PoolState<W, Q> {
    /// A worker became idle: it rests later.
    pub(super) fn rest_later(&mut self, now: Instant) {
        if let Some(times) = self.settings.rest {
            self.want(now.after(times.after));
        }
    }

    /// Lets the workers rest that have been idle for long enough.
    pub(super) fn rest(&mut self, now: Instant, actions: &mut Vec<Action<W, Q>>) {
        let Some(times) = self.settings.rest.filter(|_| self.mode == Mode::Live) else {
            return;
        };
        for stage in [RestStage::Rest, RestStage::Reclaim] {
            if let Some(after) = times.of(stage) {
                self.rest_those_idle_for(after, stage, now, actions);
            }
        }
    }

    fn rest_those_idle_for(
        &mut self,
        after: Duration,
        stage: RestStage,
        now: Instant,
        actions: &mut Vec<Action<W, Q>>,
    ) {
        let before = *self.rested.of(stage);
        let (mut newest, mut next) = (None, None);
        let waiting = self
            .idlers
            .iter_newest()
            .take_while(|(_, since)| before.is_none_or(|before| *since > before));
        for (key, since) in waiting {
            let at = since.after(after);
            if at > now {
                next = Some(at);
                continue;
            }
            newest = newest.max(Some(since));
            if let Some(WorkerState::Up { worker, .. }) = self.place(key) {
                actions.push(Action::Rest(worker.clone(), stage));
            }
        }
        if newest.is_some() {
            *self.rested.of(stage) = newest;
        }
        if let Some(next) = next {
            self.want(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::{Reuse, StartKind};

    use super::super::{Arrival, Ending, Key, RestTimes, Settings};
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn state(rest: RestTimes) -> PoolState<u64, u64> {
        PoolState::new(Settings {
            min: 0,
            max: 4,
            spare: 0,
            reap_after: Duration::from_secs(60),
            hot_for: Duration::from_secs(60),
            concurrency: 1,
            reuse: Reuse::Always,
            queue_max: 10,
            rest: Some(rest),
            start_rule: pilot_model::StartRule::default(),
            short_starts_max: u32::MAX,
        })
    }

    fn tick(state: &mut PoolState<u64, u64>, now: Instant) -> Vec<(u64, RestStage)> {
        let mut actions = Vec::new();
        state.tick(now, &mut actions);
        let rested = actions.into_iter().filter_map(|action| match action {
            Action::Rest(worker, stage) => Some((worker, stage)),
            _ => None,
        });
        rested.collect()
    }

    /// A worker that became ready and was released at this time.
    fn with_idle_worker(state: &mut PoolState<u64, u64>, now: Instant) -> Key {
        let mut actions = Vec::new();
        state.arrive(now, || 1, &mut actions);
        let [Action::Start(key)] = actions[..] else {
            panic!("{actions:?}");
        };
        state.ready(now, key, 7, &mut actions);
        state.release(now, key, now, Ending::Reusable, &mut actions);
        key
    }

    #[test]
    fn an_idle_worker_rests_and_later_its_memory_is_reclaimed() {
        let mut state = state(RestTimes {
            after: Duration::from_millis(100),
            reclaim_after: Some(Duration::from_secs(10)),
        });
        with_idle_worker(&mut state, at(1000));
        // Until then, starts are reconsidered.
        assert_eq!(tick(&mut state, at(1050)), []);
        assert_eq!(state.due(), at(1100));
        assert_eq!(tick(&mut state, at(1099)), []);
        assert_eq!(state.due(), at(1100));
        assert_eq!(tick(&mut state, at(1100)), [(7, RestStage::Rest)]);
        assert_eq!(state.due(), at(11_000));
        assert_eq!(tick(&mut state, at(11_000)), [(7, RestStage::Reclaim)]);
        assert_eq!(state.due(), at(61_000), "then it is reaped");
    }

    #[test]
    fn a_lease_begins_the_idle_time_again() {
        let mut state = state(RestTimes {
            after: Duration::from_millis(100),
            reclaim_after: None,
        });
        let key = with_idle_worker(&mut state, at(1000));
        assert_eq!(tick(&mut state, at(1100)), [(7, RestStage::Rest)]);
        let mut actions = Vec::new();
        let arrival = state.arrive(at(1200), || 2, &mut actions);
        assert_eq!(arrival, Arrival::Leased(key, 7, StartKind::Warm));
        assert_eq!(tick(&mut state, at(1250)), [], "it is busy");
        state.release(at(1300), key, at(1200), Ending::Reusable, &mut actions);
        assert_eq!(tick(&mut state, at(1399)), []);
        assert_eq!(tick(&mut state, at(1400)), [(7, RestStage::Rest)]);
    }
}
