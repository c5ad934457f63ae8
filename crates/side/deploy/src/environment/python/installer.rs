//! The installers: `uv` if it is on PATH, otherwise `pip`. Their command, the lines of their output that show progress, and the
//! cause of a failure in their output.

use std::path::{Path, PathBuf};

use pilot_model::ports::BuildCommand;

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
    /// The pip of a virtual environment of the daemon's: its interpreter, and its folder.
    OwnPip(PathBuf, PathBuf),
}

/// An installation.
#[derive(Debug)]
pub(super) struct Installation<'a> {
    /// The interpreter.
    pub(super) python: &'a Path,
    /// A requirements file.
    pub(super) file: String,
    /// A file of constraints.
    pub(super) constraints: Option<String>,
    /// Paths in the file are relative to this.
    pub(super) cwd: PathBuf,
    /// The folder for the packages.
    pub(super) target: String,
    /// Whether the set-up code of source distributions may run.
    pub(super) source_builds: SourceBuilds,
}

impl Installer {
    /// The command. It uses the operator's configuration (pip.conf, uv.toml, `PIP_*`, `UV_*`), and no cache: a cache that several
    /// builds write to would let one give another its packages.
    pub(super) fn command(&self, what: &Installation<'_>) -> BuildCommand {
        let (program, arguments): (&Path, &[&str]) = match self {
            Self::Uv(uv) => (
                uv,
                &["pip", "install", "--no-progress", "--compile-bytecode"],
            ),
            Self::Pip(python) | Self::OwnPip(python, _) => (
                python,
                &[
                    "-I",
                    "-m",
                    "pip",
                    "install",
                    "--no-input",
                    "--no-cache-dir",
                    "--compile",
                    "--disable-pip-version-check",
                    "--progress-bar",
                    "off",
                ],
            ),
        };
        let mut arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let mut add =
            |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        if let Self::Uv(_) = self {
            add(&["--python", &what.python.to_string_lossy()]);
        }
        if what.source_builds == SourceBuilds::Refused {
            add(&["--only-binary", ":all:"]);
        }
        add(&["--target", &what.target, "-r", &what.file]);
        if let Some(constraints) = &what.constraints {
            add(&["-c", constraints]);
        }
        BuildCommand {
            program: program.to_owned(),
            arguments,
            environment: vec![("PIP_ROOT_USER_ACTION".to_owned(), "ignore".to_owned())],
            cwd: what.cwd.clone(),
        }
    }
}

/// A line of an installer's output that shows progress.
pub(super) fn progress(line: &str) -> Option<&str> {
    // pip adds the line of the file that the daemon has written, which nobody knows, also to what a requirement requires.
    let line = line.split(" (from ").next().unwrap_or(line).trim();
    PROGRESS
        .iter()
        .any(|start| line.starts_with(start))
        .then_some(line)
}

