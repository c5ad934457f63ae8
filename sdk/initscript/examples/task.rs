//! Takes a task from a queue, and fetches the object that the task names. Its own reply goes to the function, too, which deletes the
//! task when it is done.

#![no_std]

use initscript::{Error, S3, Sqs, value};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let (mut body, mut key) = ([0; 4096], [0; 1024]);
    let task = Sqs::connect("jobs")?.receive(0, "tasks", 1)?.wait()?;
    task.hand_over(0)?;
    let body = task.value("Messages.0.Body", &mut body)?;
    S3::connect("photos")?
        .get(0, value(body, "key", &mut key)?)?
        .hand_over(1)
}
