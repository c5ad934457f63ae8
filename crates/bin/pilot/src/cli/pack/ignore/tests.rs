use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::*;

fn ignores(text: &str, path: &str, is_folder: bool) -> bool {
    Ignore::parse(text, Kind::Code)
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
        (".env", false),
        ("conf/.env.local", false),
        ("pilot.toml", false),
    ] {
        assert!(ignores("", path, is_folder), "{path}");
    }
    for path in [
        "app.py",
        "lib/pilot.toml",
        ".gitignore",
        "env",
        ".environment",
        "pycache",
        "__init__.py",
    ] {
        assert!(!ignores("", path, false), "{path}");
    }
}

#[test]
fn what_lies_below_a_folder_that_is_left_out_is_covered() {
    let ignore = Ignore::parse("tests/\n!tests/data/a.json", Kind::Code).unwrap();
    assert!(ignore.covers(Path::new("tests/data/a.json")));
    assert!(ignore.covers(Path::new(".git/index.lock")));
    assert!(!ignore.covers(Path::new("lib/a.json")));
}

#[test]
fn what_is_always_left_out_can_be_taken_back() {
    for text in ["!node_modules/", "!node_modules\n*.log"] {
        assert!(!ignores(text, "node_modules", true), "{text}");
        assert!(!ignores(text, "lib/node_modules", true), "{text}");
        assert!(ignores(text, ".venv", true), "{text}");
    }
    let below = "!node_modules/\nnode_modules/.cache";
    assert!(ignores(below, "node_modules/.cache", true));
    assert!(!ignores("!.git", ".git", true), "both of its patterns");
    // As in git, a leading slash matches only at the top.
    assert!(ignores("!/node_modules/", "lib/node_modules", true));
}

#[test]
fn what_git_and_we_would_read_in_different_ways_is_refused_with_its_line() {
    for pattern in ["[[:alpha:]]", "[a\\]]", "[a/b]", "[ab", "[z-a]", "a\\", "!"] {
        let (line, problem) = Ignore::parse(&format!("a\n{pattern}\n"), Kind::Code).unwrap_err();
        assert_eq!(line, 2, "{pattern}: {problem}");
    }
}

/// The files of the tree that is compared with git.
const FILES: &[&str] = &[
    "a/b/c",
    "a/b/a",
    "a/a.log",
    "a/**/q",
    "a.log",
    "b.log",
    "b/a/b",
    "b/b",
    "c/a/c",
    "d/a.log",
    "d/e/f/a",
    "abc/c",
    "ab",
    "ac/b",
    "aXb",
    "z",
    "é.txt",
    "a b",
    "a ",
    "a,b",
    "a.txt",
    "a.{log,txt}",
    "{a,b}",
    ".a",
    "#a",
    "!a",
    "*",
    "?",
    "\\",
    "-",
    "a]",
    "[a",
    "[",
    "]",
    "A",
    "A.LOG",
    "(a)",
    "a+",
    "a|b",
    "^a",
    "$a",
    "~a",
];

const PATTERNS: &[&str] = &[
    "a",
    "a/",
    "/a",
    "a/b",
    "/a/b",
    "a/b/",
    "b/",
    "./a",
    "../a",
    "a/./b",
    "a//b",
    "*",
    "!*",
    "/*",
    "*/b",
    "*/*/c",
    "a/*",
    ".*",
    "*.*",
    "*.log",
    "!a.log",
    "*.LOG",
    "A",
    "a*",
    "*a*",
    "*é*",
    "a*b",
    "a?",
    "?",
    "?.txt",
    "é",
    "**",
    "**/",
    "/**",
    "**/a",
    "**/a/b",
    "**/c/",
    "a/**",
    "a/**/c",
    "c/**/",
    "a**",
    "**a",
    "**b",
    "b**/",
    "***",
    "a***b",
    "[ab]",
    "[!a]",
    "[^a]",
    "[a-c].log",
    "[]a]",
    "[!]a]",
    "a]",
    "[.]a",
    "[*]",
    "[?]",
    "[{}]",
    "\\a",
    "\\*",
    "\\!a",
    "!a",
    "!!a",
    "\\#a",
    "#a",
    "#{",
    "\\\\",
    "\\[a",
    "a\\/b",
    "\\{a,b}",
    "a ",
    "a\\ ",
    " a",
    "a/ ",
    "{a,b}",
    "a,b",
    "a.{log,txt}",
    ".a",
    "$a",
    "(a)",
    "a|b",
    "a+",
    "^a",
    "~a",
    "/",
    "//",
    "",
];

