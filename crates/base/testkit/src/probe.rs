//! What this machine allows a test to do. A test that cannot run reports why.

/// Whether the test runs as root.
#[must_use]
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        // Real, effective, saved, file system.
        uid.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
    })
}

/// The interpreter of this name on `PATH`.
#[must_use]
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Reports that a test is skipped here, and why.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
}
