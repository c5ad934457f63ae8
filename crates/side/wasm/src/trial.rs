//! A trial of a compilation, in a process with limits.
//!
//! The time and the memory that the compiler takes are no function of a module's length: a module of 12 KB, with loops in loops and many
//! variables, took minutes. So a process of this binary compiles a module first, and only what it could compile within its limits is
//! compiled in the daemon. Nothing else is taken from the trial: the machine code of a script is always made in the daemon.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, setrlimit};
use pilot_model::initscript::TRIAL_VERB;
use wasmtime::Module;

use crate::engine::{self, MODULE_LEN_MAX};

/// Who compiles on trial.
#[derive(Debug, Clone)]
pub enum Trials {
    /// This program, which is Pilotlight.
    By(PathBuf),
    /// Nobody: modules are compiled at once. For tests.
    Off,
}

impl Trials {
    /// Whether a module can be compiled within the limits. What is wrong with it is not said here.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn run(&self, module: &[u8]) -> Result<(), String> {
        match self {
            Self::Off => Ok(()),
            Self::By(program) => run(program, module),
        }
    }
}

fn run(program: &Path, module: &[u8]) -> Result<(), String> {
    let failed = |error| format!("it cannot be compiled: no process for a trial: {error}");
    let mut trial = Command::new(program)
        .arg(TRIAL_VERB)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let written = trial.stdin.take().map(|mut to| to.write_all(module));
    // It ends by its limit of CPU time.
    let ended = trial.wait().map_err(failed)?;
    match (written, ended.code()) {
        (Some(Ok(())), Some(0)) => Ok(()),
        (_, Some(code)) => Err(failed(std::io::Error::other(format!("status {code}")))),
        _ => {
            let signal = ended.signal().unwrap_or_default();
            Err(format!(
                "the compiler takes more than {CPU_SECONDS_MAX} s or {} MiB (signal {signal}): write it with fewer variables in nested \
                 loops, or build it with optimisation for size",
                MEMORY_BYTES_MAX >> 20
            ))
        }
    }
}

/// The process of a trial: compiles what it reads from standard input.
///
/// # Errors
/// There are no limits, or no module.
pub fn trial() -> Result<(), String> {
    for (resource, most) in [
        (Resource::RLIMIT_DATA, MEMORY_BYTES_MAX),
        (Resource::RLIMIT_CPU, CPU_SECONDS_MAX),
        (Resource::RLIMIT_CORE, 0),
    ] {
        setrlimit(resource, most, most).map_err(|error| format!("{resource:?}: {error}"))?;
    }
    let mut bytes = Vec::new();
    let mut from = std::io::stdin().lock().take(LEN_MAX);
    from.read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    let engine = engine::engine().map_err(|error| error.to_string())?;
    // The daemon says what is wrong with it.
    drop(Module::from_binary(&engine, &bytes));
    Ok(())
}

/// Memory of a process that compiles. A module of 1.2 MB with 4,500 functions took 103 MB.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Time of a CPU. The same module took 4.7 s, with a debug build.
const CPU_SECONDS_MAX: u64 = 20;
/// Longer than the longest module with the places that `turns` adds.
const LEN_MAX: u64 = 4 * MODULE_LEN_MAX;
