//! The errors of steps that the system refuses.

use std::fmt::Display;
use std::io;

use pilot_model::ports::StartError;

/// The error of a step of a start: that there is no room if descriptors, processes or memory ran out, else that it failed.
pub(crate) fn refused(step: impl Display) -> impl Fn(io::Error) -> StartError {
    move |error| {
        let problem = format!("{step}: {error}");
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM) => {
                StartError::Full { problem }
            }
            _ => StartError::Sandbox { problem },
        }
    }
}
