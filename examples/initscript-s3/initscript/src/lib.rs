//! Reads an album, learns from it which photograph is its cover, and reads that: two requests of which the second follows from the first.

#![no_std]

use initscript::{Error, S3, event};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let mut key = [0; 256];
    let mut text = [0; 1024];
    let photos = S3::connect("photos")?;
    let album = photos.get(0, event("album", &mut key)?)?.wait()?;
    // The first line of an album is the key of its cover.
    let text = album.read(0, &mut text)?;
    let cover = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let cover = core::str::from_utf8(cover).map_err(|_| Error::Invalid)?;
    album.hand_over(0)?;
    photos.get(1, cover)?.hand_over(1)
}
