//! What a build has on the disk, measured while it runs. Few file systems have project quotas, and a tmpfs would count as memory, so
//! the limit is watched: a build that is over it is ended, and everything it wrote is removed. A build is also ended if the file
//! system is nearly full, whoever filled it.
//!
//! A build can write more than its limit for the time between two looks. Removed files count as long as a process holds them.
//! Those that are only mapped, or only in a message on its way, take long to find. So they are looked for if the file system has
//! lost more space than what was found.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::living_thread;

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
                    tokio::task::spawn_blocking(move || used_bytes(&among, pid_namespace, fell))
                        .await;
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

/// Bytes of the folders, and of removed files that processes hold. `fell`: by how much the free space of the file system did,
/// whoever has written. `None`: too many files, or paths too long to look at.
fn used_bytes(folders: &[PathBuf], pid_namespace: Option<u64>, fell: u64) -> Option<u64> {
    let mut found = Found::default();
    let mut open = folders.to_vec();
    while let Some(folder) = open.pop() {
        if folder.as_os_str().len() > PATH_BYTES_MAX {
            return None;
        }
        // It may be gone by now.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            found.count()?;
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.nlink() <= 1 || found.inodes.insert(metadata.ino()) {
                found.bytes += metadata.blocks() * BLOCK;
            }
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    let processes = pid_namespace.map(processes_in).unwrap_or_default();
    for process in &processes {
        found.add_open(process)?;
    }
    if fell > found.bytes + UNSEEN_BYTES_MAX {
        for process in &processes {
            found.add_hidden(process)?;
        }
        if found.is_sending && fell > found.bytes {
            return Some(fell);
        }
    }
    Some(found.bytes)
}

#[derive(Debug, Default)]
struct Found {
    bytes: u64,
    /// Of files that must not count twice.
    inodes: HashSet<u64>,
    looked_at: usize,
    /// Of lists of mappings.
    read_bytes: u64,
    /// There are descriptors in messages that nobody has received.
    is_sending: bool,
}

impl Found {
    /// Counts one thing to look at. `None`: that is too much.
    fn count(&mut self) -> Option<()> {
        self.looked_at += 1;
        (self.looked_at <= FILES_MAX).then_some(())
    }

    /// Adds a file that was removed.
    fn add(&mut self, file: &Path) {
        let Ok(metadata) = fs::metadata(file) else {
            return;
        };
        let is_removed = metadata.is_file() && metadata.nlink() == 0;
        if is_removed && self.inodes.insert(metadata.ino()) {
            self.bytes += metadata.blocks() * BLOCK;
        }
    }

    /// Adds the removed files that a process, or a thread with descriptors of its own, has open.
    fn add_open(&mut self, process: &Path) -> Option<()> {
        for file in fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            self.count()?;
            self.add(&file.path());
        }
        Some(())
    }

    /// Adds the removed files that a process has only mapped, or that one of its threads has open. Notes whether descriptors are
    /// on their way.
    fn add_hidden(&mut self, process: &Path) -> Option<()> {
        self.add_mapped(process)?;
        for thread in fs::read_dir(process.join("task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            self.add_open(&thread.path())?;
            let files = fs::read_dir(thread.path().join("fdinfo"));
            for file in files.into_iter().flatten().flatten() {
                self.count()?;
                self.is_sending = self.is_sending || has_messages_with_descriptors(&file.path());
            }
        }
        Some(())
    }

    fn add_mapped(&mut self, process: &Path) -> Option<()> {
        let Ok(maps) = File::open(process.join("maps")) else {
            return Some(());
        };
        let left = MAPS_BYTES_MAX - self.read_bytes;
        for line in BufReader::new(maps.take(left)).split(b'\n') {
            let Ok(line) = line else { break };
            self.read_bytes += line.len() as u64 + 1;
            // proc_pid_maps(5).
            if line.ends_with(b" (deleted)")
                && let Some(name) = name_in_map_files(&line)
            {
                self.count()?;
                self.add(&process.join("map_files").join(name));
            }
        }
        (self.read_bytes < MAPS_BYTES_MAX).then_some(())
    }
}

/// What a mapping is called in `map_files`, from its line in `maps`, where addresses have zeros in front.
fn name_in_map_files(line: &[u8]) -> Option<String> {
    let range = line.split(|byte| *byte == b' ').next()?;
    let (begin, end) = str::from_utf8(range).ok()?.split_once('-')?;
    let address = |digits| u64::from_str_radix(digits, 16).ok();
    Some(format!("{:x}-{:x}", address(begin)?, address(end)?))
}

/// Whether a descriptor is a socket with messages that have descriptors (`unix_show_fdinfo` in net/unix/af_unix.c).
fn has_messages_with_descriptors(info: &Path) -> bool {
    let mut text = String::new();
    // There are few lines before it, and there may be very many others.
    let read =
        File::open(info).and_then(|file| file.take(INFO_BYTES_MAX).read_to_string(&mut text));
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    read.is_ok() && count.is_some_and(|count| count.trim() != "0")
}

/// The folders of the processes in a PID namespace, but not of those in namespaces inside it, which a build cannot make.
fn processes_in(pid_namespace: u64) -> Vec<PathBuf> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(living_thread::folder)
        .filter(|process| {
            let namespace = fs::metadata(process.join("ns/pid"));
            namespace.is_ok_and(|namespace| namespace.ino() == pid_namespace)
        })
        .collect()
}

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks per measurement while little is written.
const MEASURE_EVERY: u32 = 20;
/// Less free space ends a build.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// Most files, folders and descriptors of a build. The largest environments have some 100,000.
const FILES_MAX: usize = 500_000;
/// By how much free space may fall more than what was found, until it is looked for further: others write, too.
const UNSEEN_BYTES_MAX: u64 = 16 << 20;
/// Of the lists of all mappings: some 600,000.
const MAPS_BYTES_MAX: u64 = 64 << 20;
/// Of what the kernel says of a descriptor.
const INFO_BYTES_MAX: u64 = 4096;
/// Longest path, below the kernel's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 3_000;
/// Unit of `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn a_folder_over_its_limit_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let watch = DiskWatch::start(vec![folder.path().to_owned()], 1 << 20, None);
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/file"), vec![1; 2 << 20]).unwrap();
        assert_eq!(watch.exceeded().await, 1 << 20);
    }

    /// A folder on a disk, and the PID namespace of this process.
    fn on_disk() -> (tempfile::TempDir, u64) {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        (folder, fs::metadata("/proc/self/ns/pid").unwrap().ino())
    }

    fn removed_file(folder: &Path, bytes: usize) -> File {
        let path = folder.join("file");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::io::Write::write_all(&mut &file, &vec![1; bytes]).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(&path).unwrap();
        file
    }

    #[test]
    fn a_removed_file_counts_while_it_is_open() {
        let (folder, own) = on_disk();
        let _file = removed_file(folder.path(), 8 << 20);
        let folders = [folder.path().to_owned()];
        assert!(used_bytes(&folders, Some(own), 0).unwrap() >= 8 << 20);
        assert!(used_bytes(&folders, None, 0).unwrap() < 1 << 20);
    }

    #[test]
    fn a_removed_file_that_is_only_mapped_is_found() {
        const BYTES: usize = 8 << 20;
        let (folder, _) = on_disk();
        let file = removed_file(folder.path(), BYTES);
        let program = "import ctypes, os, signal\n\
            map = ctypes.CDLL(None).mmap; map.restype = ctypes.c_void_p\n\
            map.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]\n\
            map(None, 4096, 1, 2, 0, 0); os.close(0); print(flush=True); signal.pause()";
        let mut child = std::process::Command::new("python3")
            .args(["-I", "-c", program])
            .stdin(file)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let process = living_thread::folder(child.id()).unwrap();
        let mut found = Found::default();
        found.add_open(&process).unwrap();
        let before = found.bytes;
        found.add_hidden(&process).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((before, found.is_sending), (0, false));
        assert!(found.bytes >= BYTES as u64, "{}", found.bytes);
    }

    #[test]
    fn what_is_only_in_a_message_counts_as_what_space_is_missing() {
        let (folder, own) = on_disk();
        let folders = [folder.path().to_owned()];
        let fell = 1 << 40;
        let (_receiver, sender) = pilot_sys::seqpacket::pair().unwrap();
        let file = removed_file(folder.path(), 1 << 20);
        pilot_sys::seqpacket::send(sender.as_fd(), b"x", &[file.as_fd()]).unwrap();
        drop(file);
        assert_eq!(used_bytes(&folders, Some(own), fell), Some(fell));
    }

    #[test]
    fn a_mapping_is_named_without_zeros_in_front() {
        let line = b"00400000-7f0000001000 rw-p 00000000 fe:00 7 /a b (deleted)";
        let name = name_in_map_files(line);
        assert_eq!(name.as_deref(), Some("400000-7f0000001000"));
        assert_eq!(name_in_map_files(b"x-y z"), None);
    }

    #[test]
    fn a_hard_link_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        let alone = used_bytes(&[folder.path().to_owned()], None, 0).unwrap();
        fs::hard_link(&file, folder.path().join("link")).unwrap();
        let both = used_bytes(&[folder.path().to_owned()], None, 0).unwrap();
        assert_eq!(alone, both);
    }
}
