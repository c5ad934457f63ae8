//! Pages of the program's own file in this process (madvise(2), proc_pid_smaps(5)).

use std::ops::Range;
use std::{fs, io, ptr};

/// Unmaps the program's code and constants. What is used again is mapped again at that moment, from the page cache: a minor fault, which
/// does not read the disk. The kernel maps up to some hundred kilobytes around each address that is touched, so a process that has just
/// started has most of its program mapped, and will use little of it. Returns how many bytes were mapped.
///
/// # Errors
/// The kernel's, of `/proc` or madvise(2).
pub fn unmap_program() -> io::Result<u64> {
    let program = fs::read_link("/proc/self/exe")?;
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let program = program.to_str().ok_or(io::ErrorKind::InvalidData)?;
    let mut bytes = 0;
    for mapping in unchanged(&smaps, program) {
        let len = mapping.range.len();
        let start = ptr::without_provenance_mut::<libc::c_void>(mapping.range.start);
        // SAFETY: the range is a private mapping of a file that cannot be written to and in which no page differs from the file's, so
        // a page that is mapped again has the content that it had.
        if unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
        bytes += mapping.resident;
    }
    Ok(bytes)
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    /// Bytes.
    resident: u64,
}

/// The private mappings of a file that cannot be written to, and in which no page was relocated or changed otherwise.
fn unchanged(smaps: &str, file: &str) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut current: Option<Mapping> = None;
    for line in smaps.lines() {
        if let Some(range) = head(line) {
            let is_meant = line.contains(" r-xp ") || line.contains(" r--p ");
            let path = line.find('/').and_then(|at| line.get(at..));
            current = (is_meant && path == Some(file)).then_some(Mapping { range, resident: 0 });
        } else if let Some(kilobytes) = value(line, "Rss:") {
            if let Some(mapping) = &mut current {
                mapping.resident = kilobytes << 10;
            }
        } else if let Some(kilobytes) = value(line, "Anonymous:") {
            mappings.extend(current.take().filter(|_| kilobytes == 0));
        }
    }
    mappings
}

/// The range of a line such as `55d268dc3000-55d269b90000 r--p 00000000 fe:00 9994252   /usr/bin/pilot`.
fn head(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

/// The value of a line such as `Rss:   1028 kB`.
fn value(line: &str, key: &str) -> Option<u64> {
    line.strip_prefix(key)?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_file_still_has_is_unmapped() {
        let smaps = "\
1000-5000 r--p 00000000 fe:00 7   /usr/bin/pilot
Rss:                  12 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
5000-9000 r-xp 00004000 fe:00 7   /usr/bin/pilot
Rss:                  16 kB
Anonymous:             4 kB
9000-a000 r--p 00008000 fe:00 7   /usr/bin/pilot
Rss:                   4 kB
Anonymous:             4 kB
a000-b000 rw-p 00009000 fe:00 7   /usr/bin/pilot
Rss:                   4 kB
Anonymous:             0 kB
b000-c000 r-xp 00000000 fe:00 8   /usr/lib/libc.so.6
Rss:                   4 kB
Anonymous:             0 kB
c000-d000 rw-p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
";
        let found = unchanged(smaps, "/usr/bin/pilot");
        let expected = Mapping {
            range: 0x1000..0x5000,
            resident: 12 << 10,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_program_goes_on_after_its_code_is_unmapped() {
        assert!(unmap_program().unwrap() > 0);
        let again = unmap_program().unwrap();
        let numbers: Vec<u64> = (0..1000).rev().collect();
        assert_eq!(numbers.iter().sum::<u64>(), 499_500);
        assert!(again < fs::metadata("/proc/self/exe").unwrap().len());
    }
}
