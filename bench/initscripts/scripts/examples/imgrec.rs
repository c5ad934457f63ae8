//! Takes a task from a queue, and reads the image and the weights that it names (the paper's imgrec). The task is message 0.

#![no_std]

use initscript::{Error, S3, Sqs, value};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let (mut body, mut key) = ([0; 4096], [0; 1024]);
    let task = Sqs::connect("jobs")?.receive(0, "tasks", 0)?.wait()?;
    task.hand_over(0)?;
    let body = task.value("Messages.0.Body", &mut body)?;
    let photos = S3::connect("photos")?;
    photos
        .get(0, value(body, "weights", &mut key)?)?
        .hand_over(1)?;
    photos.get(1, value(body, "key", &mut key)?)?.hand_over(2)
}
