//! The program that has inputs open for processes which cannot receive descriptors (`native/holder.c`).
//!
//! Not here: the protocol on its connection (`base/protocols`), and how it is started in a sandbox or container.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

use crate::memfd;

/// A static program for this machine's architecture.
const BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/holder"));

/// The program as an executable in memory that no process can change. So nothing has to be in the root of the sandbox that it runs in.
///
/// # Errors
/// The kernel's: too many open files, or executables in memory are forbidden (sysctl `vm.memfd_noexec`).
pub fn program() -> io::Result<OwnedFd> {
    let mut file = memfd::create_executable(c"pilot-inputs")?;
    file.write_all(BINARY)?;
    file.set_permissions(Permissions::from_mode(0o555))?;
    memfd::seal(file.as_fd())?;
    // One that can only be read: a file that is open for writing cannot be executed (execve(2), ETXTBSY).
    memfd::reopen(file.as_fd())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn nobody_can_change_the_program() {
        let program = File::from(program().unwrap());
        assert!(program.set_len(0).is_err() && (&program).write_all(b"x").is_err());
    }
}
