//! The reader of standard output, for commands that may print nothing for a long time.

use std::io::{self, stdout};
use std::os::fd::AsFd;
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// From now on, the process ends with 0 when the reader of its output has closed it (`pilot logs -f greet | head -1`), also while there is
/// nothing to write.
///
/// # Errors
/// No thread can be started.
pub(super) fn end_when_gone() -> io::Result<()> {
    // Lives as long as the process, and holds nothing.
    let thread = thread::Builder::new().name("reader".to_owned());
    thread.spawn(|| {
        if is_gone(stdout()) {
            std::process::exit(0);
        }
    })?;
    Ok(())
}

/// Waits until nobody reads any more. False: that cannot be waited for. poll(2): the writing end of a pipe has POLLERR when its reader has
/// closed it, a socket and a terminal have POLLHUP. Both are reported without being asked for; of a file neither is.
fn is_gone(output: impl AsFd) -> bool {
    loop {
        let mut files = [PollFd::new(output.as_fd(), PollFlags::empty())];
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) => {
                let found = files[0].revents().unwrap_or(PollFlags::empty());
                return found.intersects(PollFlags::POLLERR | PollFlags::POLLHUP);
            }
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_whose_reader_closes_it_is_noticed() {
        let (reader, writer) = io::pipe().unwrap();
        let waiting = thread::spawn(move || is_gone(writer));
        drop(reader);
        assert!(waiting.join().unwrap());
    }
}
