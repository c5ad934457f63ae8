//! System V IPC objects of the caller's IPC namespace (sysvipc(7)): lists and removes them.

use std::fs;
use std::io;

/// Removes every message queue, semaphore set and shared memory segment. Needs `CAP_SYS_ADMIN` over the IPC namespace, or
/// ownership of the objects.
///
/// # Errors
/// The first one that could not be removed.
pub fn remove_all() -> io::Result<()> {
    for (table, remove) in TABLES {
        let text = fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap_or_default();
        // A header, then one line each: key, id, …
        let ids = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
        for id in ids {
            remove(id)
                .map_err(|error| io::Error::new(error.kind(), format!("{table} {id}: {error}")))?;
        }
    }
    Ok(())
}

type Remove = fn(libc::c_int) -> io::Result<()>;

const TABLES: [(&str, Remove); 3] = [
    ("msg", remove_queue),
    ("sem", remove_semaphores),
    ("shm", remove_segment),
];

fn remove_queue(id: libc::c_int) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no buffer (msgctl(2)).
    done(unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) })
}

fn remove_semaphores(id: libc::c_int) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no fourth argument (semctl(2)).
    done(unsafe { libc::semctl(id, 0, libc::IPC_RMID) })
}

fn remove_segment(id: libc::c_int) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no buffer (shmctl(2)).
    done(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
