//! Builds the initscripts of a function: `source` in `pilot.toml` names the folder of a Rust crate, and `module` the file that is written.
//!
//! It happens before the function is packed, with the user's own cargo. The daemon never builds a script: it gets the module. A function
//! whose manifest has no `source` brings its module, in whatever language it was written.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::Context;
use pilot_model::FunctionSpec;
use pilot_model::initscript::{InitscriptSpec, ScriptKind};
use serde::Deserialize;

use super::project::Target;

/// The target of scripts.
const TARGET: &str = "wasm32-unknown-unknown";

/// Builds the modules of a function's scripts that have a source.
///
/// # Errors
/// What is missing, with the command that installs it, or the compiler's messages.
pub(super) fn build(target: &Target, tell: impl Fn(&str)) -> anyhow::Result<()> {
    for (kind, spec) in scripts(&target.spec) {
        let Some(source) = &spec.source else { continue };
        let key = format!("functions.{}.{}.source", target.name, kind.key());
        tell(&format!("building {}", spec.module));
        let folder = target.folder.join(source);
        let module = build_crate(&folder).with_context(|| format!("{key} = \"{source}\""))?;
        let path = target.folder.join(&spec.module);
        write(&path, &module).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The folders of the crates of a function's scripts.
pub(super) fn sources(target: &Target) -> Vec<PathBuf> {
    let sources = scripts(&target.spec).filter_map(|(_, spec)| spec.source.as_ref());
    sources.map(|source| target.folder.join(source)).collect()
}

/// What the daemon is told: nothing of the client's files.
pub(super) fn without_sources(spec: &mut FunctionSpec) {
    let scripts = [&mut spec.initscript, &mut spec.shared_initscript];
    for script in scripts.into_iter().flatten() {
        script.source = None;
    }
}

fn scripts(spec: &FunctionSpec) -> impl Iterator<Item = (ScriptKind, &InitscriptSpec)> {
    let own = spec.initscript.iter().map(|one| (ScriptKind::Own, one));
    let shared = spec.shared_initscript.iter();
    own.chain(shared.map(|one| (ScriptKind::Shared, one)))
}

/// The module of a crate.
fn build_crate(folder: &Path) -> anyhow::Result<Vec<u8>> {
    if !folder.join("Cargo.toml").is_file() {
        anyhow::bail!(
            "{} has no Cargo.toml: name the folder of the script's crate, or leave `source` out and bring the module",
            folder.display()
        );
    }
    check_target(folder)?;
    // In the folder, because its `.cargo/config.toml` counts.
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--target", TARGET]);
    cargo.arg("--message-format=json-render-diagnostics");
    let built = run(cargo.current_dir(folder))?;
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        anyhow::bail!("cargo could not build it:\n{}", said.trim_end());
    }
    let file = module_of(&built.stdout, folder)?;
    fs::read(&file).with_context(|| file.display().to_string())
}

/// Says how to install what is missing.
fn check_target(folder: &Path) -> anyhow::Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    let found = run(rustc.current_dir(folder))?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let has_core = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
    };
    let is_there = found.status.success()
        && fs::read_dir(libraries).is_ok_and(|mut entries| entries.any(has_core));
    if !is_there {
        anyhow::bail!("Rust has no target {TARGET}: run `rustup target add {TARGET}`, once");
    }
    Ok(())
}

fn run(command: &mut Command) -> anyhow::Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => anyhow::bail!(
            "{program} is not installed: install Rust (https://rustup.rs), then run `rustup target add {TARGET}`; or leave `source` out \
             and bring the module"
        ),
        output => output.with_context(|| program),
    }
}

/// A line of `--message-format=json`, as far as it matters. (The Cargo Book, "External tools".)
#[derive(Debug, Deserialize)]
struct Line {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// The one module that the crate itself has made.
fn module_of(lines: &[u8], folder: &Path) -> anyhow::Result<PathBuf> {
    let manifest = fs::canonicalize(folder.join("Cargo.toml"))?;
    let lines = lines.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    let own = lines.filter(|line| {
        let path = fs::canonicalize(&line.manifest_path);
        line.reason == "compiler-artifact" && path.is_ok_and(|path| path == manifest)
    });
    let files = own.flat_map(|line| line.filenames);
    let modules: Vec<PathBuf> = files
        .filter(|file| {
            file.extension()
                .is_some_and(|extension| extension == "wasm")
        })
        .collect();
    match modules.as_slice() {
        [module] => Ok(module.clone()),
        [] => anyhow::bail!(
            "the crate makes no module: write `crate-type = [\"cdylib\"]` below [lib] in its Cargo.toml"
        ),
        _ => anyhow::bail!(
            "the crate makes {} modules: it must make one",
            modules.len()
        ),
    }
}

/// Only if it differs: `pilot dev` watches the file.
fn write(path: &Path, module: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == module) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_the_crates_own_and_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("Cargo.toml");
        fs::write(&manifest, "").unwrap();
        let artifact = |manifest: &Path, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":{manifest:?},"filenames":["{file}"],"fresh":true}}"#
            )
        };
        let other = artifact(Path::new("/other/Cargo.toml"), "/t/other.wasm");
        let own = artifact(&manifest, "/t/init.wasm");
        let end = r#"{"reason":"build-finished","success":true}"#;
        let found = |lines: &[&str]| {
            let found = module_of(lines.join("\n").as_bytes(), folder.path());
            found.map_err(|error| error.to_string())
        };
        assert_eq!(found(&[&other, &own, end]), Ok("/t/init.wasm".into()));
        assert!(found(&[&other, end]).unwrap_err().contains("cdylib"));
        assert!(found(&[&own, &own]).unwrap_err().contains("2 modules"));
    }

    #[test]
    fn a_folder_without_a_crate_says_what_to_write() {
        let folder = tempfile::tempdir().unwrap();
        let problem = build_crate(folder.path()).unwrap_err().to_string();
        assert!(
            problem.contains("has no Cargo.toml: name the folder"),
            "{problem}"
        );
    }

    #[test]
    fn an_unchanged_module_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/init.wasm");
        write(&path, b"one").unwrap();
        let time = || fs::metadata(&path).unwrap().modified().unwrap();
        let before = time();
        write(&path, b"one").unwrap();
        assert_eq!(time(), before);
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
    }
}