/// A repository with those files.
struct Repository {
    folder: tempfile::TempDir,
    /// Each file, and each folder that contains one; the second value says whether it is a folder.
    paths: Vec<(String, bool)>,
}

impl Repository {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("git")
            .args(["init", "--quiet"])
            .current_dir(folder.path())
            .status();
        assert!(made.unwrap().success());
        let mut paths = Vec::new();
        for file in FILES {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
            let above = Path::new(file).ancestors().skip(1);
            let above = above.filter_map(|path| path.to_str().filter(|text| !text.is_empty()));
            paths.extend(above.map(|path| (path.to_owned(), true)));
            paths.push(((*file).to_owned(), false));
        }
        paths.sort();
        paths.dedup();
        Self { folder, paths }
    }

    /// The paths that git leaves out with this `.gitignore`.
    fn by_git(&self, text: &str) -> Vec<&str> {
        fs::write(self.folder.path().join(".gitignore"), text).unwrap();
        let mut git = Command::new("git")
            .args(["check-ignore", "--no-index", "-z", "--stdin"])
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let asked: String = self
            .paths
            .iter()
            .map(|(path, _)| format!("{path}\0"))
            .collect();
        git.stdin
            .take()
            .unwrap()
            .write_all(asked.as_bytes())
            .unwrap();
        let answer = git.wait_with_output().unwrap();
        let answer = String::from_utf8(answer.stdout).unwrap();
        let left_out: Vec<&str> = answer.split('\0').collect();
        self.these(|path, _| left_out.contains(&path))
    }

    /// The paths that we leave out with this `.pilotignore`.
    fn by_us(&self, text: &str) -> Vec<&str> {
        let ignore = Ignore::parse(text, Kind::Code).unwrap();
        self.these(|path, is_folder| {
            let mut above = Path::new(path).ancestors().skip(1);
            ignore.matches(Path::new(path), is_folder)
                || above.any(|path| !path.as_os_str().is_empty() && ignore.matches(path, true))
        })
    }

    fn these(&self, left_out: impl Fn(&str, bool) -> bool) -> Vec<&str> {
        let paths = self.paths.iter();
        paths
            .filter(|(path, is_folder)| left_out(path, *is_folder))
            .map(|(path, _)| path.as_str())
            .collect()
    }
}

#[test]
fn patterns_mean_what_they_mean_to_git() {
    let repository = Repository::new();
    for pattern in PATTERNS {
        assert_eq!(
            repository.by_us(pattern),
            repository.by_git(pattern),
            "{pattern:?}"
        );
    }
    // The last matching one decides.
    let mut random = proptest::test_runner::TestRunner::deterministic();
    let several =
        proptest::collection::vec((proptest::sample::select(PATTERNS), any::<bool>()), 2..5);
    for _ in 0..300 {
        let lines = several.new_tree(&mut random).unwrap().current();
        let take_back = |(pattern, back): &(&str, bool)| match pattern.trim() {
            "" => String::new(),
            _ if *back => format!("!{pattern}\n"),
            _ => format!("{pattern}\n"),
        };
        let text: String = lines.iter().map(take_back).collect();
        assert_eq!(
            repository.by_us(&text),
            repository.by_git(&text),
            "{text:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,100}", path in "[a-z/]{1,20}") {
        if let Ok(ignore) = Ignore::parse(&text, Kind::Code) {
            let _ = ignore.covers(Path::new(&path));
        }
    }
}
