//! What a test needs of the machine, beside root. Virtual machines lack some of it (`tests/vm`). A test without it is skipped loudly.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Something that a machine may lack.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// A way to other machines, from which packages are installed.
    Network,
    /// The kernel counts CPU time exactly, and not in ticks of 4 or 10 ms.
    ExactCpuTime,
    /// A program on `PATH`.
    Program(&'static str),
}

impl Need {
    /// What is missing. `None`: nothing.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let (is_there, what) = match self {
            Self::Network => (has_network(), "a network".to_owned()),
            Self::ExactCpuTime => (counts_cpu_time_exactly(), "exact CPU times".to_owned()),
            Self::Program(name) => (has_program(name), format!("the program {name}")),
        };
        (!is_there).then_some(what)
    }
}

/// Skips a test loudly if the machine lacks something.
#[macro_export]
macro_rules! needs {
    ($($need:expr),+) => {
        $(if let Some(what) = $need.missing() {
            $crate::skip(&what);
            return;
        })+
    };
}

/// Says that the running test, or a part of it, is skipped, because it needs `what`. If `PILOT_TEST_SKIPS` names a file, a line is
/// added to it: a test runner does not show what tests print that pass.
pub fn skip(what: &str) {
    let thread = std::thread::current();
    let line = format!(
        "*** SKIPPED: {} needs {what} ***",
        thread.name().unwrap_or("this test")
    );
    eprintln!("\n{line}\n");
    if let Some(file) = std::env::var_os("PILOT_TEST_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(file);
        // One write, so that lines of several processes do not mix.
        file.unwrap()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }
}

/// Whether there is a default route, of IPv4 or IPv6 (proc_pid_net(5)).
fn has_network() -> bool {
    // A kernel without one of the two has no such file.
    let lines = |file| std::fs::read_to_string(file).unwrap_or_default();
    let by_v4 = lines("/proc/net/route")
        .lines()
        .any(|line| line.split_whitespace().nth(1) == Some("00000000"));
    by_v4
        || lines("/proc/net/ipv6_route").lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.len() == 10
                && fields[1] == "00"
                && fields[0].bytes().all(|digit| digit == b'0')
                && fields[9] != "lo"
        })
}

/// User Mode Linux knows the time of a thread only to the tick.
fn counts_cpu_time_exactly() -> bool {
    let now = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
        Duration::from(time)
    };
    let began = now();
    let mut next = now();
    while next == began {
        next = now();
    }
    next - began < Duration::from_millis(1)
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_missing() {
        assert_eq!(Need::Program("sh").missing(), None);
        let missing = Need::Program("no-such-program").missing();
        assert_eq!(missing.as_deref(), Some("the program no-such-program"));
    }
}
