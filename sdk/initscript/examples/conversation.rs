//! Fetches an index, asks the function which object of it is needed, and fetches that one while the function goes on. It needs
//! `during = "invocation"`.

#![no_std]

use core::str::from_utf8;

use initscript::{Error, S3, recv_msg};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let mut key = [0; 1024];
    let photos = S3::connect("photos")?;
    photos.get(0, "index")?.hand_over(0)?;
    let key = from_utf8(recv_msg(1, &mut key)?).map_err(|_| Error::Invalid)?;
    photos.get(1, key)?.hand_over(2)
}
