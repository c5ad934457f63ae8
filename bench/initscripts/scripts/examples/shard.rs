//! The state of a service: `input` is the peer, a space and the path. The reply is message 0.

#![no_std]

use initscript::{Error, Http, input};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let mut place = [0; 512];
    let (peer, path) = input(&mut place)?.split_once(' ').ok_or(Error::Invalid)?;
    Http::connect(peer)?.get(0, path)?.hand_over(0)
}
