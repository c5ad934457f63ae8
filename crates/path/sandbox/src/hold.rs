//! Inputs as files, for programs that cannot receive descriptors: Node.js, runtimes behind the Lambda Runtime API, HTTP servers.
//!
//! A memfd has no path, and cannot be mounted (`do_loopback` in fs/namespace.c refuses the kernel's own mounts). But every open file has
//! one in `/proc`, for those who may look into the process that has it (proc_pid_fd(5)). So for the time of an invocation a tiny program
//! of ours, the *holder*, runs in the worker's sandbox as the worker's user and has the inputs open: `/proc/PID/fd/N` is the input,
//! without a copy. The init of the sandbox cannot have them open itself, because its memory is none of the worker's business.
//!
//! The holder says that it runs, waits until its socket closes, and exits. It has nothing that the worker may not have. A worker that
//! kills it or opens its descriptors harms its own invocation, or keeps its own inputs.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use pilot_model::ports::{Input, StartError};
use pilot_protocols::HeldFiles;
use pilot_sys::{memfd, seqpacket};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::channel::set_nonblocking;
use crate::machine::{dev_null, no_sandbox};
use crate::message::{ANSWER_TIME_MAX, ExecSpec};
use crate::sandbox::{Control, Sandbox};

/// Starts holders in one sandbox, for one worker. It does not keep the sandbox alive.
#[derive(Debug)]
pub(crate) struct Holders {
    control: Weak<Control>,
    /// The worker's.
    user: Option<u32>,
    /// Of the sandbox's cgroup.
    join_files: Vec<OwnedFd>,
}

impl Holders {
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn new(sandbox: &Sandbox, user: Option<u32>) -> Result<Self, StartError> {
        let join_files = sandbox
            .join_files()
            .map(|file| file.try_clone_to_owned())
            .collect::<io::Result<_>>()
            .map_err(no_sandbox("a descriptor"))?;
        Ok(Self {
            control: Arc::downgrade(sandbox.control()),
            user,
            join_files,
        })
    }

    /// Shows inputs, in their order, until the result is dropped.
    pub(crate) async fn hold(&self, inputs: &[Input]) -> Result<HeldFiles, StartError> {
        let control = self.control.upgrade().ok_or_else(|| failed("it ended"))?;
        let mut paths = Vec::with_capacity(inputs.len());
        let mut lines = Vec::new();
        for some in inputs.chunks(INPUTS_MAX) {
            let (pid, line) = self.start(&control, some).await?;
            paths.extend(
                (FIRST_INPUT..)
                    .take(some.len())
                    .map(|fd| format!("/proc/{pid}/fd/{fd}")),
            );
            lines.push(line);
        }
        Ok(HeldFiles::new(paths, lines))
    }

    /// Starts one holder. Its id in the sandbox, and the socket that keeps it running.
    async fn start(
        &self,
        control: &Control,
        inputs: &[Input],
    ) -> Result<(i32, UnixStream), StartError> {
        let program = program().map_err(no_sandbox("the holder of inputs"))?;
        let (line, theirs) =
            seqpacket::stream_pair_with_untrusted().map_err(no_sandbox("a socket pair"))?;
        set_nonblocking(&line).map_err(no_sandbox("a socket pair"))?;
        let mut line =
            UnixStream::from_std(line.into()).map_err(no_sandbox("register a socket"))?;
        let null = dev_null()?;
        let mut fds = vec![program.as_fd(), theirs.as_fd(), null.as_fd()];
        fds.extend(inputs.iter().map(|input| input.descriptor.as_fd()));
        fds.extend(self.join_files.iter().map(AsFd::as_fd));
        let spec = ExecSpec {
            path: "/proc/self/fd/0".to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            cwd: PathBuf::from("/"),
            user: self.user,
            cgroup_files: self.join_files.len(),
            template: false,
        };
        let pid = control.exec_unwatched(spec, &fds).await?;
        drop(theirs);
        // Before it has said so, its descriptors are not in place, and nobody may look into it.
        let mut said = [0];
        match timeout(ANSWER_TIME_MAX, line.read(&mut said)).await {
            Ok(Ok(1)) => Ok((pid, line)),
            Ok(_) => Err(failed("it could not be started")),
            Err(_) => Err(failed("it did not start in time")),
        }
    }
}

fn failed(problem: &str) -> StartError {
    StartError::Sandbox {
        problem: format!("the holder of inputs: {problem}"),
    }
}

/// The program: an executable in memory that no process can change.
fn program() -> io::Result<OwnedFd> {
    let mut file = memfd::create_executable(c"pilot-inputs")?;
    file.write_all(&executable()?)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o555))?;
    memfd::seal(file.as_fd())?;
    // One that can only be read: a file that is open for writing cannot be executed (execve(2), ETXTBSY).
    memfd::reopen(file.as_fd())
}

