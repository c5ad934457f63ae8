//! What a build has on the disk, measured while it runs. Few file systems have project quotas, and a tmpfs would count as memory, so
//! the limit is watched: a build that is over it is ended, and everything it wrote is removed. A build is also ended if the file
//! system is nearly full, whoever filled it.
//!
//! A build can write more than its limit for the time between two looks.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Measures until it is dropped.
#[derive(Debug)]
pub(super) struct DiskWatch {
    /// The limit that was exceeded, bytes.
    exceeded: watch::Receiver<Option<u64>>,
    task: JoinHandle<()>,
}

impl DiskWatch {
    pub(super) fn start(folders: Vec<PathBuf>, bytes_max: u64, pid_namespace: Option<u64>) -> Self {
        let (tell, exceeded) = watch::channel(None);
        let task = tokio::spawn(async move {
            let mut turns = 0_u32;
            let free_before = folders.first().and_then(|folder| free_bytes(folder));
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                turns += 1;
                let free = folders.first().and_then(|folder| free_bytes(folder));
                let full = free.is_some_and(|free| free < FREE_BYTES_MIN);
                let fell = free_before.unwrap_or(0).saturating_sub(free.unwrap_or(0));
                if !full && fell < bytes_max / 2 && !turns.is_multiple_of(MEASURE_EVERY) {
                    continue;
                }
                let among = folders.clone();
                let measured =
                    tokio::task::spawn_blocking(move || used_bytes(&among, pid_namespace)).await;
                if full || measured.is_ok_and(|used| used.is_none_or(|used| used > bytes_max)) {
                    let _ = tell.send(Some(bytes_max));
                    return;
                }
            }
        });
        Self { exceeded, task }
    }

    /// Resolves with the limit when it is exceeded.
    pub(super) async fn exceeded(&self) -> u64 {
        let mut exceeded = self.exceeded.clone();
        let limit = exceeded.wait_for(Option::is_some).await.ok();
        match limit.and_then(|limit| *limit) {
            Some(bytes) => bytes,
            None => std::future::pending().await,
        }
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let fs = statvfs(folder).ok()?;
    Some(fs.blocks_available() * fs.fragment_size())
}

/// Bytes of the folders, and of removed files that processes hold open. `None`: too many files, or paths too long to look at.
fn used_bytes(folders: &[PathBuf], pid_namespace: Option<u64>) -> Option<u64> {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    let mut open = folders.to_vec();
    let mut files = 0;
    while let Some(folder) = open.pop() {
        if folder.as_os_str().len() > PATH_BYTES_MAX {
            return None;
        }
        // It may be gone by now.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            files += 1;
            if files > FILES_MAX {
                return None;
            }
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.nlink() <= 1 || seen.insert(metadata.ino()) {
                bytes += metadata.blocks() * BLOCK;
            }
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    for process in pid_namespace.map(processes_in).unwrap_or_default() {
        let open = fs::read_dir(format!("/proc/{process}/fd"));
        for file in open.into_iter().flatten().flatten() {
            let Ok(metadata) = fs::metadata(file.path()) else {
                continue;
            };
            let removed = metadata.is_file() && metadata.nlink() == 0;
            if removed && seen.insert(metadata.ino()) {
                bytes += metadata.blocks() * BLOCK;
            }
        }
    }
    Some(bytes)
}

/// The processes in a PID namespace, but not those in namespaces inside it, which a build cannot make.
fn processes_in(pid_namespace: u64) -> Vec<String> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|name| {
            let namespace = fs::metadata(format!("/proc/{name}/ns/pid"));
            namespace.is_ok_and(|namespace| namespace.ino() == pid_namespace)
        })
        .collect()
}

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks per measurement while little is written.
const MEASURE_EVERY: u32 = 20;
/// Less free space ends a build.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// Most files and folders of a build. The largest environments have some 100,000.
const FILES_MAX: usize = 500_000;
/// Longest path, below the kernel's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 3_000;
/// Unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_over_its_limit_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let watch = DiskWatch::start(vec![folder.path().to_owned()], 1 << 20, None);
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/file"), vec![1; 2 << 20]).unwrap();
        assert_eq!(watch.exceeded().await, 1 << 20);
    }

    #[test]
    fn a_removed_file_counts_while_it_is_open() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let file = fs::File::create(&path).unwrap();
        file.set_len(0).unwrap();
        std::io::Write::write_all(&mut &file, &vec![1; 8 << 20]).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(&path).unwrap();
        let own = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        assert!(used_bytes(&[folder.path().to_owned()], Some(own)).unwrap() >= 8 << 20);
        assert!(used_bytes(&[folder.path().to_owned()], None).unwrap() < 1 << 20);
    }

    #[test]
    fn a_hard_link_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        let alone = used_bytes(&[folder.path().to_owned()], None).unwrap();
        fs::hard_link(&file, folder.path().join("link")).unwrap();
        let both = used_bytes(&[folder.path().to_owned()], None).unwrap();
        assert_eq!(alone, both);
    }
}
