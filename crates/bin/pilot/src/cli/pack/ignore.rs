//! What is not packed: version control, caches, virtual environments, and what `.pilotignore` lists.
//!
//! `.pilotignore` has a pattern per line, `#` begins a comment. `*` is any text within a name, `?` any character, `**`
//! any number of folders. A pattern without a slash fits a name at any depth; one with a slash fits from the top. A
//! slash at its end makes it fit folders only. `!` takes back a pattern that always holds: `!node_modules/` packs what is
//! installed there, which is otherwise installed by the daemon, for its own machine. It takes back nothing else.

use std::fs;
use std::io;
use std::path::Path;

use super::{PackError, io_error};

/// The patterns that hold for one folder.
#[derive(Debug)]
pub(in super::super) struct Ignore {
    patterns: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    /// One glob per folder; more than one, or `from_top`, is matched from the top.
    parts: Vec<String>,
    from_top: bool,
    folders_only: bool,
}

impl Ignore {
    /// Those that always hold and those of the folder's `.pilotignore`.
    pub(in super::super) fn of(folder: &Path) -> Result<Self, PackError> {
        let path = folder.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).map_err(|(line, problem)| PackError::Ignore {
                path,
                line,
                problem,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::always()),
            Err(error) => Err(io_error(&path, error)),
        }
    }

    fn always() -> Self {
        Self::always_but(&[])
    }

    fn always_but(taken_back: &[&str]) -> Self {
        let patterns = ALWAYS
            .iter()
            .filter(|line| !taken_back.contains(line))
            .filter_map(|line| Pattern::parse(line).ok().flatten());
        Self {
            patterns: patterns.collect(),
        }
    }

    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut taken_back = Vec::new();
        let mut patterns = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if let Some(wanted) = line.trim().strip_prefix('!') {
                taken_back.extend(always_named(wanted).ok_or((index + 1, NOT_ALWAYS))?);
                continue;
            }
            let pattern = Pattern::parse(line).map_err(|problem| (index + 1, problem))?;
            patterns.extend(pattern);
        }
        let mut ignore = Self::always_but(&taken_back);
        ignore.patterns.extend(patterns);
        Ok(ignore)
    }

    /// Whether the path (relative to the folder) itself is left out. What lies below a folder that is left out is not
    /// asked about.
    pub(in super::super) fn matches(&self, inside: &Path, is_folder: bool) -> bool {
        let names: Vec<String> = inside
            .iter()
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.patterns
            .iter()
            .any(|pattern| pattern.matches(&names, is_folder))
    }

    /// Whether the path, or a folder that it lies in, is left out. For paths that come from elsewhere than a walk.
    pub(in super::super) fn covers(&self, inside: &Path) -> bool {
        inside
            .ancestors()
            .filter(|path| !path.as_os_str().is_empty())
            .any(|path| self.matches(path, true) || self.matches(path, false))
    }
}

impl Pattern {
    /// `None`: an empty line or a comment.
    fn parse(line: &str) -> Result<Option<Self>, &'static str> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let folders_only = line.ends_with('/');
        let body = line.trim_end_matches('/');
        let from_top = body.contains('/');
        let parts: Vec<String> = body
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .map(str::to_owned)
            .collect();
        if parts.is_empty() {
            return Err("a pattern needs a name");
        }
        Ok(Some(Self {
            parts,
            from_top,
            folders_only,
        }))
    }

    fn matches(&self, names: &[&str], is_folder: bool) -> bool {
        if self.folders_only && !is_folder {
            return false;
        }
        if self.from_top {
            return path_fits(&self.parts, names);
        }
        match (self.parts.as_slice(), names.last()) {
            ([part], Some(name)) => name_fits(part, name),
            _ => false,
        }
    }
}

fn path_fits(parts: &[String], names: &[&str]) -> bool {
    match (parts.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((part, rest)), _) if part == "**" => {
            path_fits(rest, names)
                || names
                    .split_first()
                    .is_some_and(|(_, below)| path_fits(parts, below))
        }
        (Some((part, rest)), Some((name, below))) => {
            name_fits(part, name) && path_fits(rest, below)
        }
        _ => false,
    }
}

