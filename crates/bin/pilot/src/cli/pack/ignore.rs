//! Which files are not packed: version control, caches, virtual environments, `.env`, and the files listed in `.pilotignore`.
//!
//! `.pilotignore` has the rules of `.gitignore` (gitignore(5)): one pattern per line, the last matching one decides, and `!`
//! negates a pattern. The built-in patterns come first, so that the file can negate them. For example, `!node_modules/` packs the
//! installed packages, which the daemon otherwise installs for its own machine.
//!
//! A `.pilotignore` in a subfolder has no effect.

use std::fs;
use std::io;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::{Kind, PackError, io_error};

/// The patterns for one folder.
#[derive(Debug)]
pub(in super::super) struct Ignore {
    patterns: Gitignore,
}

impl Ignore {
    /// The built-in patterns and those of the folder's `.pilotignore`.
    pub(in super::super) fn of(folder: &Path, kind: Kind) -> Result<Self, PackError> {
        let path = folder.join(FILE);
        if kind == Kind::Unzipped && path.is_symlink() {
            return Self::parse("", kind).map_err(|(line, problem)| PackError::Ignore {
                path,
                line,
                problem,
            });
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io_error(&path, error)),
        };
        Self::parse(&text, kind).map_err(|(line, problem)| PackError::Ignore {
            path,
            line,
            problem,
        })
    }

    /// The error is the number of a line and what is wrong with it.
    fn parse(text: &str, kind: Kind) -> Result<Self, (usize, String)> {
        let mut patterns = GitignoreBuilder::new("");
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let built_in = match kind {
            Kind::Code => ALWAYS,
            Kind::Layer | Kind::Unzipped => LAYER,
        };
        let always = built_in.iter().copied().zip(std::iter::repeat(0));
        for (line, number) in always.chain(text.lines().zip(1..)) {
            let failed = |problem: String| (number, problem);
            let glob = as_glob(line).map_err(|problem| failed(problem.to_owned()))?;
            patterns
                .add_line(None, &glob)
                .map_err(|error| failed(error.to_string()))?;
        }
        match patterns.build() {
            Ok(patterns) => Ok(Self { patterns }),
            Err(error) => Err((text.lines().count(), error.to_string())),
        }
    }

    /// Whether the path (relative to the folder) itself is left out. The contents of a folder that is left out are not checked.
    pub(in super::super) fn matches(&self, inside: &Path, is_folder: bool) -> bool {
        self.patterns.matched(inside, is_folder).is_ignore()
    }

    /// Whether the path, or a folder that contains it, is left out. For paths that do not come from a walk.
    pub(in super::super) fn covers(&self, inside: &Path) -> bool {
        inside
            .ancestors()
            .filter(|path| !path.as_os_str().is_empty())
            .any(|path| self.matches(path, true) || self.matches(path, false))
    }
}

/// Converts a line to a pattern that the `ignore` crate reads as git does: braces are ordinary characters. A line that git and
/// the crate would read differently is an error.
fn as_glob(line: &str) -> Result<String, &'static str> {
    if line
        .strip_prefix('!')
        .is_some_and(|rest| rest.trim().is_empty())
    {
        return Err("a pattern needs a name");
    }
    let mut glob = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(char) = rest.next() {
        if matches!(char, '{' | '}') {
            glob.push('\\');
        }
        glob.push(char);
        match char {
            '\\' => glob.extend(rest.next()),
            '[' if !line.starts_with('#') => {
                glob.extend(rest.next_if(|next| matches!(next, '!' | '^')));
                // Only as the first character, "]" does not end the set.
                glob.extend(rest.next_if_eq(&']'));
                loop {
                    match rest.next() {
                        None => return Err("'[' without its ']'; write \\[ for the character"),
                        Some('\\' | '[' | '/') => return Err(SET),
                        Some(next) => glob.push(next),
                    }
                    if glob.ends_with(']') {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(glob)
}

const FILE: &str = ".pilotignore";
const SET: &str = "between '[' and ']', only characters and ranges such as a-z are read: neither \\, [ and / nor names such as [:alpha:]";
/// Left out of every package. This includes the manifest: it is sent as the configuration, and a changed key of one function must
/// not make a new version of the others.
const ALWAYS: &[&str] = &[
    ".git/",
    ".hg/",
    ".svn/",
    ".git",
    ".venv",
    ".pilot/",
    "__pycache__/",
    "node_modules/",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    "*.pyc",
    ".DS_Store",
    // Passwords for a developer's own machine: secrets are for functions.
    ".env",
    ".env.*",
    "/pilot.toml",
    "/.pilotignore",
];

/// Left out of every layer. Installed packages are what layers are for.
const LAYER: &[&str] = &[
    ".git/",
    ".hg/",
    ".svn/",
    ".git",
    "__pycache__/",
    ".DS_Store",
    ".env",
    ".env.*",
    "/.pilotignore",
];

#[cfg(test)]
mod tests;
