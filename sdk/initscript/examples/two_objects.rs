//! Reads two objects of S3 at the same time and hands them to the function: the one that the event names, and one that all events need.

#![no_std]

use initscript::{Error, S3, event};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let mut key = [0; 1024];
    let photos = S3::connect("photos")?;
    photos.get(0, event("key", &mut key)?)?.hand_over(0)?;
    photos.get(1, "models/labels.json")?.hand_over(1)
}
