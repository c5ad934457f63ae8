//! The commands of a `node_modules` that came with the code. npm makes each command a link to a program of its package. An archive
//! has no links, and a copy cannot find the modules beside its program. So these copies become links again.

use std::fs;
use std::io::{
    self,
    ErrorKind::{IsADirectory, NotADirectory, NotFound},
    Read,
};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::package::{NODE_MODULES, PACKAGE_JSON};
use super::tree::packages;

/// Replaces the files in `node_modules/.bin` that are copies of their packages' programs by links. Other files stay as they are, and so do
/// those of code that names more commands than it could have.
pub(crate) fn link_commands(code: &Path) -> io::Result<()> {
    let modules = code.join(NODE_MODULES);
    let bin = modules.join(BIN);
    if !bin.is_dir() {
        return Ok(());
    }
    let mut left = COMPARED_BYTES_MAX;
    for package in packages(&modules)? {
        let inside = package.strip_prefix(&modules).unwrap_or(&package);
        for (name, program) in commands(&package)? {
            let copy = bin.join(name);
            if is_copy(&copy, &package.join(&program), &mut left)? {
                fs::remove_file(&copy)?;
                symlink(Path::new("..").join(inside).join(program), &copy)?;
            }
        }
    }
    Ok(())
}

/// The commands in a package's `bin`: a command's file name, and the path of its program in the package. If `bin` is a string, it is
/// the program with the package's name. Paths that lead out of the folders are left out.
fn commands(package: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let path = package.join(PACKAGE_JSON);
    let mut text = Vec::new();
    let read = fs::File::open(&path)
        .and_then(|file| file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text));
    match read {
        // Read as JSON, it would take many times its length.
        Ok(_) if text.len() as u64 > MANIFEST_BYTES_MAX => return Ok(Vec::new()),
        Ok(_) => {}
        // There is none, or it is a folder.
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => {
            let problem = format!("read {}: {error}", path.display());
            return Err(io::Error::new(error.kind(), problem));
        }
    }
    // npm made no command from a package.json that is not JSON, and the function may work without its package.
    let manifest: Value = serde_json::from_slice(&text).unwrap_or_default();
    let named: Vec<(&str, &str)> = match &manifest["bin"] {
        Value::String(program) => {
            let own = manifest["name"].as_str().unwrap_or_default();
            vec![(own, program.as_str())]
        }
        Value::Object(programs) => programs
            .iter()
            .filter_map(|(name, program)| Some((name.as_str(), program.as_str()?)))
            .collect(),
        _ => Vec::new(),
    };
    let commands = named
        .into_iter()
        .filter_map(|(name, program)| {
            // Without the scope, as npm does.
            let name = Path::new(name).file_name()?;
            Some((PathBuf::from(name), below(program)?))
        })
        .collect();
    Ok(commands)
}

/// The path with plain components only; `None`: it leads elsewhere.
fn below(path: &str) -> Option<PathBuf> {
    Path::new(path)
        .components()
        .filter(|component| *component != Component::CurDir)
        .map(|component| match component {
            Component::Normal(part) => Some(part),
            _ => None,
        })
        .collect()
}

/// Whether two files have the same content and mode. Takes their length from the bytes that may still be compared.
fn is_copy(copy: &Path, program: &Path, left: &mut u64) -> io::Result<bool> {
    let shape = |path: &Path| {
        let metadata = path.symlink_metadata().ok()?;
        let small = metadata.is_file() && metadata.len() <= PROGRAM_BYTES_MAX;
        small.then(|| (metadata.len(), metadata.permissions().mode()))
    };
    match (shape(copy), shape(program)) {
        (Some(one), Some(other)) if one == other => match left.checked_sub(one.0) {
            Some(less) => {
                *left = less;
                Ok(fs::read(copy)? == fs::read(program)?)
            }
            None => Ok(false),
        },
        _ => Ok(false),
    }
}

