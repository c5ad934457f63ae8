//! A function's Python requirements: `requirements.txt`, or `[project] dependencies` in `pyproject.toml`, beside its code.
//!
//! The parser only distinguishes different sets and finds names for error messages. The installer interprets the lines.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use pilot_model::runtime::RequirementFiles;
use pilot_model::size::Size;

use crate::environment::is_confusing;

/// A set of requirements. The installer reads exactly these lines ([`Requirements::text`]), and the hash of an environment covers
/// exactly these lines, so that two sets with one hash are one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Requirements {
    /// `requirements.txt` or `pyproject.toml`, for messages.
    pub(super) file: &'static str,
    /// All requirements and options, also those of included files, sorted and without white space and comments.
    pub(super) lines: Vec<String>,
    /// All lines of constraint files.
    pub(super) constraints: Vec<String>,
    /// Whether a line refers to files beside the code, so that equal lines may mean different packages.
    pub(super) local: bool,
}

/// Why requirements cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub(crate) struct RequirementsError {
    /// The file, relative to the code.
    pub(crate) file: String,
    /// What is wrong, and what to change.
    pub(crate) problem: String,
}

/// The requirements of the code in `code`; `None` if it has none.
pub(super) fn find(
    code: &Path,
    files: RequirementFiles,
) -> Result<Option<Requirements>, RequirementsError> {
    let mut reader = Reader {
        code,
        lines: Vec::new(),
        constraints: Vec::new(),
        bytes: 0,
    };
    let file = if code.join(TXT).is_file() {
        reader.read_txt(Path::new(TXT), 0)?;
        TXT
    } else if files == RequirementFiles::All && code.join(PYPROJECT).is_file() {
        reader.read_pyproject()?;
        PYPROJECT
    } else if files == RequirementFiles::All && code.join(PIPFILE).is_file() {
        return Err(RequirementsError {
            file: PIPFILE.to_owned(),
            problem: "is not read: make a requirements.txt with `pipenv requirements > requirements.txt`, or list it in .pilotignore \
                      if the function needs no packages"
                .to_owned(),
        });
    } else {
        return Ok(None);
    };
    let Reader {
        mut lines,
        mut constraints,
        ..
    } = reader;
    for list in [&mut lines, &mut constraints] {
        list.sort();
        list.dedup();
    }
    let local = lines.iter().chain(&constraints).any(|line| is_local(line));
    let installs_something = lines.iter().any(|line| !line.starts_with('-'));
    Ok(installs_something.then_some(Requirements {
        file,
        lines,
        constraints,
        local,
    }))
}

/// Reads the requirements, and what would be given to an installer once more.
#[cfg(any(test, fuzzing))]
pub(super) fn check_reading(code: &Path) {
    let Ok(Some(found)) = find(code, RequirementFiles::All) else {
        return;
    };
    for line in found.lines.iter().chain(&found.constraints) {
        assert!(!line.contains(['\n', '\r', '\0']), "{line:?}");
        assert_eq!(line.trim(), line);
    }
    // Paths and further files are made relative to the code, so only what names none is read again.
    if found.local || !found.constraints.is_empty() {
        return;
    }
    let text = Requirements::text(&found.lines);
    std::fs::write(code.join(TXT), text).expect("the file can be written");
    let again = find(code, RequirementFiles::All)
        .expect("it was read before")
        .expect("it had packages");
    assert_eq!(again.lines, found.lines);
}

impl Requirements {
    /// The lines as a file.
    pub(super) fn text(lines: &[String]) -> String {
        let mut text = lines.join("\n");
        text.push('\n');
        text
    }

    /// A requirement that is built from its source, or an option that asks for it; `None`: every line can be installed from wheels.
    pub(super) fn wants_source(&self) -> Option<&str> {
        let wants = |line: &&String| {
            let option = line.split([' ', '=']).next().unwrap_or(line);
            if line.starts_with('-') {
                return matches!(option, "--no-binary" | "--only-binary");
            }
            let target = line.rsplit_once(" @ ").map_or(line.as_str(), |(_, to)| to);
            let target = target.split([' ', ';', '#', '?', '[']).next().unwrap_or("");
            let direct = target.contains("://") || is_local(line);
            direct && !target.to_ascii_lowercase().ends_with(".whl")
        };
        self.lines.iter().find(wants).map(String::as_str)
    }

    /// The name of the package that a line requires, lower case with `-`; `None` for options, addresses and paths.
    pub(super) fn package(line: &str) -> Option<String> {
        let end = line
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
            .unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let fits = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && !rest.starts_with(['/', ':', '+'])
            && !is_archive(name);
        fits.then(|| normal_name(name))
    }
}

/// A distribution's name, normalised as in PEP 503.
pub(super) fn normal_name(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars() {
        let c = if matches!(c, '_' | '.') {
            '-'
        } else {
            c.to_ascii_lowercase()
        };
        if !(c == '-' && normal.ends_with('-')) {
            normal.push(c);
        }
    }
    normal
}

