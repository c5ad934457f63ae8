use std::sync::atomic::AtomicU32;

use pilot_model::trigger::{Calendar, Missed, ScheduleConfig, TriggerState};

use super::*;
use crate::testing::{FakeStore, Nobody};

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_is_shown_and_begins_anew_later_each_time() {
    let store = Arc::new(FakeStore {
        panics_left: AtomicU32::new(3),
        ..FakeStore::default()
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
