//! The machine's memory use, as the kernel reports it (HotC, section IV-B: "monitoring used_mem and used_swap").

use std::fs;

/// The machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory that is not available to new programs, plus swap in use, bytes. Swap counts because pages were swapped out for lack
    /// of memory.
    pub used_bytes: u64,
    /// Memory, without swap, bytes. So `used_bytes` can be more.
    pub total_bytes: u64,
}

impl MachineMemory {
    /// The excess over this share, bytes.
    pub(super) fn over(&self, percent: u8) -> u64 {
        let limit = u128::from(self.total_bytes) * u128::from(percent) / 100;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        self.used_bytes.saturating_sub(limit)
    }
}

/// Reads `/proc/meminfo` (proc_meminfo(5)). `None`: it cannot be read or parsed.
#[must_use]
pub fn machine_memory() -> Option<MachineMemory> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(text: &str) -> Option<MachineMemory> {
    let bytes = |name: &str| {
        let mut lines = text.lines();
        let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let total_bytes = bytes("MemTotal")?;
    let in_memory = total_bytes.saturating_sub(bytes("MemAvailable")?);
    // A kernel without swap has no such lines.
    let swap = bytes("SwapTotal").unwrap_or(0);
    let in_swap = swap.saturating_sub(bytes("SwapFree").unwrap_or(swap));
    Some(MachineMemory {
        used_bytes: in_memory.saturating_add(in_swap),
        total_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n\
                        SwapCached:        0 kB\nSwapTotal:       500 kB\nSwapFree:        300 kB\n";

    #[test]
    fn use_is_what_is_not_available_and_what_is_swapped_out() {
        let memory = parse(TEXT).unwrap();
        assert_eq!(memory.total_bytes, 1000 * 1024);
        assert_eq!(memory.used_bytes, (600 + 200) * 1024);
        assert_eq!(memory.over(80), 0);
        assert_eq!(memory.over(70), 100 * 1024);
    }

    #[test]
    fn a_machine_without_swap_has_none_in_use() {
        let text = "MemTotal: 1000 kB\nMemAvailable: 1000 kB\n";
        assert_eq!(parse(text).unwrap().used_bytes, 0);
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        for text in [
            "",
            "MemTotal: 1000 kB\n",
            "MemTotal: x kB\nMemAvailable: 1 kB\n",
        ] {
            assert_eq!(parse(text), None);
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = machine_memory().unwrap();
        assert!(memory.total_bytes > 0 && memory.used_bytes > 0);
    }
}