struct Reader<'a> {
    code: &'a Path,
    lines: Vec<String>,
    constraints: Vec<String>,
    bytes: u64,
}

impl Reader<'_> {
    fn read_txt(&mut self, file: &Path, depth: usize) -> Result<(), RequirementsError> {
        let fail = |problem: String| RequirementsError {
            file: file.display().to_string(),
            problem,
        };
        if depth > DEPTH_MAX {
            return Err(fail(
                "is included too deeply; do files include one another?".to_owned(),
            ));
        }
        let text = self.read(file).map_err(fail)?;
        for (at, line) in lines_of(file, &text)? {
            let fail = |problem: String| fail_at(file, at, problem);
            if let Some(word) = editable(&line) {
                return Err(fail(format!(
                    "'{line}' asks for an editable installation, which a deployed function cannot have; write {word} without -e"
                )));
            }
            let Some(included) = included(&line) else {
                check_options(&line).map_err(fail)?;
                self.lines.push(line);
                continue;
            };
            if included.contains("://") {
                return Err(fail(format!(
                    "'{line}' includes a file from elsewhere, which may change; put a copy of it beside {TXT}"
                )));
            }
            let beside = file.parent().unwrap_or(Path::new("")).join(included);
            let inside = inside(&beside).ok_or_else(|| {
                fail(format!(
                    "'{line}' leads out of the code; put that file beside it"
                ))
            })?;
            if line.starts_with("-c") || line.starts_with("--constraint") {
                let text = self.read(&inside).map_err(fail)?;
                for (at, line) in lines_of(&inside, &text)? {
                    if line.starts_with('-') {
                        return Err(fail_at(
                            &inside,
                            at,
                            format!(
                                "'{line}' is an option, which a file of constraints cannot have; move it to {TXT}"
                            ),
                        ));
                    }
                    self.constraints.push(line);
                }
            } else {
                self.read_txt(&inside, depth + 1)?;
            }
        }
        Ok(())
    }

    fn read_pyproject(&mut self) -> Result<(), RequirementsError> {
        let fail = |problem: String| RequirementsError {
            file: PYPROJECT.to_owned(),
            problem,
        };
        let text = self.read(Path::new(PYPROJECT)).map_err(fail)?;
        let document: toml::Table = toml::from_str(&text)
            .map_err(|error| fail(format!("is not TOML: {}", error.message())))?;
        let project = document.get("project").and_then(toml::Value::as_table);
        let Some(dependencies) = project.and_then(|project| project.get("dependencies")) else {
            let dynamic = project
                .and_then(|project| project.get("dynamic"))
                .and_then(toml::Value::as_array)
                .is_some_and(|keys| keys.iter().any(|key| key.as_str() == Some("dependencies")));
            let poetry = document
                .get("tool")
                .and_then(|tool| tool.get("poetry"))
                .and_then(|poetry| poetry.get("dependencies"));
            if dynamic || poetry.is_some() {
                return Err(fail(
                    "names its dependencies elsewhere than in [project] dependencies; list them there, or put a \
                     requirements.txt beside it"
                        .to_owned(),
                ));
            }
            return Ok(());
        };
        let words = dependencies.as_array().and_then(|all| {
            all.iter()
                .map(|one| one.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        });
        let words = words
            .ok_or_else(|| fail("[project] dependencies must be a list of strings".to_owned()))?;
        for word in words {
            if word.contains(['\n', '\r']) || word.trim_start().starts_with('-') {
                return Err(fail(format!(
                    "'{}' is not a requirement; write NAME or NAME==VERSION",
                    word.escape_debug()
                )));
            }
            for (_, line) in lines_of(Path::new(PYPROJECT), &word).map_err(|_| {
                fail(format!(
                    "'{}' has a character that a requirement cannot have; remove it",
                    word.escape_debug()
                ))
            })? {
                check_options(&line).map_err(fail)?;
                self.lines.push(line);
            }
        }
        Ok(())
    }

    fn read(&mut self, file: &Path) -> Result<String, String> {
        let read = |path: &Path| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            fs::File::open(path)?
                .take(BYTES_MAX + 1)
                .read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read(&self.code.join(file))
            .map_err(|error| format!("'{}' cannot be read: {error}", file.display()))?;
        self.bytes += bytes.len() as u64;
        if self.bytes > BYTES_MAX {
            return Err(format!(
                "the requirements have more than {}",
                Size(BYTES_MAX)
            ));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| format!("'{}' is not UTF-8; save it as UTF-8", file.display()))?;
        Ok(text.trim_start_matches('\u{feff}').to_owned())
    }
}

