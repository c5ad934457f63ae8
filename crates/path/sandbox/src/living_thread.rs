//! Processes whose first thread has ended while others run. The kernel keeps that thread as a zombie, and its descriptors,
//! namespaces and memory look empty in `/proc` (proc_pid_task(5)), although the process has all of them. Whoever looks for what a
//! process holds asks here for its folder.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder in `/proc` of a thread of this process that has not ended: the first one, as long as it runs. `None`: the process
/// has ended.
pub(crate) fn folder(pid: impl Display) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if is_running(&process) {
        return Some(process);
    }
    // What is below `task` has less in it.
    let threads = fs::read_dir(process.join("task")).ok()?.flatten();
    threads
        .map(|thread| Path::new("/proc").join(thread.file_name()))
        .find(|thread| is_running(thread))
}

fn is_running(thread: &Path) -> bool {
    let Ok(stat) = fs::read(thread.join("stat")) else {
        return false;
    };
    // proc_pid_stat(5). The name of the program, which comes first, may have any byte.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|end| stat.get(end + 2));
    state.is_some_and(|state| !matches!(state, b'Z' | b'X' | b'x'))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process whose first thread has ended. It runs until its input is closed, and holds `file` open and locked.
    pub(crate) fn without_first_thread(file: &Path) -> (Child, u32) {
        let program = "import ctypes, fcntl, os, platform, sys, threading\n\
            file = open(sys.argv[1], 'w')\n\
            for at in range(20): fcntl.lockf(file, fcntl.LOCK_EX, 1, at * 2)\n\
            first = threading.main_thread().native_id\n\
            def run():\n    \
                while open(f'/proc/self/task/{first}/stat').read().rsplit(')')[1][1] != 'Z': pass\n    \
                os.write(1, b'alone\\n'); os.read(0, 1); os._exit(0)\n\
            threading.Thread(target=run).start()\n\
            ctypes.CDLL(None).syscall({'x86_64': 60}.get(platform.machine(), 93), 0)\n";
        let mut child = Command::new("python3")
            .args(["-I", "-c", program])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "alone\n");
        let pid = child.id();
        (child, pid)
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_has_a_folder_with_its_descriptors() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (mut child, pid) = without_first_thread(file.path());
        let descriptors = |folder: &Path| {
            let entries = fs::read_dir(folder.join("fd")).into_iter().flatten();
            let targets = entries
                .flatten()
                .filter_map(|entry| fs::read_link(entry.path()).ok());
            targets.filter(|target| target == file.path()).count()
        };
        assert_eq!(descriptors(&PathBuf::from(format!("/proc/{pid}"))), 0);
        assert_eq!(descriptors(&folder(pid).unwrap()), 1);
        assert!(crate::memory::pss_bytes(pid) > 1 << 20);
        drop(child.stdin.take().unwrap().write_all(b"x"));
        child.wait().unwrap();
        assert_eq!(folder(pid), None);
        let own = std::process::id();
        assert_eq!(folder(own).unwrap(), PathBuf::from(format!("/proc/{own}")));
    }
}