const BIN: &str = ".bin";
/// Scripts are a few lines or a bundle. Larger files are binaries, which need no modules beside themselves.
const PROGRAM_BYTES_MAX: u64 = 16 << 20;
/// Longest `package.json` whose commands are looked for. Those of the registry have a few KiB.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// All that is compared. Two packages may have a command of the same name, but not many, and all code has at most 250 MiB.
const COMPARED_BYTES_MAX: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Code with these files, all of them executable.
    fn code(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        link_commands(folder.path()).unwrap();
        folder
    }

    fn target(code: &tempfile::TempDir, command: &str) -> Option<PathBuf> {
        fs::read_link(code.path().join("node_modules/.bin").join(command)).ok()
    }

    #[test]
    fn a_package_whose_manifest_cannot_be_understood_has_no_commands() {
        let code = code(&[
            ("node_modules/a/package.json/x", "1"),
            ("node_modules/b/package.json", "{"),
            ("node_modules/c/index.js", "1"),
            ("node_modules/.bin/a", "1"),
        ]);
        assert_eq!(target(&code, "a"), None);
    }

    #[test]
    fn copies_of_packages_programs_are_links_again() {
        let code = code(&[
            (
                "node_modules/a/package.json",
                r#"{"name": "a", "bin": {"one": "./bin/one.js", "two": "two"}}"#,
            ),
            ("node_modules/a/bin/one.js", "1"),
            ("node_modules/a/two", "2"),
            (
                "node_modules/@own/b/package.json",
                r#"{"name": "@own/b", "bin": "cli.js"}"#,
            ),
            ("node_modules/@own/b/cli.js", "b"),
            ("node_modules/.bin/one", "1"),
            ("node_modules/.bin/two", "2"),
            ("node_modules/.bin/b", "b"),
        ]);
        for (command, program) in [
            ("one", "../a/bin/one.js"),
            ("two", "../a/two"),
            ("b", "../@own/b/cli.js"),
        ] {
            assert_eq!(target(&code, command), Some(program.into()));
            assert!(
                code.path()
                    .join("node_modules/.bin")
                    .join(command)
                    .is_file()
            );
        }
    }

    #[test]
    fn a_manifest_that_is_too_long_names_no_commands() {
        let padding = " ".repeat(1 << 20);
        let manifest = r#"{"name": "a", "bin": {"one": "one.js"}}"#;
        let long = format!("{manifest}{padding}");
        for (manifest, is_link) in [(manifest, true), (long.as_str(), false)] {
            let code = code(&[
                ("node_modules/a/package.json", manifest),
                ("node_modules/a/one.js", "1"),
                ("node_modules/.bin/one", "1"),
            ]);
            assert_eq!(target(&code, "one").is_some(), is_link);
        }
    }

    #[test]
    fn what_is_compared_has_a_limit() {
        let code = code(&[
            ("node_modules/a/one.js", "12"),
            ("node_modules/.bin/one", "34"),
        ]);
        let modules = code.path().join("node_modules");
        let mut left = 5;
        for rest in [3, 1, 1, 1] {
            let is_copy = is_copy(
                &modules.join(".bin/one"),
                &modules.join("a/one.js"),
                &mut left,
            );
            assert!(!is_copy.unwrap());
            assert_eq!(left, rest);
        }
    }

    #[test]
    fn what_is_no_copy_stays_as_it_is() {
        let code = code(&[
            (
                "node_modules/a/package.json",
                r#"{"name": "a", "bin": {"own": "own.js", "out": "../../app.js", "..": "own.js", "gone": "gone.js", "odd": 1}}"#,
            ),
            ("node_modules/a/own.js", "theirs"),
            ("node_modules/b/package.json", "not JSON"),
            ("node_modules/@file", ""),
            ("node_modules/.bin/own", "mine"),
            ("node_modules/.bin/out", "app"),
            ("node_modules/.bin/gone", ""),
            ("app.js", "app"),
        ]);
        for command in ["own", "out", "gone"] {
            assert_eq!(target(&code, command), None, "{command}");
        }
        assert!(code.path().join("node_modules").is_dir());
    }
}