/// The logical lines of a file with their numbers: joined at backslashes, without comments, surrounding white space and empty lines.
///
/// pip and uv end lines at more characters than `\n`, expand variables, and pip decodes a file as its first lines say. A text in which
/// they could see other lines than this function is refused.
fn lines_of(file: &Path, text: &str) -> Result<Vec<(usize, String)>, RequirementsError> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut begun = None;
    let count = text.split('\n').count();
    for (at, part) in (1..).zip(text.split('\n')) {
        let fail = |problem: String| fail_at(file, at, problem);
        // Windows' line end.
        let part = match at < count {
            true => part.strip_suffix('\r').unwrap_or(part),
            false => part,
        };
        if let Some(c) = part.chars().find(|c| is_confusing(*c)) {
            return Err(fail(format!(
                "has the character {}, which is a line end or a control character; remove it",
                c.escape_unicode()
            )));
        }
        if at <= CODING_LINES && names_coding(part) {
            return Err(fail(
                "names an encoding ('coding:'); save the file as UTF-8 and remove this line"
                    .to_owned(),
            ));
        }
        let part = without_comment(part);
        begun = begun.or(Some(at));
        if let Some(continued) = part.strip_suffix('\\')
            && at < count
        {
            line.push_str(continued);
            continue;
        }
        line.push_str(part);
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.is_empty() {
            let line = words.join(" ");
            if line.contains('\\') {
                return Err(fail(format!(
                    "'{line}' has a backslash that does not end the line; remove it"
                )));
            }
            if words.iter().any(|word| word.starts_with('#')) {
                return Err(fail(format!(
                    "'{line}' has a comment within a continued line; remove it"
                )));
            }
            if line.contains("${") {
                return Err(fail(format!(
                    "'{line}' uses a variable of the environment, which a build does not see; write its value"
                )));
            }
            lines.push((begun.unwrap_or(at), line));
        }
        line.clear();
        begun = None;
    }
    Ok(lines)
}

/// Whether pip would take the encoding of the file from this line, which must be one of the first two (PEP 263).
fn names_coding(line: &str) -> bool {
    line.trim_start().starts_with('#') && (line.contains("coding:") || line.contains("coding="))
}

/// Refuses options that are not known to be harmless. pip accepts abbreviations (`--req`), some of which read other files.
fn check_options(line: &str) -> Result<(), String> {
    let alone = line.starts_with('-');
    let known: &[&str] = if alone { &OPTIONS } else { &OF_A_REQUIREMENT };
    for word in line.split(' ').filter(|word| word.starts_with('-')) {
        let name = word.split('=').next().unwrap_or(word);
        if !known.contains(&name) {
            return Err(format!(
                "'{word}' is not an option that a deployed function can have; these are: {}",
                known.join(", ")
            ));
        }
    }
    if alone && line.contains(['"', '\'']) {
        return Err(format!(
            "'{line}' has quotes; write the option without them"
        ));
    }
    Ok(())
}

fn fail_at(file: &Path, line: usize, problem: String) -> RequirementsError {
    RequirementsError {
        file: format!("{}:{line}", file.display()),
        problem,
    }
}

/// A comment begins with `#` at the start or after whitespace: `pkg @ https://…#egg=x` has none.
fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if c == '#' && before.is_whitespace() {
            return &line[..at];
        }
        before = c;
    }
    line
}

/// The file that `-r FILE` or `-c FILE` includes.
fn included(line: &str) -> Option<&str> {
    let long = ["--requirement", "--constraint"].iter().find_map(|option| {
        line.strip_prefix(option)
            .filter(|rest| rest.starts_with([' ', '=']))
    });
    let short = || {
        ["-r", "-c"]
            .iter()
            .find_map(|option| line.strip_prefix(option))
    };
    long.or_else(short)
        .map(|rest| rest.trim_start_matches([' ', '=']))
}

fn editable(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("--editable")
        .or_else(|| line.strip_prefix("-e").filter(|rest| rest.starts_with(' ')))?;
    Some(rest.trim_start_matches([' ', '=']))
}

fn is_local(line: &str) -> bool {
    let target = line.rsplit_once(" @ ").map_or(line, |(_, target)| target);
    let path = target.split([' ', ';', '[']).next().unwrap_or(target);
    target.starts_with(['.', '/'])
        || target.starts_with("file:")
        || ["--find-links", "-f "]
            .iter()
            .any(|option| line.starts_with(option))
        || (!path.contains("://")
            && (is_archive(path) || path.contains('/'))
            && !line.starts_with('-'))
}

fn is_archive(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    [".whl", ".tar.gz", ".zip", ".tar.bz2"]
        .iter()
        .any(|end| lower.ends_with(end))
}

/// The path with `.` and `..` resolved, if it stays below its start.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir if clean.pop() => {}
            _ => return None,
        }
    }
    Some(clean)
}

const TXT: &str = "requirements.txt";
const PYPROJECT: &str = "pyproject.toml";

/// Pipenv's file, which no installer here reads.
const PIPFILE: &str = "Pipfile";
/// Options that may stand on lines of their own.
const OPTIONS: [&str; 12] = [
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--no-index",
    "--no-binary",
    "--only-binary",
    "--pre",
    "--prefer-binary",
    "--require-hashes",
    "--trusted-host",
];
/// Options that may follow a requirement.
const OF_A_REQUIREMENT: [&str; 3] = ["--hash", "--config-settings", "--global-option"];
/// pip looks for an encoding in this many lines.
const CODING_LINES: usize = 2;
const DEPTH_MAX: usize = 10;
const BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
