//! Reads the object that the event names (`object.key`), or up to eight (`object.keys`), and hands them to the function. Without any, it
//! does nothing.

#![no_std]

use initscript::{Error, S3, event};

initscript::main!(init);

const PATHS: [&str; 9] = [
    "object.key",
    "object.keys.0",
    "object.keys.1",
    "object.keys.2",
    "object.keys.3",
    "object.keys.4",
    "object.keys.5",
    "object.keys.6",
    "object.keys.7",
];

fn init() -> Result<(), Error> {
    let mut key = [0; 1024];
    for (id, path) in (0..).zip(PATHS) {
        match event(path, &mut key) {
            Ok(key) => S3::connect("photos")?.get(id, key)?.hand_over(id)?,
            Err(Error::Unknown) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
