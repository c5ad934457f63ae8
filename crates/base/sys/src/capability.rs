//! Capabilities (capabilities(7)): drops all but a few, and keeps those across `execve` as an unprivileged user.

use std::io;

/// One capability, by its number in `linux/capability.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// Arbitrary group ids.
    Setgid = 6,
    /// Arbitrary user ids.
    Setuid = 7,
    /// Removing from the bounding set.
    Setpcap = 8,
    /// Needed for `setns` into a mount namespace.
    SysChroot = 18,
    /// Needed for `setns`.
    SysAdmin = 21,
}

/// Highest capability number that is tried; the kernel rejects those that it does not know.
const LAST_TRIED: u32 = 63;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two words of 32 capabilities.
const VERSION_3: u32 = 0x2008_0522;

/// Removes everything but `kept` from this thread's bounding set. Call it before the change of user, which removes the
/// effective capability that this needs.
///
/// # Errors
/// The kernel's.
pub fn bound_to(kept: &[Capability]) -> io::Result<()> {
    for number in 0..=LAST_TRIED {
        if kept.iter().any(|capability| *capability as u32 == number) {
            continue;
        }
        match prctl(libc::PR_CAPBSET_DROP, number, 0) {
            // The kernel does not know this number: there are no more.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            done => done?,
        }
    }
    Ok(())
}

/// Keeps exactly `kept` in this thread's permitted, effective, inheritable and ambient sets, so that they survive an `execve`
/// by a user other than root. Call it after the change of user.
///
/// # Errors
/// The kernel's, when the thread does not hold one of `kept`.
pub fn keep_only(kept: &[Capability]) -> io::Result<()> {
    prctl(
        libc::PR_CAP_AMBIENT,
        libc::PR_CAP_AMBIENT_CLEAR_ALL as u32,
        0,
    )?;
    let mut words = [Data::default(); 2];
    for capability in kept {
        let number = *capability as u32;
        let word = &mut words[(number / 32) as usize];
        let bit = 1 << (number % 32);
        word.effective |= bit;
        word.permitted |= bit;
        word.inheritable |= bit;
    }
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    // SAFETY: capset(2) reads a header and, for version 3, two data words; both live across the call.
    let failed = unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    for capability in kept {
        prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE as u32,
            *capability as u32,
        )?;
    }
    Ok(())
}

/// Keeps the permitted capabilities across the next change of user id (`PR_SET_KEEPCAPS`).
///
/// # Errors
/// The kernel's.
pub fn keep_across_setuid() -> io::Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, 1, 0)
}

/// Keeps all capabilities whatever the thread's user becomes, until it executes a program without them
/// (`SECBIT_NO_SETUID_FIXUP`).
///
/// # Errors
/// The kernel's: it needs CAP_SETPCAP.
pub fn keep_for_every_user() -> io::Result<()> {
    const SECBIT_NO_SETUID_FIXUP: u32 = 1 << 2;
    prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0)
}

fn prctl(option: i32, first: u32, second: u32) -> io::Result<()> {
    let unused: libc::c_ulong = 0;
    // SAFETY: the options used in this module take integers and touch no memory of this process.
    let failed = unsafe {
        libc::prctl(
            option,
            libc::c_ulong::from(first),
            libc::c_ulong::from(second),
            unused,
            unused,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
