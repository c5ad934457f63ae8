//! Dead letters that wait again.

use pilot_model::asynchronous::{AsyncConfig, DeadLetters};
use pilot_model::ports::{AsyncControl as _, AsyncQueue as _, TriggerStore as _};

use super::{
    Queue, QueueConfig, anything, config, done, quick, request, runner, settled, stop, tokio,
};

#[test]
fn a_redrive_says_what_had_no_room_and_goes_on_with_other_functions() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio();
    let queue = Queue::open(QueueConfig {
        records_max: 12,
        ..config(folder.path())
    })
    .unwrap();
    for id in ["f1", "f2", "g1"] {
        let buried = queue.bury(request(&id[..1], id, None), 1, "poison".to_owned());
        runtime.block_on(buried).unwrap();
    }
    // The half of the places.
    for number in 0..5 {
        let accepted = queue.accept(request("f", &number.to_string(), None));
        runtime.block_on(accepted).unwrap();
    }
    let redrive = |id: Option<&str>| {
        let which = DeadLetters {
            id: id.map(str::to_owned),
            function: None,
        };
        let changed = queue.redrive(which, anything()).unwrap();
        (changed.changed, changed.left)
    };
    assert_eq!(redrive(None), (2, 1));
    assert_eq!(redrive(Some("f2")), (0, 1));
    assert_eq!(redrive(Some("none")), (0, 0));
    assert_eq!(queue.counts().dead, 1);
    runtime.block_on(stop(queue));
}

#[test]
fn a_record_that_its_destination_does_not_take_counts_as_dead_and_a_wrong_key_not_as_refused() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let config = AsyncConfig {
            on_success: Some("gone".parse().unwrap()),
            ..quick()
        };
        queue.accept(request("f", "one", Some("k"))).await.unwrap();
        let other_payload = request("f", "two", Some("k"));
        queue.accept(other_payload).await.unwrap_err();
        queue.dispatch(runner(config, |_, _| done()));
        settled(&queue).await;
        let counts = queue.counts();
        assert_eq!((counts.dead, counts.dead_total), (1, 1));
        assert_eq!((counts.accepted, counts.refused), (1, 0));
        stop(queue).await;
    });
}
