//! The code of the hostile functions: the files in `hostile/`.

use pilot_harness::{ArchiveEntry, Daemon, archive};
use serde_json::Value;

const APP: &str = include_str!("hostile/app.py");

macro_rules! attempts {
    ($($subject:literal),+) => {
        [$((
            concat!("attempts/", $subject, ".py"),
            include_str!(concat!("hostile/attempts/", $subject, ".py")),
        )),+]
    };
}

/// What the functions try, by subject.
const ATTEMPTS: [(&str, &str); 9] = attempts!(
    "__init__",
    "calls",
    "descriptors",
    "files",
    "kernel",
    "limits",
    "network",
    "privileges",
    "processes"
);

/// The archive of a hostile function, with more code behind its own.
pub(crate) fn code_with(more: &str) -> Vec<u8> {
    let app = format!("{APP}\n{more}");
    let attempts = ATTEMPTS
        .iter()
        .map(|(name, code)| ArchiveEntry::text(name, code));
    let entries: Vec<_> = [ArchiveEntry::text("app.py", &app)]
        .into_iter()
        .chain(attempts)
        .collect();
    archive(&entries)
}

/// Deploys a hostile function with these keys.
///
/// # Panics
/// The deployment fails.
pub(crate) fn deploy(daemon: &Daemon, name: &str, keys: &Value) {
    deploy_with(daemon, name, keys, "");
}

/// The same, with more code.
pub(crate) fn deploy_with(daemon: &Daemon, name: &str, keys: &Value, more: &str) {
    daemon.upload_archive(name, keys, &code_with(more));
}
