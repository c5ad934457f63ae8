//! Idempotency keys.

use super::*;

#[test]
fn a_key_is_accepted_once_and_with_one_payload() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        let keyed = |id: &str| AsyncRequest {
            payload: Bytes::from_static(b"1"),
            ..request("f", id, Some("k"))
        };
        // Also within one group.
        let (one, two) = tokio::join!(queue.accept(keyed("a")), queue.accept(keyed("b")));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.id, two.id);
        assert!(one.repeated != two.repeated);
        let error = queue
            .accept(request("f", "c", Some("k")))
            .await
            .unwrap_err();
        assert!(matches!(error, NotAccepted::KeyReused { .. }), "{error}");
        let other = queue.accept(request("g", "d", Some("k"))).await.unwrap();
        assert!(!other.repeated, "a key belongs to a function");
        let runner = runner(quick(), |_, _| done());
        queue.dispatch(Arc::clone(&runner) as _);
        settled(&queue).await;
        assert_eq!(runner.ran.lock().len(), 2);
        let again = queue.accept(keyed("e")).await.unwrap();
        assert!(again.repeated, "the key is known after the end");
        stop(queue).await;
    });
}

#[test]
fn a_key_does_not_outlive_an_invocation_that_never_runs_or_its_function() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio();
    let queue = Queue::open(config(folder.path())).unwrap();
    let keyed = |function: &str, id: &str, key: &str| AsyncRequest {
        payload: Bytes::from_static(b"1"),
        ..request(function, id, Some(key))
    };
    let is_new = |function: &str, id: &str, key: &str| {
        let accepted = runtime.block_on(queue.accept(keyed(function, id, key)));
        !accepted.unwrap().repeated
    };
    assert!(is_new("f", "a", "k"));
    queue.cancel("a", anything()).unwrap();
    assert!(is_new("f", "b", "k"), "its event was cancelled");

    // After a start: of functions that are not there any more.
    assert!(is_new("left", "l", "k"));
    queue.cancel("l", anything()).unwrap();
    assert!(is_new("left", "m", "k") && is_new("ff", "n", "kept"));
    let mark = |scope: &str| Mark {
        scope: scope.to_owned(),
        key: "last".to_owned(),
        value: Some("1".to_owned()),
    };
    let marks = vec![mark("left/o/schedule/x"), mark("ff/o/schedule/x")];
    runtime.block_on(queue.change(marks)).unwrap();
    let there = ["f", "ff"].map(|name| name.parse().unwrap());
    queue.forget_all_but(there.into());
    assert!(!is_new("left", "p", "k"), "its event still waits");
    assert!(!is_new("ff", "q", "kept"));
    let marks = |scope: &str| runtime.block_on(queue.marks(scope)).unwrap().len();
    assert_eq!(
        (marks("left/o/schedule/x"), marks("ff/o/schedule/x")),
        (0, 1)
    );

    // Of a function that is removed: what has ended, and what waits.
    assert!(is_new("gone", "c", "waits"));
    assert!(is_new("ff", "d", "k"));
    queue.forget_keys(&"gone".parse().unwrap());
    queue.forget_keys(&"f".parse().unwrap());
    assert!(!is_new("gone", "e", "waits"), "its event still waits");
    // A dead letter that waits again: its key is known again.
    let letter = keyed("f", "dead", "letter");
    let buried = queue.bury(letter, 1, "poison".to_owned());
    runtime.block_on(buried).unwrap();
    queue.forget_keys(&"f".parse().unwrap());
    let redriven = queue.redrive(DeadLetters::default(), anything()).unwrap();
    assert_eq!(redriven.changed, 1);
    assert!(!is_new("f", "f", "letter"));

    let runner = runner(quick(), |_, _| done());
    runtime.block_on(async {
        queue.dispatch(Arc::clone(&runner) as _);
        settled(&queue).await;
    });
    assert_eq!(queue.counts().dead, 1, "that of the function that is gone");
    assert!(is_new("gone", "g", "waits"), "its event did not run");
    assert!(!is_new("f", "h", "k"), "its event ran");
    queue.forget_keys(&"f".parse().unwrap());
    assert!(is_new("f", "i", "k"), "of another function of this name");
    assert!(!is_new("ff", "j", "k"), "a name that ends alike");
    runtime.block_on(stop(queue));
}

#[test]
fn an_interrupted_attempt_with_a_key_is_not_repeated_and_one_without_is() {
    let folder = tempfile::tempdir().unwrap();
    tokio().block_on(async {
        let queue = Queue::open(config(folder.path())).unwrap();
        for (id, key) in [("keyed", Some("k")), ("plain", None)] {
            queue.accept(request("f", id, key)).await.unwrap();
        }
        stop(queue).await;
        // As an attempt of both at the moment of a crash leaves it.
        let store = crate::open::open(&folder.path().join("async.sqlite"))
            .unwrap()
            .connection;
        store
            .execute("UPDATE records SET started = 1 WHERE key IS NOT NULL", [])
            .unwrap();
        drop(store);
        let queue = Queue::open(config(folder.path())).unwrap();
        let runner = runner(quick(), |_, _| done());
        queue.dispatch(Arc::clone(&runner) as _);
        settled(&queue).await;
        let ids: Vec<_> = runner
            .ran
            .lock()
            .iter()
            .map(|ran| ran.id.to_string())
            .collect();
        assert_eq!(ids, ["plain"]);
        assert_eq!(queue.counts().dead, 1);
        stop(queue).await;
    });
}
