//! Fuzz targets: what a deployer uploads, and the registry's file. Built for tests and with `--cfg fuzzing` only.
//!
//! The targets write to a folder below `PILOT_FUZZ_DIR`, else `/dev/shm`, else the system's for temporary files.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use pilot_model::manifest::Manifest;
use tempfile::TempDir;

use crate::archive::{ArchiveLimits, Links, unpack};
use crate::environment;
use crate::registry::Registry;

const LIMITS: ArchiveLimits = ArchiveLimits {
    compressed_bytes_max: 1 << 20,
    unpacked_bytes_max: 64 << 10,
    entries_max: 32,
};

fn folder() -> TempDir {
    let parent = std::env::var_os("PILOT_FUZZ_DIR").map(PathBuf::from);
    let shared = Path::new("/dev/shm");
    let parent = parent.or_else(|| shared.is_dir().then(|| shared.to_owned()));
    tempfile::Builder::new()
        .prefix("pilot-fuzz-")
        .tempdir_in(parent.unwrap_or_else(std::env::temp_dir))
        .expect("a folder for temporary files")
}

/// An archive, as tar (it is compressed here) and as it is, of code and of a layer. Whatever is in it, nothing but files and folders
/// appears, and in a layer links, only in the folder, and no more than the limits allow.
///
/// # Panics
/// Something else appears.
pub fn archives(data: &[u8]) {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(data).expect("memory can be written");
    let packed = packed.finish().expect("memory can be written");
    for (archive, links) in [
        (data, Links::Refused),
        (data, Links::Kept),
        (&packed[..], Links::Refused),
        (&packed[..], Links::Kept),
    ] {
        let place = folder();
        let inside = place.path().join("inside");
        fs::create_dir(&inside).expect("a new folder");
        let content = unpack(archive, &inside, links, &LIMITS);
        let beside = fs::read_dir(place.path()).expect("it can be read").count();
        assert_eq!(beside, 1, "something was written beside the folder");
        let (mut files, mut bytes) = (0, 0);
        walk(&inside, links, &mut files, &mut bytes);
        assert!(files <= LIMITS.entries_max && bytes <= LIMITS.unpacked_bytes_max);
        if let Ok(content) = content {
            assert_eq!(content.files(), files);
        }
    }
}

fn walk(folder: &Path, links: Links, files: &mut usize, bytes: &mut u64) {
    for entry in fs::read_dir(folder).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        if metadata.is_dir() {
            walk(&path, links, files, bytes);
        } else {
            let is_link = metadata.is_symlink() && links == Links::Kept;
            assert!(
                metadata.is_file() || is_link,
                "{} is no file",
                path.display()
            );
            *files += 1;
            *bytes += metadata.len();
        }
    }
}

/// A `requirements.txt`: the lines that installers get are lines, and reading them again gives the same ones.
pub fn requirements(data: &[u8]) {
    let code = folder();
    fs::write(code.path().join("requirements.txt"), data).expect("a new file");
    environment::fuzzed_requirements(code.path());
}

/// A `package.json`.
pub fn packages(data: &[u8]) {
    let code = folder();
    fs::write(code.path().join("package.json"), data).expect("a new file");
    environment::fuzzed_package(code.path());
}

/// A `pilot.toml`: a function that was accepted is accepted again in the form in which it is uploaded.
///
/// # Panics
/// It is not.
pub fn manifests(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let manifest = match Manifest::parse(text, "pilot.toml") {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(error.to_string().starts_with("pilot.toml"), "{error}");
            return;
        }
    };
    for spec in manifest.functions.values() {
        let uploaded = serde_json::to_vec(spec).expect("a specification is JSON");
        let again: pilot_model::FunctionSpec =
            serde_json::from_slice(&uploaded).expect("it is read again");
        assert_eq!(serde_json::to_vec(&again).expect("it is JSON"), uploaded);
    }
}

/// A registry whose file is damaged: pairs of a place (16 bits, times 4) and a byte. It is opened or refused.
///
/// # Panics
/// The file cannot be written.
pub fn registries(data: &[u8]) {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let whole = WHOLE.get_or_init(|| {
        let place = folder();
        drop(Registry::open(place.path()).expect("a new registry"));
        fs::read(place.path().join("registry.sqlite")).expect("it was written")
    });
    let mut file = whole.clone();
    for change in data.chunks_exact(3).take(64) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) * 4;
        let len = file.len();
        file[at % len] = change[2];
    }
    let place = folder();
    fs::write(place.path().join("registry.sqlite"), file).expect("a new file");
    if let Ok(registry) = Registry::open(place.path()) {
        let _ = registry.functions();
    }
}

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    #[test]
    fn no_archive_leaves_its_folder_or_its_limits() {
        corpus("archives", super::archives);
    }

    #[test]
    fn requirements_that_are_read_again_are_the_same() {
        corpus("requirements", super::requirements);
    }

    #[test]
    fn no_package_json_panics() {
        corpus("packages", super::packages);
    }

    #[test]
    fn a_manifest_that_is_accepted_is_accepted_as_it_is_uploaded() {
        corpus("manifests", super::manifests);
    }

    #[test]
    fn a_damaged_registry_is_opened_or_refused() {
        corpus("registries", super::registries);
    }
}
