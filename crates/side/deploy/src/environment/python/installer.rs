//! The installers: `uv` if it is on PATH, otherwise `pip`. Their command, the lines of their output that show progress, and the
//! cause of a failure in their output.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::super::config::SourceBuilds;
use super::super::error::InstallFailure;
use super::requirements::{Requirements, normal_name};

/// The installer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Installer {
    /// uv at this path.
    Uv(PathBuf),
    /// The pip of this interpreter.
    Pip(PathBuf),
}

/// An installation.
#[derive(Debug)]
pub(super) struct Installation<'a> {
    /// The interpreter.
    pub(super) python: &'a Path,
    /// A requirements file.
    pub(super) file: &'a Path,
    /// A file of constraints.
    pub(super) constraints: Option<&'a Path>,
    /// Paths in the file are relative to this.
    pub(super) cwd: &'a Path,
    /// The folder for the packages.
    pub(super) target: &'a Path,
    /// Whether the set-up code of source distributions may run.
    pub(super) source_builds: SourceBuilds,
}

impl Installer {
    /// The command. It uses the user's own configuration (pip.conf, uv.toml, `PIP_*`, `UV_*`).
    pub(super) fn command(&self, what: &Installation<'_>) -> Command {
        let mut command = match self {
            Self::Uv(uv) => {
                let mut command = Command::new(uv);
                command.args([
                    "pip",
                    "install",
                    "--no-progress",
                    "--compile-bytecode",
                    "--python",
                ]);
                command.arg(what.python);
                command
            }
            Self::Pip(python) => {
                let mut command = Command::new(python);
                command
                    .args(["-I", "-m", "pip", "install", "--no-input", "--compile"])
                    .args(["--disable-pip-version-check", "--progress-bar", "off"])
                    .env("PIP_ROOT_USER_ACTION", "ignore");
                command
            }
        };
        if what.source_builds == SourceBuilds::Refused {
            command.args(["--only-binary", ":all:"]);
        }
        command.arg("--target").arg(what.target);
        command.arg("-r").arg(what.file);
        if let Some(constraints) = what.constraints {
            command.arg("-c").arg(constraints);
        }
        // The daemon may have been started in a virtual environment, which is not the function's.
        command.current_dir(what.cwd).env_remove("VIRTUAL_ENV");
        command
    }
}

/// A line of an installer's output that shows progress.
pub(super) fn progress(line: &str) -> Option<&str> {
    let line = line.trim();
    PROGRESS
        .iter()
        .any(|start| line.starts_with(start))
        .then_some(line)
}

/// Finds the cause in a failed installer's output.
pub(super) fn failure(output: &str, declared: &Requirements) -> InstallFailure {
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    let errors: Vec<&str> = lines.iter().filter_map(|line| error_line(line)).collect();
    let telling = errors
        .iter()
        .find(|line| TELLING.iter().any(|words| line.contains(words)));
    let reason = telling
        .or(errors.last())
        .or_else(|| lines.iter().rev().find(|line| !is_notice(line)))
        .map_or("it said nothing", |line| line);
    // The line may name the requirement. Otherwise it is the one that the installer was working on, or that it quotes after the error.
    let at_work = lines
        .iter()
        .rev()
        .filter(|line| AT_WORK.iter().any(|start| line.starts_with(start)));
    let quoted = lines.iter().skip_while(|line| error_line(line).is_none());
    InstallFailure {
        at_fault: [&reason]
            .into_iter()
            .chain(at_work)
            .chain(quoted)
            .find_map(|line| named_in(line, declared)),
        reason: reason.to_owned(),
    }
}

/// The text of an error line, without its prefix.
fn error_line(line: &str) -> Option<&str> {
    ["ERROR:", "error:", "cause:"]
        .iter()
        .find_map(|mark| line.strip_prefix(mark))
        .map(str::trim)
        .filter(|rest| !rest.is_empty())
}

fn is_notice(line: &str) -> bool {
    line.is_empty()
        || line.starts_with("[notice]")
        || line.starts_with("WARNING:")
        || line.starts_with("note:")
}

/// The declared requirement whose package name is a word of the text.
fn named_in(text: &str, declared: &Requirements) -> Option<String> {
    let words: Vec<String> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
        .filter(|word| !word.is_empty())
        .map(|word| normal_name(word.trim_matches('.')))
        .collect();
    declared
        .lines
        .iter()
        .find(|line| Requirements::package(line).is_some_and(|package| words.contains(&package)))
        .cloned()
}

