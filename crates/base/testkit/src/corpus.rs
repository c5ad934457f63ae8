//! Runs a fuzz target over its committed corpus, and over variants of it, as an ordinary test. `make fuzz` runs the same targets with
//! libFuzzer, which finds inputs by coverage.

use std::path::Path;

use crate::Random;

/// Calls `target` with each file of `fuzz/corpus/NAME`, and with variants of each. `PILOT_FUZZ_TURNS` is their number. The variants are
/// the same in every run.
///
/// # Panics
/// The corpus has no file, or the target panics. The input that it panicked at is written to `target/fuzz/` and named.
pub fn corpus(name: &str, target: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = root.join("fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let inputs: Vec<Vec<u8>> = files
        .iter()
        .map(|file| std::fs::read(file).expect("the file can be read"))
        .collect();
    let turns = std::env::var("PILOT_FUZZ_TURNS");
    let turns = turns.map_or(TURNS, |text| text.parse().expect("a number"));
    let mut random = Random::new(1);
    for (file, input) in files.iter().zip(&inputs) {
        guarded(&root, name, target, input, &file.display().to_string());
        for turn in 0..turns {
            let other = &inputs[random.below(inputs.len())];
            let variant = random.variant(input, other);
            let what = format!("variant {turn} of {}", file.display());
            guarded(&root, name, target, &variant, &what);
        }
    }
}

/// Calls the target. If it panics, its input is kept.
fn guarded(root: &Path, name: &str, target: fn(&[u8]), input: &[u8], what: &str) {
    let result = std::panic::catch_unwind(|| target(input));
    let Err(panic) = result else { return };
    let folder = root.join("target/fuzz");
    let kept = folder.join(format!("{name}.panicked"));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&kept, input));
    eprintln!(
        "fuzz target {name} panicked at {what}: {} ({written:?})",
        kept.display()
    );
    std::panic::resume_unwind(panic);
}

impl Random {
    /// Changes, removes, repeats and mixes bytes, up to eight times.
    fn variant(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(8) {
            let at = self.below(bytes.len() + 1);
            let end = at + self.below(bytes.len() - at + 1);
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = EDGES[self.below(EDGES.len())],
                2 => bytes.insert(at, EDGES[self.below(EDGES.len())]),
                3 => drop(bytes.drain(at..end.min(at + 16))),
                4 => {
                    let part = bytes[at..end.min(at + 64)].to_vec();
                    bytes.splice(at..at, part);
                }
                5 => {
                    let from = self.below(other.len() + 1);
                    let until = from + self.below((other.len() - from).min(64) + 1);
                    bytes.splice(at..at, other[from..until].iter().copied());
                }
                _ => bytes.truncate(at),
            }
        }
        bytes
    }
}

const TURNS: usize = 200;
/// Bytes that mean something to many formats.
const EDGES: &[u8] = b"\0\x01\x7f\x80\xff \n\r\t\"\\/{}[]():;,.=&%#-+0129aAzZ";
