//! Dead letters that wait again.

use pilot_model::asynchronous::DeadLetters;
use pilot_model::ports::{AsyncControl as _, AsyncQueue as _, TriggerStore as _};

use super::{Queue, QueueConfig, anything, config, request, stop, tokio};

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
