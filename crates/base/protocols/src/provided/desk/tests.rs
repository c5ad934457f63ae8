use futures_util::FutureExt;

use super::*;

fn event(id: &str) -> (Event, oneshot::Receiver<Heard>) {
    let (caller, heard) = oneshot::channel();
    let event = Event {
        id: id.into(),
        headers: HeaderMap::new(),
        body: Bytes::from(id.to_owned()),
        notice: None,
        caller,
    };
    (event, heard)
}

fn taken(poll: Option<Result<Taken, OutOfTurn>>) -> String {
    let body = poll.expect("an event is there").expect("in turn").body;
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn polls_and_calls_meet_whoever_comes_first() {
    let desk = Desk::new(2);
    let (first, _first) = event("1");
    desk.submit(first).unwrap();
    assert_eq!(taken(desk.poll().now_or_never()), "1");
    let mut poll = Box::pin(desk.poll());
    assert!((&mut poll).now_or_never().is_none());
    let (second, _second) = event("2");
    desk.submit(second).unwrap();
    assert_eq!(taken(poll.now_or_never()), "2");
}

#[test]
fn two_polls_get_two_events_that_came_before_either_was_woken() {
    let desk = Desk::new(2);
    let (first, _first) = event("1");
    let (second, _second) = event("2");
    desk.submit(first).unwrap();
    desk.submit(second).unwrap();
    // Both permits were one: what the first poll leaves behind wakes the second.
    let (mut one, mut two) = (Box::pin(desk.poll()), Box::pin(desk.poll()));
    assert_eq!(taken((&mut one).now_or_never()), "1");
    assert_eq!(taken((&mut two).now_or_never()), "2");
}

#[test]
fn a_poll_that_goes_away_leaves_its_event_to_the_next() {
    let desk = Desk::new(1);
    let mut gone = Box::pin(desk.poll());
    let mut stays = Box::pin(desk.poll());
    assert!((&mut gone).now_or_never().is_none());
    assert!((&mut stays).now_or_never().is_none());
    let (event, _heard) = event("1");
    desk.submit(event).unwrap();
    drop(gone);
    assert_eq!(taken(stays.now_or_never()), "1");
}

#[test]
fn a_caller_that_goes_away_before_the_poll_is_not_served() {
    let desk = Desk::new(1);
    let (first, heard) = event("1");
    desk.submit(first).unwrap();
    drop(heard);
    assert!(desk.poll().now_or_never().is_none());
}

#[test]
fn with_one_at_a_time_a_poll_before_the_answer_is_out_of_turn() {
    let desk = Desk::new(1);
    let (first, heard) = event("1");
    desk.submit(first).unwrap();
    assert_eq!(taken(desk.poll().now_or_never()), "1");
    assert_eq!(desk.poll().now_or_never().unwrap().unwrap_err(), OutOfTurn);
    desk.begin_answer("1").unwrap().result(Bytes::new());
    assert!(matches!(
        heard.now_or_never().unwrap(),
        Ok(Heard::Result(..))
    ));
    assert!(desk.poll().now_or_never().is_none());
}

#[test]
fn an_invocation_is_answered_once_and_an_unknown_one_never() {
    let desk = Desk::new(1);
    let (first, heard) = event("1");
    desk.submit(first).unwrap();
    assert!(desk.begin_answer("1").is_none(), "nobody has taken it");
    taken(desk.poll().now_or_never());
    let answering = desk.begin_answer("1").unwrap();
    assert!(desk.begin_answer("1").is_none());
    assert!(desk.begin_answer("2").is_none());
    drop(answering);
    assert!(matches!(
        heard.now_or_never().unwrap(),
        Ok(Heard::Truncated(_))
    ));
}

#[test]
fn what_is_too_much_or_too_late_is_refused() {
    let desk = Desk::new(1);
    let (first, heard) = event("1");
    let (again, _again) = event("1");
    let (second, _second) = event("2");
    desk.submit(first).unwrap();
    assert_eq!(desk.submit(again), Err(Refused::IdInUse));
    assert_eq!(desk.submit(second), Err(Refused::Full));
    desk.close();
    assert!(heard.now_or_never().unwrap().is_err());
    let (late, _late) = event("3");
    assert_eq!(desk.submit(late), Err(Refused::Closed));
}

#[test]
fn the_initialisation_ends_once() {
    let desk = Desk::new(1);
    assert!(desk.fail_init(Bytes::from_static(b"{}")));
    assert!(desk.poll().now_or_never().is_none());
    assert!(matches!(
        desk.came_up().now_or_never(),
        Some(CameUp::Failed(_))
    ));
    assert!(!desk.fail_init(Bytes::new()));
}
