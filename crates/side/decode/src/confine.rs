//! What a decoder gives up before it reads an input: memory and time beyond its limits, and all system calls but those that a
//! computation needs. The sandbox around it has no network and no files to read; with this, it could not even ask.

use nix::sys::resource::{Resource, setrlimit};
use pilot_sys::seccomp::{Argument, Filter, Rule, Verdict};

/// Confines this process. It must have one thread.
///
/// # Errors
/// The kernel's, with the step.
pub(crate) fn confine(memory_bytes: u64) -> Result<(), String> {
    let limit = |what: &str, resource, most: u64| {
        setrlimit(resource, most, most).map_err(|error| format!("limit its {what}: {error}"))
    };
    // The control group has the limit that counts, where the machine has control groups. It is reached first.
    limit(
        "memory",
        Resource::RLIMIT_DATA,
        memory_bytes.saturating_add(DATA_BYTES_MORE),
    )?;
    limit("time", Resource::RLIMIT_CPU, CPU_SECONDS_MAX)?;
    limit("files", Resource::RLIMIT_FSIZE, 0)?;
    limit("core dump", Resource::RLIMIT_CORE, 0)?;
    let filter = Filter::compile(&rules(), Verdict::Allow, refused());
    let filter = filter.map_err(|error| error.to_string())?;
    filter
        .install()
        .map_err(|error| format!("install its filter: {error}"))
}

fn refused() -> Verdict {
    Verdict::Errno(libc::EPERM.unsigned_abs())
}

fn rules() -> Vec<Rule> {
    let always = CALLS.iter().map(|call| Rule {
        call: *call,
        when: Vec::new(),
    });
    // Memory that can be executed is never needed.
    let not_executable = [libc::SYS_mmap, libc::SYS_mprotect].map(|call| Rule {
        call,
        when: vec![Argument::Without {
            index: 2,
            mask: u64::from(libc::PROT_EXEC.unsigned_abs()),
        }],
    });
    always.chain(not_executable).collect()
}

/// What a computation in one thread needs.
const CALLS: &[i64] = &[
    // The socket.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // The C library and std.
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    // The end, also by abort(3).
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Time of a CPU, s.
const CPU_SECONDS_MAX: u64 = 30;
/// What allocators reserve in advance and do not use.
const DATA_BYTES_MORE: u64 = 256 << 20;
