//! Compiles code to bytecode when it is deployed, because its folder is mounted read-only and never changes.
//!
//! The compiler parses text of strangers, and may need hundreds of times its size in memory. So it runs as a build, which sees the code
//! read-only and writes to a folder of its own. A file that takes more than the limits of builds is left out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::{BuildCommand, BuildEnd, BuildHost};

use super::super::confined::{Confined, Needs};
use super::super::error::EnvironmentError;
use super::interpreter::Interpreter;
use crate::blocking::blocking;
use crate::data_dir::{DataDir, make_dir};

/// Compiles code for one interpreter.
#[derive(Debug, Clone)]
pub(crate) struct Compiler {
    interpreter: Interpreter,
    data_dir: Arc<DataDir>,
    builds: Arc<dyn BuildHost>,
}

impl Compiler {
    pub(crate) fn new(
        interpreter: Interpreter,
        data_dir: Arc<DataDir>,
        builds: Arc<dyn BuildHost>,
    ) -> Self {
        Self {
            interpreter,
            data_dir,
            builds,
        }
    }

    /// Compiles the modules in a folder. Returns what is to be said about files that were left out. Without bytecode, code only starts
    /// more slowly, so an error is logged.
    pub(crate) async fn compile(&self, code: &Path) -> Vec<String> {
        match self.try_compile(code).await {
            Ok(left_out) => left_out,
            Err(error) => {
                tracing::warn!(%error, code = %code.display(), "the code was not compiled ahead");
                Vec::new()
            }
        }
    }

    async fn try_compile(&self, code: &Path) -> Result<Vec<String>, EnvironmentError> {
        let searched = code.to_owned();
        if !blocking(move || has_modules(&searched)).await {
            return Ok(Vec::new());
        }
        let disk = |source| EnvironmentError::Disk {
            path: code.to_owned(),
            source,
        };
        let stage = self.data_dir.stage().map_err(disk)?;
        let made = stage.path().join("bytecode");
        make_dir(&made).map_err(disk)?;
        let source = PathBuf::from(CODE_INSIDE);
        let interpreter = &self.interpreter;
        let same =
            [&interpreter.prefix, &interpreter.executable].map(|path| (path.clone(), path.clone()));
        let needs = Needs {
            stage: stage.path(),
            writable: vec![made.clone()],
            shown: [(code.to_owned(), source)]
                .into_iter()
                .chain(same)
                .collect(),
            settings: None,
            time_max: TIME_MAX,
        };
        let build = Confined::begin(&*self.builds, needs).await?;
        let done = self.run(&build, code, &made).await;
        let inside = build.inside(code);
        build.close().await?;
        let left_out = done?;
        let (made, code) = (made.join(inside.trim_start_matches('/')), code.to_owned());
        blocking(move || adopt(&made, &code)).await.map_err(disk)?;
        Ok(left_out)
    }

    /// Runs the compiler, again behind each file that ended it.
    async fn run(
        &self,
        build: &Confined,
        code: &Path,
        made: &Path,
    ) -> Result<Vec<String>, EnvironmentError> {
        let mut left_out = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..=LEFT_OUT_MAX {
            let mut arguments = ["-I", "-S", "-c", include_str!("compile.py")]
                .map(str::to_owned)
                .to_vec();
            arguments.push(build.inside(code));
            arguments.push(build.inside(made));
            arguments.extend(after.clone());
            let command = BuildCommand {
                program: self.interpreter.executable.clone(),
                arguments,
                environment: Vec::new(),
                cwd: PathBuf::from("/"),
            };
            let mut current = None;
            let ended = build
                .run(command, |line| current = unquoted(line).or(current.take()))
                .await?;
            let why = match ended.end {
                BuildEnd::Exited(_) => return Ok(left_out),
                BuildEnd::OutOfMemory(bytes) => format!(
                    "the compiler used more than the {} of [build] memory_mb",
                    pilot_model::size::Size(bytes)
                ),
                BuildEnd::OutOfMemoryAround(shortage) => {
                    format!("the compiler was ended: {}", shortage.around())
                }
                BuildEnd::OutOfTime => {
                    format!("the compiler took longer than {} s", TIME_MAX.as_secs())
                }
                _ => "it ended the compiler".to_owned(),
            };
            let Some(file) = current else {
                return Ok(left_out);
            };
            left_out.push(format!(
                "{} is not compiled ahead: {why}; split it into smaller files",
                file.escape_debug()
            ));
            if ended.end == BuildEnd::OutOfTime {
                return Ok(left_out);
            }
            after = Some(file);
        }
        Ok(left_out)
    }
}

/// A name as Python's `ascii` writes it; `None`: another line, or a name that is not printable ASCII.
fn unquoted(line: &str) -> Option<String> {
    let name = line.strip_prefix('\'')?.strip_suffix('\'')?;
    (!name.contains('\\')).then(|| name.to_owned())
}

fn has_modules(folder: &Path) -> bool {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() && is(&entry.path(), "py") => return true,
                _ => {}
            }
        }
    }
    false
}

fn is(file: &Path, ending: &str) -> bool {
    file.extension().is_some_and(|end| end == ending)
}

/// Moves bytecode to the `__pycache__` folders of the code. Only files whose folder the code has are taken.
fn adopt(made: &Path, code: &Path) -> io::Result<()> {
    let mut open = vec![PathBuf::new()];
    while let Some(inside) = open.pop() {
        let entries = match fs::read_dir(made.join(&inside)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let folder = code.join(&inside);
        let known = folder
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir());
        if !known {
            continue;
        }
        for entry in entries {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            if kind.is_dir() {
                open.push(inside.join(name));
            } else if kind.is_file() && is(Path::new(&name), "pyc") {
                let place = folder.join("__pycache__");
                make_dir(&place)?;
                fs::rename(entry.path(), place.join(name))?;
            }
        }
    }
    Ok(())
}

/// Where the compiler sees the code: the place that it has in a function's sandbox, so that the bytecode names its files there.
const CODE_INSIDE: &str = "/var/task";
const TIME_MAX: Duration = Duration::from_secs(120);
/// Files that may end the compiler; then the rest is left out, too.
const LEFT_OUT_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// With a prefix from the command line, Python would compile its own library there, which took ten times as long.
    #[test]
    fn the_bytecode_is_that_of_the_code_alone() {
        let (code, made) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(code.path().join("lib")).unwrap();
        for (file, text) in [
            ("app.py", "import lib.tool"),
            ("lib/tool.py", ""),
            ("no.py", "def ("),
        ] {
            fs::write(code.path().join(file), text).unwrap();
        }
        let done = Command::new("python3")
            .args(["-I", "-S", "-c", include_str!("compile.py")])
            .args([code.path(), made.path()])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let printed = String::from_utf8(done.stdout).unwrap();
        assert_eq!(printed, "'app.py'\n'lib/tool.py'\n'no.py'\n");
        let mut compiled = files_below(made.path());
        compiled.sort();
        let at = |name: &str| {
            made.path()
                .join(code.path().strip_prefix("/").unwrap())
                .join(name)
        };
        let [app, tool] = compiled.as_slice() else {
            panic!("{compiled:?}");
        };
        assert_eq!(
            (app.parent(), tool.parent()),
            (at("app").parent(), at("lib/tool").parent())
        );
    }

    fn files_below(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        files.extend(folders.iter().flat_map(|folder| files_below(folder)));
        files
    }
}
