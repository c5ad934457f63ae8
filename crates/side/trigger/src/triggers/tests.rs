use std::sync::atomic::{AtomicU32, Ordering};

use pilot_model::ports::{
    AsyncRequest, AsyncTarget, AttemptEnd, BoxFuture, Mark, NoTarget, NotAccepted,
};
use pilot_model::trigger::{Calendar, Missed, ScheduleConfig, TriggerState};

use super::*;

/// A store in which so many looks at marks panic.
#[derive(Debug, Default)]
struct Fragile {
    panics_left: AtomicU32,
}

impl TriggerStore for Fragile {
    fn accept_marked(
        &self,
        _: AsyncRequest,
        _: Option<Mark>,
    ) -> BoxFuture<'static, Result<(), NotAccepted>> {
        Box::pin(async { Ok(()) })
    }

    fn bury(
        &self,
        _: AsyncRequest,
        _: u32,
        _: String,
    ) -> BoxFuture<'static, Result<(), NotAccepted>> {
        Box::pin(async { Ok(()) })
    }

    fn marks(&self, _: &str) -> BoxFuture<'static, Result<Vec<(String, String)>, String>> {
        let left = &self.panics_left;
        let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        assert!(took.is_err(), "the store's {} is broken", "index");
        Box::pin(async { Ok(Vec::new()) })
    }

    fn change(&self, _: Vec<Mark>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn forget(&self, _: &str, _: Vec<String>) {}
}

#[derive(Debug)]
struct Nobody;

impl AsyncRunner for Nobody {
    fn target(&self, _: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        Err(NoTarget::Gone)
    }

    fn run(&self, _: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        Box::pin(async { AttemptEnd::Stopping })
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_is_shown_and_begins_anew_later_each_time() {
    let store = Arc::new(Fragile {
        panics_left: AtomicU32::new(3),
    });
    let triggers = Triggers::new(Arc::clone(&store) as _, Arc::default());
    let mut config = pilot_testkit::config("lab");
    config.triggers = vec![TriggerConfig::Schedule(ScheduleConfig {
        calendar: Calendar::new("* * * * *", "UTC").unwrap(),
        missed: Missed::Once,
    })];
    triggers.set(&config);
    let begun_at = Instant::now();
    triggers.start(Arc::new(Nobody));
    let shown = || triggers.list(None).remove(0);
    while shown().state == TriggerState::Starting {
        tokio::task::yield_now().await;
    }
    let failing = shown();
    assert_eq!(failing.state, TriggerState::Failing);
    let error = failing.last_error.unwrap();
    assert!(error.contains("the store's index is broken"), "{error}");
    while shown().state != TriggerState::Active {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(shown().errors, 3);
    // Waits of half a second, one and two, less up to half of each.
    assert!(begun_at.elapsed() >= Duration::from_millis(1750));
    triggers.stop(Duration::from_secs(1)).await;
}