const PROGRESS: &[&str] = &[
    "Collecting ",
    "Downloading ",
    "Building ",
    "Installing ",
    "Successfully installed",
    "Resolved ",
    "Prepared ",
    "Installed ",
    "Compiled ",
];
const AT_WORK: &[&str] = &[
    "Collecting ",
    "Building wheel",
    "Failed to build",
    "Processing ",
    "Building ",
];
/// Lines that are more helpful than the "ERROR:" lines around them.
const TELLING: &[&str] = &[
    "No matching distribution found",
    "Invalid requirement",
    "ResolutionImpossible",
    "Cannot install",
    "Failed building wheel",
    "requires a different Python",
    "Because ",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(lines: &[&str]) -> Requirements {
        Requirements {
            file: "requirements.txt",
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            constraints: Vec::new(),
            local: false,
        }
    }

    #[test]
    fn a_version_that_does_not_exist_is_named() {
        let output = "Collecting numpy\n\
            ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 1.0, 1.1)\n\
            ERROR: No matching distribution found for six==99\n\n\
            [notice] A new release of pip is available\n";
        assert_eq!(
            failure(output, &declared(&["numpy", "six==99"])),
            InstallFailure {
                at_fault: Some("six==99".to_owned()),
                reason: "No matching distribution found for six==99".to_owned(),
            }
        );
    }

    #[test]
    fn a_build_that_fails_is_blamed_on_what_was_collected_last() {
        let output = "Collecting six\nCollecting Broken_Pkg>=1\n  error: subprocess-exited-with-error\n\
            \x20 × python setup.py egg_info did not run successfully.\nnote: This is an issue with the package\n";
        let failure = failure(output, &declared(&["broken-pkg>=1", "six"]));
        assert_eq!(failure.at_fault.as_deref(), Some("broken-pkg>=1"));
        assert_eq!(failure.reason, "subprocess-exited-with-error");
    }

    #[test]
    fn uv_explains_in_a_sentence() {
        let output = "Using CPython 3.11.7 interpreter at: /python3.11\nerror: No solution found when resolving dependencies\n\
            \x20 cause: Because there is no version of six==99 and you require six==99, we can conclude that your requirements \
            are unsatisfiable.\n";
        let failure = failure(output, &declared(&["six==99"]));
        assert_eq!(failure.at_fault.as_deref(), Some("six==99"));
        assert!(
            failure
                .reason
                .starts_with("Because there is no version of six==99"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_requirement_that_is_only_quoted_is_named() {
        let output = "error: Couldn't parse requirement in `requirements.txt` at position 4\n\
            \x20 cause: no such comparison operator \"=\", must be one of ~= == !=\n         foo=1\n            ^^\n";
        let failure = failure(output, &declared(&["foo=1", "six"]));
        assert_eq!(failure.at_fault.as_deref(), Some("foo=1"));
        assert!(
            failure.reason.starts_with("no such comparison operator"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_name_within_another_name_is_not_it() {
        let output = "ERROR: No matching distribution found for six-more\n";
        assert_eq!(failure(output, &declared(&["six"])).at_fault, None);
    }

    #[test]
    fn silence_has_a_reason_too() {
        assert_eq!(failure("", &declared(&["six"])).reason, "it said nothing");
    }

    #[test]
    fn the_commands_install_into_the_folder_alone() {
        let what = Installation {
            python: Path::new("/py"),
            file: Path::new("/c/requirements.txt"),
            constraints: None,
            cwd: Path::new("/c"),
            target: Path::new("/t"),
            source_builds: SourceBuilds::Refused,
        };
        let words = |installer: Installer| -> Vec<String> {
            let command = installer.command(&what);
            let args = command.as_std().get_args();
            args.map(|arg| arg.to_string_lossy().into_owned()).collect()
        };
        let uv = words(Installer::Uv("/uv".into()));
        let pip = words(Installer::Pip("/py".into()));
        for words in [&uv, &pip] {
            assert!(
                words.ends_with(
                    &[
                        "--only-binary",
                        ":all:",
                        "--target",
                        "/t",
                        "-r",
                        "/c/requirements.txt"
                    ]
                    .map(str::to_owned)
                )
            );
        }
        assert_eq!(uv[..2], ["pip", "install"]);
        assert_eq!(pip[..4], ["-I", "-m", "pip", "install"]);
    }
}
