//! Which workers stay.

use super::*;

#[test]
fn a_limit_holds_for_workers_that_start_or_are_busy_when_it_is_set() {
    let mut state: PoolState<u64, u64> = PoolState::new(settings());
    let mut actions = Vec::new();
    state.scale(Instant(0), 2, &mut actions);
    let [Action::Start(first), Action::Start(second)] = actions[..] else {
        panic!("{actions:?}");
    };
    state.ready(Instant(MS), first, 1, &mut actions);
    let since = Instant(2 * MS);
    let leased = state.arrive(since, || 1, &mut actions);
    assert!(matches!(leased, Arrival::Leased(..)), "{leased:?}");
    state.scale(Instant(3 * MS), 0, &mut actions);
    actions.clear();
    state.ready(Instant(4 * MS), second, 2, &mut actions);
    state.release(
        Instant(5 * MS),
        first,
        since,
        Ending::Reusable,
        &mut actions,
    );
    let retired = |action: &Action<u64, u64>| match action {
        Action::Retire(worker, EndReason::Scaled) => Some(*worker),
        _ => None,
    };
    assert_eq!(
        actions.iter().filter_map(retired).collect::<Vec<_>>(),
        [2, 1]
    );
    // The next request ends it.
    state.arrive(Instant(6 * MS), || 3, &mut actions);
    let Some(&Action::Start(third)) = actions.last() else {
        panic!("{actions:?}");
    };
    actions.clear();
    state.ready(Instant(7 * MS), third, 3, &mut actions);
    assert!(actions.iter().all(|action| retired(action).is_none()));
}