/// Matches `*` and `?`. Only the last `*` is ever taken back, so it takes at most pattern × name steps.
fn name_fits(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut seen) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some('*') => {
                last_star = Some((at, seen));
                at += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => match last_star {
                Some((star, from)) => {
                    last_star = Some((star, from + 1));
                    at = star + 1;
                    seen = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// The patterns that always hold and are written like this, with or without slashes around them. `None`: there are none.
fn always_named(wanted: &str) -> Option<Vec<&'static str>> {
    let bare = |text: &str| text.trim().trim_matches('/').to_owned();
    let named: Vec<&str> = ALWAYS
        .iter()
        .copied()
        .filter(|line| bare(line) == bare(wanted))
        .collect();
    (!named.is_empty()).then_some(named)
}

const FILE: &str = ".pilotignore";
const NOT_ALWAYS: &str = "'!' takes back only what is always left out, such as !node_modules/ or !.venv; otherwise list what is to be left out";

/// Left out of every package. The manifest is, too: it comes along as the configuration, and a key that changes for one
/// function must not make a new version of its neighbours.
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
    "/pilot.toml",
    "/.pilotignore",
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ignores(text: &str, path: &str, is_folder: bool) -> bool {
        Ignore::parse(text)
            .unwrap()
            .matches(Path::new(path), is_folder)
    }

    #[test]
    fn caches_and_version_control_are_always_left_out() {
        for (path, is_folder) in [
            (".git", true),
            ("lib/__pycache__", true),
            (".venv", true),
            ("node_modules", true),
            ("lib/a.pyc", false),
            ("pilot.toml", false),
        ] {
            assert!(ignores("", path, is_folder), "{path}");
        }
        for path in [
            "app.py",
            "lib/pilot.toml",
            ".gitignore",
            "pycache",
            "__init__.py",
        ] {
            assert!(!ignores("", path, false), "{path}");
        }
    }

    #[test]
    fn a_name_fits_at_any_depth_and_a_path_from_the_top() {
        assert!(ignores("*.log", "a/b/c.log", false));
        assert!(ignores("/data", "data", true));
        assert!(!ignores("/data", "a/data", true));
        assert!(ignores("a/b*", "a/bcd", false));
        assert!(!ignores("a/b*", "x/a/bcd", false));
        assert!(ignores("a/**/z", "a/z", false));
        assert!(ignores("a/**/z", "a/b/c/z", false));
        assert!(!ignores("a/**/z", "a/b/c/y", false));
        assert!(ignores("tests/", "tests", true));
        assert!(!ignores("tests/", "tests", false));
        assert!(ignores("?.txt", "é.txt", false));
        assert!(!ignores("# *.py\n\n", "a.py", false));
    }

    #[test]
    fn what_lies_below_a_folder_that_is_left_out_is_covered() {
        let ignore = Ignore::parse("tests/\n").unwrap();
        assert!(ignore.covers(Path::new("tests/data/a.json")));
        assert!(ignore.covers(Path::new(".git/index.lock")));
        assert!(!ignore.covers(Path::new("lib/a.json")));
    }

    #[test]
    fn what_is_always_left_out_can_be_taken_back() {
        for text in [
            "!node_modules/",
            "  !node_modules\n*.log",
            "!/node_modules/\n",
        ] {
            assert!(!ignores(text, "node_modules", true), "{text}");
            assert!(!ignores(text, "lib/node_modules", true), "{text}");
            assert!(ignores(text, ".venv", true), "{text}");
        }
        assert!(
            ignores(
                "!node_modules/\nnode_modules/.cache",
                "node_modules/.cache",
                true
            ),
            "what is listed holds"
        );
        assert!(!ignores("!.git", ".git", true), "both of its patterns");
    }

    #[test]
    fn other_negation_is_refused_with_its_line() {
        let (line, problem) = Ignore::parse("a\n!b\n").unwrap_err();
        assert_eq!(line, 2);
        assert!(problem.contains("!node_modules/"));
    }

    proptest! {
        #[test]
        fn a_name_without_wildcards_fits_itself_alone(name in "[a-z.]{1,12}", other in "[a-z.]{1,12}") {
            prop_assert!(name_fits(&name, &name));
            prop_assert_eq!(name_fits(&name, &other), name == other);
        }

        #[test]
        fn a_star_takes_any_text(before in "[a-b]{0,4}", taken in "[a-b]{0,8}", after in "[a-b]{0,4}") {
            let pattern = format!("{before}*{after}");
            let name = format!("{before}{taken}{after}");
            prop_assert!(name_fits(&pattern, &name));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,100}", path in "[a-z/]{1,20}") {
            if let Ok(ignore) = Ignore::parse(&text) {
                let _ = ignore.covers(Path::new(&path));
            }
        }
    }
}
