//! Processes: clone with namespaces, exec with an exact set of descriptors, parent-death signal, no-new-privileges.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::sched::CloneFlags;
use nix::unistd::Pid;

/// Which process returns from [`fork_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The new process.
    Child,
    /// The caller, with the child's process id as the caller sees it.
    Parent(Pid),
}

/// Like fork(2), with namespaces: the child is a copy of the caller and continues after the call. Use `CLONE_PARENT` and the
/// `CLONE_NEW…` flags; sharing flags (`CLONE_VM`, `CLONE_FILES` …) make no sense here and are removed.
///
/// # Errors
/// The kernel's (clone(2)); `Unsupported` in a process with more than one thread, because a lock that another thread holds
/// would stay locked in the child forever.
pub fn fork_with(flags: CloneFlags) -> io::Result<Side> {
    let threads = thread_count()?;
    if threads != 1 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("a process with {threads} threads must not fork"),
        ));
    }
    let flags = flags
        - (CloneFlags::CLONE_VM
            | CloneFlags::CLONE_FILES
            | CloneFlags::CLONE_FS
            | CloneFlags::CLONE_SIGHAND
            | CloneFlags::CLONE_THREAD);
    #[expect(clippy::cast_sign_loss, reason = "a set of bits, not a number")]
    let bits = libc::c_ulong::from(flags.bits() as u32 | libc::SIGCHLD as u32);
    let null: libc::c_ulong = 0;
    // SAFETY: without CLONE_VM and with a null stack, clone(2) is fork(2): the child gets a copy of this stack. No pointer is
    // passed. The process has one thread, as checked above, and only that thread could start another.
    let result = unsafe { libc::syscall(libc::SYS_clone, bits, null, null, null, null) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        #[expect(clippy::cast_possible_truncation, reason = "a process id is an int")]
        pid => Ok(Side::Parent(Pid::from_raw(pid as libc::pid_t))),
    }
}

/// Gives the calling thread the lowest real-time priority (SCHED_FIFO, sched(7)): it runs as soon as it can, before all ordinary
/// ones. For a thread that works for microseconds at a time. Its children are ordinary again.
///
/// # Errors
/// The kernel's: it needs CAP_SYS_NICE, or real time is not for this control group.
pub fn run_before_others() -> io::Result<()> {
    // SAFETY: a sched_param of zeros is valid.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 1;
    // SAFETY: 0 is the calling thread, and `parameter` lives across the call, which only reads it.
    let failed = unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameter,
        )
    };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The main function of a forked child: closes every descriptor but `kept`, then runs `body`, which does not return. The child
/// never uses or drops anything else that the parent owned.
pub fn child_main(kept: Vec<OwnedFd>, body: impl FnOnce(Vec<OwnedFd>) -> Infallible) -> ! {
    let mut numbers: Vec<libc::c_uint> = kept
        .iter()
        .filter_map(|fd| libc::c_uint::try_from(fd.as_raw_fd()).ok())
        .collect();
    numbers.sort_unstable();
    let mut first = 0;
    for fd in numbers {
        if fd > first {
            close_range(first, fd - 1);
        }
        first = fd + 1;
    }
    close_range(first, libc::c_uint::MAX);
    match body(kept) {}
}

fn close_range(first: libc::c_uint, last: libc::c_uint) {
    let flags: libc::c_uint = 0;
    // SAFETY: integers only. The closed descriptors belong to values of the parent's code, to which this process never returns.
    // A kernel without this call (before 5.9) leaves them open, which costs only descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
}

/// Restores a signal's default action (sigaction(2)); an ignored signal would stay ignored across `execve`.
///
/// # Errors
/// The kernel's.
pub fn default_signal(signal: nix::sys::signal::Signal) -> io::Result<()> {
    // SAFETY: SIG_DFL installs no handler, so no code of this process runs in signal context.
    unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) }?;
    Ok(())
}

/// Ignores a signal. With `SIGCHLD` ignored, the kernel reaps children (wait(2)).
///
/// # Errors
/// The kernel's.
pub fn ignore_signal(signal: nix::sys::signal::Signal) -> io::Result<()> {
    // SAFETY: SIG_IGN installs no handler, so no code of this process runs in signal context.
    unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigIgn) }?;
    Ok(())
}

/// Ends this process immediately, without destructors and exit handlers. For children, which must not run their parent's.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit(2) takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// A program to be executed, prepared before a fork so that nothing is allocated after it.
#[derive(Debug)]
pub struct Program {
    path: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
}

