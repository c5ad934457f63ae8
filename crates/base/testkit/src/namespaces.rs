//! The machine's network namespaces, so that a test can check that none is left. Namespaces have no names and no list
//! (network_namespaces(7)): one exists as long as a process is in it, a descriptor refers to it, or it is mounted somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Inode numbers of all network namespaces that a process is in, has open, or that are mounted in this process's mount
/// namespace. Seeing other users' processes needs root. A number is reused once its namespace is gone, so compare only how many
/// there are.
#[must_use]
pub fn network() -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for process in entries(Path::new("/proc")) {
        let folder = Path::new("/proc").join(&process);
        if process.bytes().all(|byte| byte.is_ascii_digit()) {
            found.extend(linked(&folder.join("ns/net")));
            let open = folder.join("fd");
            found.extend(entries(&open).filter_map(|fd| linked(&open.join(fd))));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The fourth field is the root of the mount within its file system (proc_pid_mountinfo(5)).
    found.extend(
        mounts
            .lines()
            .filter_map(|line| inode(line.split(' ').nth(3)?)),
    );
    found
}

/// Names in a folder. The folder of a process that ends meanwhile is empty.
fn entries(folder: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

fn linked(path: &Path) -> Option<u64> {
    inode(fs::read_link(path).ok()?.to_str()?)
}

/// `net:[4026531840]`.
fn inode(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn the_namespace_one_is_in_and_has_open_is_one() {
        let own = linked(Path::new("/proc/self/ns/net")).unwrap();
        let _open = File::open("/proc/self/ns/net").unwrap();
        assert!(network().contains(&own));
        assert_eq!(inode("mnt:[1]"), None);
        assert_eq!(inode("net:[4026531840]"), Some(4_026_531_840));
    }
}
