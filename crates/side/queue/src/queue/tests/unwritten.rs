//! A store that cannot be written.

use std::sync::Arc;

use pilot_model::ports::AsyncFault;
use tokio::sync::oneshot;

use super::super::Parts;
use super::{anything, config, request};
use crate::command::Command;
use crate::store::Record;

#[test]
fn an_invocation_whose_cancel_cannot_be_written_is_due_when_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let Parts {
        shared, mut writer, ..
    } = Parts::open(&config(folder.path()), 1_000).unwrap();
    let mut record = Record::of(request("f", "one", None), 1_000);
    record.due_ms = 900_000;
    let (reply, _) = oneshot::channel();
    let place = Arc::clone(&shared.places).try_acquire_owned().unwrap();
    let record = Box::new(record);
    let accept = Command::Accept {
        record,
        place,
        reply,
    };
    assert!(writer.commit(vec![accept]).is_empty());

    let no_writes = writer.connection.pragma_update(None, "query_only", true);
    no_writes.unwrap();
    let (reply, mut answer) = oneshot::channel();
    let (id, may) = ("one".to_owned(), anything());
    writer.commit(vec![Command::Cancel { id, may, reply }]);
    assert!(matches!(
        answer.try_recv(),
        Ok(Err(AsyncFault::Store { .. }))
    ));
    let schedule = shared.schedule.lock();
    assert_eq!((schedule.len(), schedule.running()), (1, 0));
    assert_eq!(schedule.next_due_ms(1_000), Some(900_000));
}
