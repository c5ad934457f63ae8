//! The content of code or of a layer: its files, with their hash and sizes. The command line computes it before it sends anything,
//! and the daemon while it unpacks: both get the same hash, and both check the same limit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pilot_model::size::Size;
use sha2::{Digest, Sha256};

use crate::hash::Fields;

/// The files of one folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    files: BTreeMap<PathBuf, File>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    form: Form,
    digest: [u8; 32],
    bytes: u64,
}

/// What a path of the content is. Part of its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    File = 0,
    Program = 1,
    /// A symbolic link. Its content is its target.
    Link = 2,
}

/// Computes a file's part of a content while the file is copied.
#[derive(Debug, Default)]
pub struct FileDigest {
    digest: Sha256,
    bytes: u64,
}

/// The part of a version that has this name and these files: for messages about sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// `code`, or `layer 'ffmpeg'`.
    pub name: String,
    /// Its unpacked size.
    pub bytes: u64,
    /// Its largest files, largest first.
    pub largest: Vec<(PathBuf, u64)>,
}

/// Whether a path counts. Bytecode does not, because it is compiled on the daemon's machine for the function's interpreter.
#[must_use]
pub fn counts(path: &Path) -> bool {
    !path.iter().any(|part| part == "__pycache__")
}

/// Whether the path is in the folder of a package in pnpm's store, or is that folder. Its dependencies are links beside it, and
/// links of code are not kept: it would not find them. With `node-linker=hoisted`, the store has only a lockfile.
#[must_use]
pub fn is_in_pnpm_store(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().collect();
    let mut windows = parts.windows(4);
    windows.any(|parts| parts[0] == NODE_MODULES && parts[1] == ".pnpm" && parts[3] == NODE_MODULES)
}

/// What is wrong with such a path, and what to change.
pub const PNPM_STORE: &str = "pnpm's links are not kept; use `node-linker=hoisted` in .npmrc and install again, or do not upload node_modules";

const NODE_MODULES: &str = "node_modules";

impl Content {
    /// Adds a file. `path` is relative to the folder.
    pub fn add(&mut self, path: PathBuf, executable: bool, digest: FileDigest) {
        let form = if executable {
            Form::Program
        } else {
            Form::File
        };
        self.insert(path, form, digest);
    }

    /// Adds a symbolic link.
    pub fn add_link(&mut self, path: PathBuf, target: &Path) {
        let mut digest = FileDigest::default();
        digest.update(target.as_os_str().as_encoded_bytes());
        self.insert(path, Form::Link, digest);
    }

    fn insert(&mut self, path: PathBuf, form: Form, digest: FileDigest) {
        let file = File {
            form,
            bytes: digest.bytes,
            digest: digest.digest.finalize().into(),
        };
        self.files.insert(path, file);
    }

    /// Whether it has a file or a link with this path.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// Hash over every file's path, executable bit and bytes, and every link's path and target; independent of order, times and
    /// owners.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hash = Fields::default();
        for (path, file) in &self.files {
            hash.add(path.as_os_str().as_encoded_bytes())
                .add([file.form as u8])
                .add(file.digest);
        }
        hash.hex()
    }

    /// Number of files and links.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Their size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Its sizes, for messages.
    #[must_use]
    pub fn part(&self, name: String) -> Part {
        let files = self.files.iter();
        Part::new(name, files.map(|(path, file)| (path.clone(), file.bytes)))
    }
}

impl FileDigest {
    /// The next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Reads a file to its end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn of(mut content: impl Read) -> io::Result<Self> {
        let mut digest = Self::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match content.read(&mut buffer)? {
                0 => return Ok(digest),
                count => digest.update(&buffer[..count]),
            }
        }
    }
}

impl Part {
    /// From the sizes of its files.
    pub fn new(name: String, files: impl Iterator<Item = (PathBuf, u64)>) -> Self {
        let mut bytes = 0;
        let mut largest = Vec::new();
        for (path, size) in files {
            bytes += size;
            largest.push((path, size));
            if largest.len() > 2 * LARGEST_MAX {
                keep_largest(&mut largest);
            }
        }
        keep_largest(&mut largest);
        Self {
            name,
            bytes,
            largest,
        }
    }
}

