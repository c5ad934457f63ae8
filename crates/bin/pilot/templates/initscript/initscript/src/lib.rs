//! The initscript of __NAME__. It sends the function's first requests while its worker starts.

#![no_std]

use initscript::{Error, event, send_msg};

initscript::main!(init);

fn init() -> Result<(), Error> {
    let mut name = [0; 256];
    // A value of the event: `Records.0.key` is a longer path.
    let name = event("name", &mut name).unwrap_or("world");
    send_msg(0, name.as_bytes())

    // Reads two objects of an S3 store. Both requests are sent before the script waits. The function gets them from boto3, or as
    // messages 1 and 2.
    //
    //     let mut key = [0; 1024];
    //     let photos = initscript::S3::connect("photos")?;
    //     photos.get(1, event("key", &mut key)?)?.hand_over(1)?;
    //     photos.get(2, "models/labels.json")?.hand_over(2)
}