/// Finds the cause in a failed installer's output.
pub(super) fn failure(output: &str, declared: &Requirements) -> InstallFailure {
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    if let Some(reason) = conflict(&lines) {
        return InstallFailure {
            at_fault: None,
            reason,
        };
    }
    if let Some(reason) = no_network(&lines) {
        return InstallFailure {
            at_fault: None,
            reason,
        };
    }
    let errors: Vec<&str> = lines.iter().filter_map(|line| error_line(line)).collect();
    let telling = errors
        .iter()
        .find(|line| TELLING.iter().any(|words| line.contains(words)));
    let reason = telling
        .or(errors.last())
        .or_else(|| lines.iter().rev().find(|line| !is_notice(line)))
        .map_or("it said nothing", |line| line);
    let reason = reason.split(" (from line ").next().unwrap_or(reason);
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

/// The requirements that pip cannot satisfy together, which it lists below its error.
fn conflict(lines: &[&str]) -> Option<String> {
    // uv explains a conflict in several lines.
    if let Some(at) = lines.iter().position(|line| line.contains("Because "))
        && lines
            .get(at + 1)
            .is_some_and(|line| line.starts_with("And "))
    {
        let first = lines[at].find("Because ").unwrap_or(0);
        let more = lines[at + 1..]
            .iter()
            .take_while(|line| line.starts_with("And "));
        let said: Vec<&str> = std::iter::once(&lines[at][first..])
            .chain(more.copied())
            .take(CONFLICTS_MAX)
            .collect();
        return Some(format!(
            "requirements exclude one another ({})",
            said.join(" ")
        ));
    }
    let at = lines
        .iter()
        .position(|line| line.starts_with("The conflict is caused by:"))?;
    let both: Vec<&str> = lines[at + 1..]
        .iter()
        .copied()
        .take_while(|line| !line.is_empty())
        .take(CONFLICTS_MAX)
        .collect();
    (!both.is_empty()).then(|| {
        format!(
            "requirements exclude one another ({})",
            both.join("; ")
                .replace("The user requested", "the function requires")
        )
    })
}

/// The line about a connection that failed. No requirement is at fault then, although pip says that it finds none.
fn no_network(lines: &[&str]) -> Option<String> {
    let line = lines
        .iter()
        .find(|line| NETWORK.iter().any(|words| line.contains(words)))?;
    let words: String = line.chars().take(300).collect();
    Some(format!(
        "the package index could not be reached from the daemon's machine ({words})"
    ))
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
/// Words of pip and uv about connections.
const NETWORK: &[&str] = &[
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to establish a new connection",
    "Tunnel connection failed",
    "Network is unreachable",
    "tunnel error",
    "dns error",
    "error sending request for url",
];
/// Lines of a conflict that are shown.
const CONFLICTS_MAX: usize = 4;
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
    fn a_conflict_names_both_requirements() {
        let output = "ERROR: Cannot install -r /build/work/requirements.txt (line 1) and urllib3==1.20 because these package versions \
            have conflicting dependencies.\n\nThe conflict is caused by:\n    The user requested urllib3==1.20\n    \
            requests 2.32.3 depends on urllib3<3 and >=1.21.1\n\nTo fix this you could try to:\n1. loosen the range\n\
            ERROR: ResolutionImpossible: for help visit https://pip.example\n";
        let failure = failure(output, &declared(&["requests==2.32.3", "urllib3==1.20"]));
        assert_eq!(
            failure.reason,
            "requirements exclude one another (the function requires urllib3==1.20; requests 2.32.3 depends on urllib3<3 and >=1.21.1)"
        );
        assert_eq!(failure.at_fault, None);
    }

    #[test]
    fn a_conflict_that_uv_explains_names_both_requirements() {
        let output = "error: No solution found when resolving dependencies\n  cause: Because requests==2.32.3 depends on urllib3>=1.21.1 \
            we can conclude that you require urllib3>=1.21.1.\n         And because you require urllib3==1.20, we can conclude that your \
            requirements are unsatisfiable.\n";
        let failure = failure(output, &declared(&["requests==2.32.3", "urllib3==1.20"]));
        assert_eq!(failure.at_fault, None);
        for package in ["requests==2.32.3", "urllib3==1.20"] {
            assert!(failure.reason.contains(package), "{failure:?}");
        }
    }

    #[test]
    fn without_a_network_no_requirement_is_blamed() {
        let output = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError: Failed to establish a new \
            connection: [Errno -3] Temporary failure in name resolution': /simple/six/\nERROR: Could not find a version that satisfies \
            the requirement six (from versions: none)\nERROR: No matching distribution found for six\n";
        let failure = failure(output, &declared(&["six"]));
        assert_eq!(failure.at_fault, None);
        assert!(
            failure
                .reason
                .starts_with("the package index could not be reached"),
            "{failure:?}"
        );
    }

    #[test]
    fn silence_has_a_reason_too() {
        assert_eq!(failure("", &declared(&["six"])).reason, "it said nothing");
    }

    #[test]
    fn the_commands_install_into_the_folder_alone() {
        let what = Installation {
            python: Path::new("/py"),
            file: "/c/requirements.txt".to_owned(),
            constraints: None,
            cwd: PathBuf::from("/c"),
            target: "/t".to_owned(),
            source_builds: SourceBuilds::Refused,
        };
        let words = |installer: Installer| installer.command(&what).arguments;
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
        assert!(pip.contains(&"--no-cache-dir".to_owned()));
    }
}