/// Checks the unpacked size of a function's code and layers.
///
/// # Errors
/// A message with the function, the sizes, the limit and the largest files.
pub fn check_size(function: &str, parts: &[Part], bytes_max: u64) -> Result<(), String> {
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    if bytes <= bytes_max {
        return Ok(());
    }
    let sizes: Vec<String> = parts
        .iter()
        .map(|part| format!("{} {}", part.name, Size(part.bytes)))
        .collect();
    let together = if parts.len() > 1 {
        format!(" ({})", sizes.join(", "))
    } else {
        String::new()
    };
    let mut message = format!(
        "function '{function}' is too large: {}{together}, more than the limit of {}; its largest files are",
        Size(bytes),
        Size(bytes_max),
    );
    message.push_str(&largest_of(parts));
    message.push_str("; leave out what the function does not need");
    Err(message)
}

/// ` code: data.bin (80 MB), …`.
pub(crate) fn largest_of(parts: &[Part]) -> String {
    let files = parts.iter().flat_map(|part| {
        let name = part.name.as_str();
        part.largest
            .iter()
            .map(move |(path, bytes)| (name, path.as_path(), *bytes))
    });
    let mut files: Vec<(&str, &Path, u64)> = files.collect();
    files.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let mut text = String::new();
    for (at, (part, path, bytes)) in files.into_iter().take(LARGEST_MAX).enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let shown = path.to_string_lossy();
        let path: String = shown.chars().take(PATH_CHARS_MAX).collect();
        let _ = match part {
            "code" => write!(text, "{comma} {} ({})", path.escape_debug(), Size(bytes)),
            part => write!(
                text,
                "{comma} {} of {part} ({})",
                path.escape_debug(),
                Size(bytes)
            ),
        };
    }
    text
}

fn keep_largest(files: &mut Vec<(PathBuf, u64)>) {
    files.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    files.truncate(LARGEST_MAX);
}

/// How many of the largest files a message names.
const LARGEST_MAX: usize = 3;
const PATH_CHARS_MAX: usize = 100;
const BUFFER_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, files: &[(&str, u64)]) -> Part {
        let files = files.iter();
        Part::new(
            name.to_owned(),
            files.map(|(path, bytes)| (PathBuf::from(path), *bytes << 20)),
        )
    }

    #[test]
    fn too_much_is_said_with_function_sizes_limit_and_largest_files() {
        let code = part(
            "code",
            &[("app.py", 1), ("model.bin", 120), ("a", 2), ("b", 3)],
        );
        let layer = part("layer 'ffmpeg'", &[("bin/ffmpeg", 130), ("lib/x.so", 10)]);
        let message = check_size("video", &[code.clone(), layer.clone()], 250 << 20).unwrap_err();
        assert_eq!(
            message,
            "function 'video' is too large: 266 MB (code 126 MB, layer 'ffmpeg' 140 MB), more than the limit of 250 MB; its \
             largest files are bin/ffmpeg of layer 'ffmpeg' (130 MB), model.bin (120 MB), lib/x.so of layer 'ffmpeg' (10 MB); \
             leave out what the function does not need"
        );
        assert_eq!(check_size("video", &[code, layer], 266 << 20), Ok(()));
    }

    #[test]
    fn the_hash_does_not_depend_on_the_order() {
        let of = |files: &[(&str, &[u8])]| {
            let mut content = Content::default();
            for (path, bytes) in files {
                let digest = FileDigest::of(*bytes).unwrap();
                content.add(PathBuf::from(path), false, digest);
            }
            content.hash()
        };
        let (a, b): ((_, &[u8]), (_, &[u8])) = (("a", b"1"), ("b", b"2"));
        assert_eq!(of(&[a, b]), of(&[b, a]));
        assert_ne!(of(&[a, b]), of(&[("a", b"2"), ("b", b"1")]));
    }

    #[test]
    fn a_link_is_another_content_than_a_file_with_its_target() {
        let (mut link, mut file) = (Content::default(), Content::default());
        link.add_link(PathBuf::from("a"), Path::new("b"));
        file.add(
            PathBuf::from("a"),
            false,
            FileDigest::of(&b"b"[..]).unwrap(),
        );
        assert_ne!(link.hash(), file.hash());
        assert_eq!((link.files(), link.bytes()), (1, 1));
        let mut other = Content::default();
        other.add_link(PathBuf::from("a"), Path::new("c"));
        assert_ne!(link.hash(), other.hash());
    }
}
