use futures_util::FutureExt;

use super::*;

fn event(id: &str) -> (Event, oneshot::Receiver<Posted>) {
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
    let queue = InvocationQueue::new(2);
    let (first, _first) = event("1");
    queue.submit(first).unwrap();
    assert_eq!(taken(queue.poll().now_or_never()), "1");
    let mut poll = Box::pin(queue.poll());
    assert!((&mut poll).now_or_never().is_none());
    let (second, _second) = event("2");
    queue.submit(second).unwrap();
    assert_eq!(taken(poll.now_or_never()), "2");
}

#[test]
fn two_polls_get_two_events_that_came_before_either_was_woken() {
    let queue = InvocationQueue::new(2);
    let (first, _first) = event("1");
    let (second, _second) = event("2");
    queue.submit(first).unwrap();
    queue.submit(second).unwrap();
    // Both notifications are one permit: the first poll leaves an event and wakes the second.
    let (mut one, mut two) = (Box::pin(queue.poll()), Box::pin(queue.poll()));
    assert_eq!(taken((&mut one).now_or_never()), "1");
    assert_eq!(taken((&mut two).now_or_never()), "2");
}

#[test]
fn a_poll_that_goes_away_leaves_its_event_to_the_next() {
    let queue = InvocationQueue::new(1);
    let mut gone = Box::pin(queue.poll());
    let mut stays = Box::pin(queue.poll());
    assert!((&mut gone).now_or_never().is_none());
    assert!((&mut stays).now_or_never().is_none());
    let (event, _heard) = event("1");
    queue.submit(event).unwrap();
    drop(gone);
    assert_eq!(taken(stays.now_or_never()), "1");
}

#[test]
fn a_caller_that_goes_away_before_the_poll_is_not_served() {
    let queue = InvocationQueue::new(1);
    let (first, heard) = event("1");
    queue.submit(first).unwrap();
    drop(heard);
    assert!(queue.poll().now_or_never().is_none());
}

#[test]
fn with_one_at_a_time_a_poll_before_the_answer_is_out_of_turn() {
    let queue = InvocationQueue::new(1);
    let (first, heard) = event("1");
    queue.submit(first).unwrap();
    assert_eq!(taken(queue.poll().now_or_never()), "1");
    assert_eq!(queue.poll().now_or_never().unwrap().unwrap_err(), OutOfTurn);
    queue.begin_answer("1").unwrap().result(Bytes::new());
    assert!(matches!(
        heard.now_or_never().unwrap(),
        Ok(Posted::Result(..))
    ));
    assert!(queue.poll().now_or_never().is_none());
}

#[test]
fn an_invocation_is_answered_once_and_an_unknown_one_never() {
    let queue = InvocationQueue::new(1);
    let (first, heard) = event("1");
    queue.submit(first).unwrap();
    assert!(queue.begin_answer("1").is_none(), "nobody has taken it");
    taken(queue.poll().now_or_never());
    let answering = queue.begin_answer("1").unwrap();
    assert!(queue.begin_answer("1").is_none());
    assert!(queue.begin_answer("2").is_none());
    drop(answering);
    assert!(matches!(
        heard.now_or_never().unwrap(),
        Ok(Posted::Truncated(_))
    ));
}

#[test]
fn what_is_too_much_or_too_late_is_refused() {
    let queue = InvocationQueue::new(1);
    let (first, heard) = event("1");
    let (again, _again) = event("1");
    let (second, _second) = event("2");
    queue.submit(first).unwrap();
    assert_eq!(queue.submit(again), Err(Refused::IdInUse));
    assert_eq!(queue.submit(second), Err(Refused::Full));
    queue.close();
    assert!(matches!(
        heard.now_or_never().unwrap(),
        Ok(Posted::NotTaken)
    ));
    let (late, _late) = event("3");
    assert_eq!(queue.submit(late), Err(Refused::Closed));
}

#[test]
fn the_initialisation_ends_once() {
    let queue = InvocationQueue::new(1);
    assert!(queue.fail_init(Bytes::from_static(b"{}")));
    assert!(queue.poll().now_or_never().is_none());
    assert!(matches!(
        queue.initialised().now_or_never(),
        Some(Initialisation::Failed(_))
    ));
    assert!(!queue.fail_init(Bytes::new()));
}