/// An ELF file with one segment that has everything: its header, the program header and the code (elf(5)).
fn executable() -> io::Result<Vec<u8>> {
    let (machine, code) = match std::env::consts::ARCH {
        "x86_64" => (EM_X86_64, X86_64),
        "aarch64" => (EM_AARCH64, AARCH64),
        other => {
            let problem = format!("inputs of this runtime are not supported on {other}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        }
    };
    let len = (HEADERS_LEN + code.len()) as u64;
    let mut elf = Vec::with_capacity(HEADERS_LEN + code.len());
    // 64 bit, little-endian, version 1, System V.
    elf.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    elf.extend(2u16.to_le_bytes()); // executable
    elf.extend(machine.to_le_bytes());
    elf.extend(1u32.to_le_bytes());
    elf.extend((BASE + HEADERS_LEN as u64).to_le_bytes()); // the first instruction
    elf.extend(64u64.to_le_bytes()); // the program header's place
    elf.extend(0u64.to_le_bytes()); // no sections
    elf.extend(0u32.to_le_bytes());
    for size in [64u16, 56, 1, 64, 0, 0] {
        elf.extend(size.to_le_bytes());
    }
    elf.extend(1u32.to_le_bytes()); // to be loaded
    elf.extend(5u32.to_le_bytes()); // readable and executable
    for field in [0, BASE, BASE, len, len, 0x1000] {
        elf.extend(u64::to_le_bytes(field));
    }
    elf.extend(code);
    Ok(elf)
}

const HEADERS_LEN: usize = 64 + 56;
const BASE: u64 = 0x40_0000;
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;

/// `write(1, sp, 1); read(1, sp - 16, 1); exit(0)`.
const X86_64: &[u8] = &[
    0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
    0xbf, 1, 0, 0, 0, // mov edi, 1
    0x48, 0x89, 0xe6, // mov rsi, rsp
    0xba, 1, 0, 0, 0, // mov edx, 1
    0x0f, 0x05, // syscall
    0x31, 0xc0, // xor eax, eax (read)
    0xbf, 1, 0, 0, 0, // mov edi, 1
    0x48, 0x8d, 0x74, 0x24, 0xf0, // lea rsi, [rsp - 16]
    0xba, 1, 0, 0, 0, // mov edx, 1
    0x0f, 0x05, // syscall
    0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
    0x31, 0xff, // xor edi, edi
    0x0f, 0x05, // syscall
];

/// The same.
const AARCH64: &[u8] = &[
    0x20, 0x00, 0x80, 0xd2, // mov x0, #1
    0xe1, 0x43, 0x00, 0xd1, // sub x1, sp, #16
    0x22, 0x00, 0x80, 0xd2, // mov x2, #1
    0x08, 0x08, 0x80, 0xd2, // mov x8, #64 (write)
    0x01, 0x00, 0x00, 0xd4, // svc #0
    0x20, 0x00, 0x80, 0xd2, // mov x0, #1
    0xe1, 0x43, 0x00, 0xd1, // sub x1, sp, #16
    0x22, 0x00, 0x80, 0xd2, // mov x2, #1
    0xe8, 0x07, 0x80, 0xd2, // mov x8, #63 (read)
    0x01, 0x00, 0x00, 0xd4, // svc #0
    0x00, 0x00, 0x80, 0xd2, // mov x0, #0
    0xa8, 0x0b, 0x80, 0xd2, // mov x8, #93 (exit)
    0x01, 0x00, 0x00, 0xd4, // svc #0
];

/// The holder's descriptors: 0 the program, 1 its socket, 2 the null device, then inputs.
const FIRST_INPUT: u32 = 3;
/// Inputs of one holder: a message to an init has 16 descriptors, of which 4 are taken and some are those of cgroups.
const INPUTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_holder_says_that_it_runs_and_ends_when_its_socket_closes() {
        use std::os::fd::AsRawFd as _;

        let program = program().unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), program.as_raw_fd());
        let mut holder = Command::new(path)
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(theirs))
            .spawn()
            .unwrap();
        let mut said = [0];
        ours.read_exact(&mut said).unwrap();
        assert!(holder.try_wait().unwrap().is_none());
        drop(ours);
        assert!(holder.wait().unwrap().success());
    }

    #[test]
    fn nobody_can_change_the_program() {
        let program = std::fs::File::from(program().unwrap());
        assert!(program.set_len(0).is_err() && (&program).write_all(b"x").is_err());
    }
}
