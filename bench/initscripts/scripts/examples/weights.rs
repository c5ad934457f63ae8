//! A shared script: the weights, which do not depend on the request, are message 100.

#![no_std]

use initscript::{Error, S3};

initscript::main!(init);

fn init() -> Result<(), Error> {
    S3::connect("photos")?
        .get(0, "in/weights.onnx")?
        .hand_over(100)
}
