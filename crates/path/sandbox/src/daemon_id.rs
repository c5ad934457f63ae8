//! What a daemon's control groups, firewall table and network devices are named by. A process id would not do: daemons in different
//! PID namespaces can have the same one, and still share a network namespace or the control groups.

use std::fs::File;
use std::io::{self, Read};

/// The id of one daemon: its process id, for people, and a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DaemonId {
    pid: u32,
    random: u32,
}

impl DaemonId {
    /// A new one, for this process.
    ///
    /// # Errors
    /// There is no `/dev/urandom`.
    pub(crate) fn new() -> io::Result<Self> {
        let mut bytes = [0; 4];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self::of(std::process::id(), u32::from_ne_bytes(bytes)))
    }

    pub(crate) fn of(pid: u32, random: u32) -> Self {
        Self {
            pid,
            random: random % NUMBERS,
        }
    }

    /// The random number, below 36^5.
    pub(crate) fn random(self) -> u32 {
        self.random
    }

    /// The random number, always five letters and digits, because the name of a network device has few.
    pub(crate) fn short(self) -> String {
        format!("{:0>5}", base36(self.random))
    }

    /// `PID-RANDOM`, with another separator.
    pub(crate) fn long(self, separator: char) -> String {
        format!("{}{separator}{}", self.pid, self.short())
    }
}

pub(crate) fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit(number % 36, 36));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

const NUMBERS: u32 = 36 * 36 * 36 * 36 * 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_36_digits() {
        assert_eq!(base36(0), "0");
        assert_eq!(base36(35), "z");
        assert_eq!(base36(36), "10");
        assert_eq!(base36(4_194_303), "2hwcf");
    }

    #[test]
    fn daemons_with_the_same_process_id_have_different_names() {
        let (one, two) = (DaemonId::of(7, 1), DaemonId::of(7, NUMBERS + 2));
        assert_eq!(one.long('-'), "7-00001");
        assert_eq!(two.long('_'), "7_00002");
        assert_eq!(DaemonId::of(7, u32::MAX).short().len(), 5);
    }
}