impl Program {
    /// `argv[0]` is the path.
    ///
    /// # Errors
    /// A NUL byte in one of them.
    pub fn new(
        path: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> io::Result<Self> {
        let argv = std::iter::once(path)
            .chain(arguments.iter().map(String::as_str))
            .map(CString::new)
            .collect::<Result<_, _>>()?;
        let envp = environment
            .iter()
            .map(|(key, value)| CString::new(format!("{key}={value}")))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            path: CString::new(path)?,
            argv,
            envp,
        })
    }

    /// Executes the program (execve(2)) with `fds[n]` as its descriptor `n` and no others. Returns only on failure.
    pub fn exec(&self, fds: &[OwnedFd]) -> io::Error {
        if let Err(error) = arrange_fds(fds) {
            return error;
        }
        let argv = null_terminated(&self.argv);
        let envp = null_terminated(&self.envp);
        // SAFETY: path is NUL-terminated; argv and envp are arrays of pointers to NUL-terminated strings that end
        // with a null pointer; all live until the call replaces the process or fails.
        unsafe { libc::execve(self.path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        io::Error::last_os_error()
    }
}

fn null_terminated(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| CStr::as_ptr(string))
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

/// Puts `fds[n]` at descriptor `n`, without close-on-exec, and marks every other one close-on-exec.
fn arrange_fds(fds: &[OwnedFd]) -> io::Result<()> {
    let count = RawFd::try_from(fds.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Moves all sources above the targets first: a source may have the number of another one's target.
    let mut moved = Vec::with_capacity(fds.len());
    for fd in fds {
        // SAFETY: fcntl with F_DUPFD_CLOEXEC takes and returns integers.
        let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, count + 16) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        moved.push(copy);
    }
    for (target, source) in moved.iter().enumerate() {
        let target = RawFd::try_from(target).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: dup2 takes integers. The descriptor that it replaces at `target` belongs to the process image that ends here.
        if unsafe { libc::dup2(*source, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    #[expect(clippy::cast_sign_loss, reason = "a count")]
    let first_other = count as libc::c_uint;
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: close_range(2) with CLOEXEC only sets a flag on descriptors of this process.
    let failed =
        unsafe { libc::syscall(libc::SYS_close_range, first_other, libc::c_uint::MAX, flags) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Replaces the command line that `/proc/PID/cmdline` shows of this process, and of those that it forks (proc_pid_cmdline(5)). At
/// most as long as the old one; the rest of it is overwritten with zeros. For children that others may look at and that do not use
/// their parent's arguments.
///
/// # Errors
/// `/proc` is not there, or does not say where the arguments are.
pub fn show_as(name: &str) -> io::Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let place = arguments(&stat).ok_or(io::ErrorKind::InvalidData)?;
    let len = usize::try_from(place.end - place.start).map_err(io::Error::other)?;
    // The last byte stays zero: otherwise the kernel shows the environment after it, too (fs/proc/base.c, get_mm_cmdline).
    let shown = name.bytes().take(len.saturating_sub(1));
    let line: Vec<u8> = shown.chain(std::iter::repeat(0)).take(len).collect();
    let memory = File::options().write(true).open("/proc/self/mem")?;
    memory.write_all_at(&line, place.start)
}

/// Where the arguments of a process are: fields 48 and 49 of its `stat` (proc_pid_stat(5)), of which the second, its name, may have
/// spaces and parentheses.
fn arguments(stat: &str) -> Option<Range<u64>> {
    let (_, from_third) = stat.rsplit_once(") ")?;
    let mut fields = from_third.split_ascii_whitespace().skip(48 - 3);
    let start = fields.next()?.parse().ok()?;
    let end = fields.next()?.parse().ok()?;
    (0 < start && start < end).then_some(start..end)
}

/// How many threads this process has.
///
/// # Errors
/// `/proc` is not readable.
pub fn thread_count() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_arguments_is_found_after_any_name() {
        let numbers: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) R (b) S {}", numbers.join(" "));
        assert_eq!(arguments(&stat), Some(48..49));
        assert_eq!(arguments("7 (a) S 1 2"), None);
    }

    #[test]
    fn this_process_finds_its_arguments() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let place = arguments(&stat).unwrap();
        let shown = fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(place.end - place.start, shown.len() as u64);
    }
}
