//! The heap of this process (malloc_trim(3)).

use std::{fs, io};

/// Gives the kernel the pages of the heap that nothing uses any more. glibc keeps most of them: memory that was freed in the middle of
/// its heaps stays with the process for ever. musl needs no such call.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no preconditions, and takes the locks of the heap itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The memory of this process that belongs to no file, bytes (proc_pid_statm(5)).
///
/// # Errors
/// `/proc` cannot be read.
pub fn resident() -> io::Result<usize> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let mut fields = statm
        .split(' ')
        .skip(1)
        .map(|field| field.parse::<usize>().ok());
    let (Some(Some(all)), Some(Some(of_files))) = (fields.next(), fields.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
    let page = page.and_then(|page| usize::try_from(page).ok());
    Ok(all.saturating_sub(of_files) * page.unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_was_freed_between_other_things_goes_back() {
        const PIECE: usize = 16 << 10;
        let before = resident().unwrap();
        let mut pieces: Vec<Vec<u8>> = (0..8192).map(|_| vec![1; PIECE]).collect();
        assert!(resident().unwrap() > before + (100 << 20));
        // One of 64 stays, so that no end of the heap becomes free.
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 64 == 0
        });
        give_back();
        let after = resident().unwrap();
        assert!(after < before + (16 << 20), "{before} {after}");
        drop(pieces);
    }
}
