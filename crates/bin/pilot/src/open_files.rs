//! Whether functions can use up the open files of the machine: `fs.file-max`, which all programs share, and which root may exceed
//! (proc_sys_fs(5)). The daemon does not change it, because it is not its own. systemd removes this limit at the start of the machine.

use std::fs;

use crate::room;

/// Says that the machine has enough of them, or what is wrong. `total_memory_mb` is what functions may have, if the configuration says it.
pub(crate) fn check(total_memory_mb: Option<u64>) -> Result<String, String> {
    let file_max = fs::read_to_string("/proc/sys/fs/file-max")
        .ok()
        .and_then(|number| number.trim().parse().ok());
    let memory_bytes = total_memory_mb.map_or_else(room::machine_memory_bytes, |mb| mb << 20);
    are_enough(file_max, memory_bytes)
}

/// What to set if there are not enough.
pub(crate) const CHANGE: &str = "sysctl fs.file-max=9223372036854775807, as systemd does: their memory is charged to who opens them";

fn are_enough(file_max: Option<u64>, memory_bytes: u64) -> Result<String, String> {
    let Some(file_max) = file_max else {
        return Ok("the kernel names no limit".to_owned());
    };
    let by_functions = memory_bytes / BYTES_PER_OPEN_FILE;
    match file_max > by_functions {
        true => Ok("functions cannot use up fs.file-max".to_owned()),
        false => Err(format!(
            "functions could open all {file_max} files that this machine allows (fs.file-max), then only root can open more"
        )),
    }
}

/// `struct file` is charged to the control group of the process that opens it (`filp_cachep` in fs/file_table.c).
const BYTES_PER_OPEN_FILE: u64 = 192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_enough_if_functions_lack_the_memory_for_as_many() {
        let problem = are_enough(Some(400_000), 4 << 30).unwrap_err();
        assert!(problem.contains("400000"), "{problem}");
        assert!(are_enough(Some(i64::MAX.cast_unsigned()), 1 << 40).is_ok());
        assert!(are_enough(Some(400_000), 64 << 20).is_ok());
        assert!(are_enough(None, 1 << 30).is_ok());
    }
}
