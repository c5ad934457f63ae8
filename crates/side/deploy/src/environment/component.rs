//! Compiles the WebAssembly component of a function to machine code when it is deployed. The compiler reads a stranger's file, so
//! it runs as a build: this binary, in a sandbox that sees the code read-only and writes to a folder of its own. What it made is
//! put into the code's folder, whatever was uploaded under that name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::{BuildCommand, BuildEnd, BuildHost};
use pilot_model::runtime::wasm::{COMPILE_VERB, COMPILED};
use pilot_model::size::Size;
use pilot_sys::tree;

use super::confined::{Confined, Needs};
use super::error::EnvironmentError;
use crate::blocking::blocking;
use crate::data_dir::{DataDir, make_dir};

/// Compiles components.
#[derive(Debug)]
pub(crate) struct ComponentCompiler {
    data_dir: Arc<DataDir>,
    builds: Arc<dyn BuildHost>,
}

/// Why a component cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComponentError {
    /// The component, or the limits of builds.
    #[error("{0}")]
    Refused(String),
    /// The machine.
    #[error("the component could not be compiled: {0}")]
    Failed(String),
}

impl From<EnvironmentError> for ComponentError {
    fn from(error: EnvironmentError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl ComponentCompiler {
    pub(super) fn new(data_dir: Arc<DataDir>, builds: Arc<dyn BuildHost>) -> Self {
        Self { data_dir, builds }
    }

    /// Compiles a component of the code. Returns the size of its machine code.
    pub(crate) async fn compile(
        &self,
        component: &str,
        code: &Path,
    ) -> Result<Size, ComponentError> {
        let failed = |error: io::Error| ComponentError::Failed(error.to_string());
        let pilot = std::env::current_exe().map_err(failed)?;
        let stage = self.data_dir.stage().map_err(failed)?;
        let made = stage.path().join("component");
        make_dir(&made).map_err(failed)?;
        let needs = Needs {
            stage: stage.path(),
            writable: vec![made.clone()],
            shown: vec![
                (code.to_owned(), PathBuf::from(CODE_INSIDE)),
                (pilot, PathBuf::from(PILOT_INSIDE)),
            ],
            settings: None,
            time_max: TIME_MAX,
        };
        let build = Confined::begin(&*self.builds, needs).await?;
        let compiled = made.join(COMPILED);
        let command = BuildCommand {
            program: PathBuf::from(PILOT_INSIDE),
            arguments: vec![
                COMPILE_VERB.to_owned(),
                format!("{CODE_INSIDE}/{component}"),
                build.inside(&compiled),
            ],
            environment: Vec::new(),
            cwd: PathBuf::from("/"),
        };
        let ended = build.run(command, |_| {}).await;
        build.close().await.map_err(EnvironmentError::from)?;
        let ended = ended.map_err(EnvironmentError::from)?;
        check(ended.end, ended.tail.trim())?;
        let place = code.join(COMPILED);
        blocking(move || adopt(&compiled, &place))
            .await
            .map_err(failed)
    }
}

fn check(end: BuildEnd, said: &str) -> Result<(), ComponentError> {
    let why = match end {
        BuildEnd::Exited(0) => return Ok(()),
        BuildEnd::Exited(1) if !said.is_empty() => said.to_owned(),
        BuildEnd::OutOfMemory(bytes) => format!(
            "the compiler used more than the {} of [build] memory_mb in pilotd.toml; raise it, or make the component smaller",
            Size(bytes)
        ),
        BuildEnd::OutOfMemoryAround(shortage) => {
            format!("the compiler was ended: {}", shortage.around())
        }
        BuildEnd::OutOfTime => format!(
            "the compiler took longer than {} s; make the component smaller",
            TIME_MAX.as_secs()
        ),
        BuildEnd::OutOfDisk(bytes) => format!(
            "its machine code has more than the {} of [build] disk_mb in pilotd.toml; raise it, or make the component smaller",
            Size(bytes)
        ),
        end => return Err(ComponentError::Failed(format!("{end:?}: {said}"))),
    };
    Err(ComponentError::Refused(why))
}

/// Moves the machine code to its place. Only a plain file is taken.
fn adopt(made: &Path, place: &Path) -> io::Result<Size> {
    let metadata = fs::symlink_metadata(made)?;
    if !metadata.is_file() {
        return Err(io::Error::other("the compiler left no file"));
    }
    tree::remove(place)?;
    fs::rename(made, place)?;
    Ok(Size(metadata.len()))
}

/// Where the compiler sees the code.
const CODE_INSIDE: &str = "/var/task";
/// Where it sees this binary, which may lie in a folder that is another one in a sandbox (`/tmp`).
const PILOT_INSIDE: &str = "/opt/pilot/bin/pilot";
const TIME_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_uploaded_in_its_place_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (made, place) = (folder.path().join("made"), folder.path().join(COMPILED));
        for uploaded in ["file", "folder", "link"] {
            match uploaded {
                "file" => fs::write(&place, "native code of a stranger").unwrap(),
                "folder" => fs::create_dir_all(place.join("inner")).unwrap(),
                _ => std::os::unix::fs::symlink("/etc/passwd", &place).unwrap(),
            }
            fs::write(&made, "compiled").unwrap();
            assert_eq!(adopt(&made, &place).unwrap(), Size(8), "{uploaded}");
            assert_eq!(fs::read(&place).unwrap(), b"compiled", "{uploaded}");
            fs::remove_file(&place).unwrap();
        }
    }

    #[test]
    fn a_link_in_place_of_machine_code_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        std::os::unix::fs::symlink("/etc/passwd", &made).unwrap();
        assert!(adopt(&made, &folder.path().join(COMPILED)).is_err());
    }
}
