//! The schedule against a list that is searched from end to end.

use std::collections::BTreeMap;

use pilot_model::FunctionName;
use proptest::prelude::*;

use super::{Entry, Schedule, Work};
use crate::rules::Progress;

fn name(number: u8) -> FunctionName {
    format!("f{number}").parse().unwrap()
}

fn entry(function: FunctionName, due_ms: i64) -> Entry {
    Entry {
        function,
        work: Work::Attempt,
        progress: Progress {
            accepted_ms: due_ms,
            attempts: 0,
            waits: 0,
        },
        due_ms,
        bytes: 1,
        keyed: false,
        interrupted: false,
        running: false,
    }
}

#[test]
fn functions_take_turns_and_none_has_more_than_its_places() {
    let mut schedule = Schedule::default();
    for seq in 0..6 {
        schedule.add(seq, entry(name(u8::from(seq >= 4)), 0));
    }
    let mut taken = Vec::new();
    while let Some((_, entry)) = schedule.take(0, |_, _| 2) {
        taken.push(entry.function.to_string());
    }
    assert_eq!(taken, ["f0", "f1", "f0", "f1"]);
    assert_eq!((schedule.running(), schedule.len()), (4, 6));
    assert_eq!(
        schedule.next_due_ms(0),
        None,
        "what is due waits for places"
    );
}

#[test]
fn deliveries_have_places_of_their_own() {
    let mut schedule = Schedule::default();
    for seq in 0..6 {
        let work = Work::of(seq < 4);
        schedule.add(
            seq,
            Entry {
                work,
                ..entry(name(0), 0)
            },
        );
    }
    let mut taken = Vec::new();
    while let Some((_, entry)) =
        schedule.take(0, |_, work| if work == Work::Attempt { 2 } else { 1 })
    {
        taken.push(entry.work);
    }
    taken.sort();
    assert_eq!(taken, [Work::Attempt, Work::Attempt, Work::Delivery]);
    assert_eq!(
        (schedule.running(), schedule.running_of(Work::Delivery)),
        (3, 1)
    );
}

#[test]
fn what_was_held_is_not_taken_and_what_runs_cannot_be_held() {
    let mut schedule = Schedule::default();
    schedule.add(1, entry(name(0), 0));
    assert!(schedule.hold(1) && !schedule.hold(1) && !schedule.hold(2));
    assert!(schedule.take(9, |_, _| 9).is_none());
    schedule.release(1, 5);
    assert_eq!(schedule.next_due_ms(0), Some(5));
    assert!(schedule.take(9, |_, _| 9).is_some());
    assert!(schedule.is_running(1) && !schedule.hold(1));
    schedule.add(2, entry(name(0), 8));
    assert!(schedule.hold(2));
    schedule.let_go(2);
    assert_eq!(schedule.next_due_ms(0), Some(8));
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8, i64),
    Take(i64),
    Again(usize, i64),
    Remove(usize),
    Hold(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3_u8, 0..50_i64).prop_map(|(function, due)| Step::Add(function, due)),
        (0..60_i64).prop_map(Step::Take),
        (any::<usize>(), 0..50_i64).prop_map(|(which, due)| Step::Again(which, due)),
        any::<usize>().prop_map(Step::Remove),
        any::<usize>().prop_map(Step::Hold),
    ]
}

/// The number of an entry whose running state is `running`.
fn pick(
    model: &BTreeMap<i64, (FunctionName, i64, bool)>,
    which: usize,
    running: bool,
) -> Option<i64> {
    let fitting: Vec<i64> = model
        .iter()
        .filter(|(_, (_, _, runs))| *runs == running)
        .map(|(seq, _)| *seq)
        .collect();
    (!fitting.is_empty()).then(|| fitting[which % fitting.len()])
}

proptest! {
    #[test]
    fn the_schedule_is_the_list(steps in proptest::collection::vec(step(), 1..200)) {
        const PLACES: usize = 2;
        let mut schedule = Schedule::default();
        let mut model: BTreeMap<i64, (FunctionName, i64, bool)> = BTreeMap::new();
        for (seq, step) in (0..).zip(steps) {
            match step {
                Step::Add(function, due) => {
                    schedule.add(seq, entry(name(function), due));
                    model.insert(seq, (name(function), due, false));
                }
                Step::Take(now) => {
                    let running = |function: &FunctionName| {
                        model.values().filter(|(of, _, runs)| of == function && *runs).count()
                    };
                    let can_run = model.values().any(|(function, due, runs)| {
                        !runs && *due <= now && running(function) < PLACES
                    });
                    let taken = schedule.take(now, |_, _| PLACES);
                    prop_assert_eq!(taken.is_some(), can_run);
                    if let Some((seq, entry)) = taken {
                        let (function, due, runs) = model[&seq].clone();
                        prop_assert!(!runs && due <= now && running(&function) < PLACES);
                        prop_assert_eq!(&entry.function, &function);
                        let earlier = model.iter().any(|(other, (of, earlier, runs))| {
                            of == &function && !runs && (*earlier, *other) < (due, seq)
                        });
                        prop_assert!(!earlier, "the oldest of a function first");
                        model.insert(seq, (function, due, true));
                    }
                }
                Step::Again(which, due) => {
                    if let Some(seq) = pick(&model, which, true) {
                        schedule.again(seq, due, 1, 0);
                        let function = model[&seq].0.clone();
                        model.insert(seq, (function, due, false));
                    }
                }
                Step::Remove(which) => {
                    if let Some(seq) = pick(&model, which, true) {
                        schedule.remove(seq);
                        model.remove(&seq);
                    }
                }
                Step::Hold(which) => {
                    if let Some(seq) = pick(&model, which, false) {
                        prop_assert!(schedule.hold(seq));
                        model.get_mut(&seq).unwrap().2 = true;
                    }
                }
            }
            prop_assert_eq!(schedule.len(), model.len());
            prop_assert_eq!(schedule.running(), model.values().filter(|(.., runs)| *runs).count());
        }
        for seq in model.keys() {
            schedule.remove(*seq);
        }
        prop_assert!(schedule.lanes.is_empty() && schedule.ages.is_empty());
        prop_assert_eq!(schedule.running(), 0);
    }
}
