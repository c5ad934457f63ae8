//! A function's Node.js dependencies: those of a `package.json` beside its code, and the lockfile that pins them.
//!
//! npm does not get the user's `package.json`, but one with only the fields that decide what is installed. These fields are hashed,
//! too. So the key order, white space, a new version number or a test script do not change the part. The package's own scripts do
//! not run, because its code is not there.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use pilot_model::size::Size;
use serde_json::{Map, Value};

use crate::environment::is_confusing;
use crate::hash::Fields;

/// A set of packages.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Package {
    /// The fields of `package.json` that decide what is installed, with sorted keys.
    pub(super) manifest: Value,
    pub(super) lock: Option<Lock>,
    /// The lines of the `.npmrc` beside it that choose registries and packages.
    pub(super) npmrc: Option<String>,
    /// Name and required version of each dependency.
    pub(super) declared: BTreeMap<String, String>,
    /// Whether a dependency is a folder beside the code, so that equal fields may mean different packages.
    pub(super) local: bool,
}

/// A lockfile.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lock {
    /// `package-lock.json` or `npm-shrinkwrap.json`.
    pub(super) file: &'static str,
    /// Its content, independent of key order and white space. npm reads exactly what is hashed.
    pub(super) canonical: Value,
}

/// Why a package's files cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub(crate) struct PackageError {
    pub(crate) file: &'static str,
    /// What is wrong, and what to change.
    pub(crate) problem: String,
}

/// What is beside the code.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// No dependencies.
    Nothing,
    /// Dependencies together with `node_modules`, which is used as it is.
    Brought,
    /// Dependencies to install.
    Wanted(Box<Package>),
}

/// The packages that the code in `code` requires.
pub(super) fn find(code: &Path) -> Result<Found, PackageError> {
    let Some(text) = read(code, PACKAGE_JSON)? else {
        return Ok(Found::Nothing);
    };
    let Value::Object(document) = parse(PACKAGE_JSON, &text)? else {
        return Err(fail(
            PACKAGE_JSON,
            "is not an object: it must begin with {".to_owned(),
        ));
    };
    let mut declared = BTreeMap::new();
    for field in INSTALLED {
        declared.extend(dependencies(&document, field)?);
    }
    let workspaces = document
        .get("workspaces")
        .is_some_and(|value| !is_empty(value));
    if declared.is_empty() && !workspaces {
        return Ok(Found::Nothing);
    }
    if code.join(NODE_MODULES).is_dir() {
        return Ok(Found::Brought);
    }
    let lock = find_lock(code)?;
    // The dev dependencies must agree with the lockfile, although they are not installed. Without a lockfile, npm would look them up
    // for no purpose, and could fail.
    let dev = lock.as_ref().map(|_| "devDependencies");
    let kept: Map<String, Value> = FIELDS
        .iter()
        .copied()
        .chain(dev)
        .filter_map(|field| Some((field.to_owned(), document.get(field)?.clone())))
        .collect();
    let local = workspaces || declared.values().any(|wanted| is_local(wanted));
    Ok(Found::Wanted(Box::new(Package {
        manifest: sorted(&Value::Object(kept)),
        lock,
        npmrc: read(code, NPMRC)?.as_deref().map(npmrc).transpose()?,
        declared,
        local,
    })))
}

impl Package {
    /// Hashes everything that decides what is installed, except Node.js itself.
    pub(super) fn hash(&self, hash: &mut Fields, code_hash: &str) {
        hash.add(CANONICAL).add(self.manifest.to_string());
        match &self.lock {
            Some(lock) => hash.add("locked").add(lock.canonical.to_string()),
            None => hash.add("open"),
        };
        hash.add(self.npmrc.as_deref().unwrap_or(""));
        if self.local {
            hash.add(code_hash);
        }
    }
}

/// What is said of a lockfile of another package manager, if there is none of npm. `None`: there is nothing to say.
pub(crate) fn unread_lock(code: &Path) -> Option<String> {
    let has = |file: &&str| code.join(file).is_file();
    if LOCKS.iter().any(has) {
        return None;
    }
    let file = OTHER_LOCKS.iter().copied().find(has)?;
    Some(format!(
        "{file} is not read: versions are not pinned; `npm install --package-lock-only` makes a package-lock.json"
    ))
}

fn find_lock(code: &Path) -> Result<Option<Lock>, PackageError> {
    for file in LOCKS {
        if let Some(text) = read(code, file)? {
            let canonical = sorted(&parse(file, &text)?);
            return Ok(Some(Lock { file, canonical }));
        }
    }
    Ok(None)
}

/// The lines of an `.npmrc` that choose registries and packages. Other lines may name programs that npm runs, or folders. npm reads
/// exactly what is hashed.
fn npmrc(text: &str) -> Result<String, PackageError> {
    let mut kept = String::new();
    for (at, line) in (1..).zip(text.lines()) {
        let problem = |what: &str| Err(fail(NPMRC, format!("line {at} {what}")));
        if line.contains(is_confusing) {
            return problem("has a line end or a control character within it; remove it");
        }
        let line = line.trim();
        let key = line.split('=').next().unwrap_or(line).trim();
        let known = NPMRC_KEYS.contains(&key)
            || key.starts_with("//")
            || (key.starts_with('@') && key.ends_with(":registry"));
        if !known {
            continue;
        }
        if line.contains("${") {
            return problem(
                "uses a variable of the environment, which a build does not see; write its value",
            );
        }
        kept.push_str(line);
        kept.push('\n');
    }
    Ok(kept)
}

/// The dependencies of a field: name and required version.
fn dependencies(
    document: &Map<String, Value>,
    field: &str,
) -> Result<BTreeMap<String, String>, PackageError> {
    let all = match document.get(field) {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(all)) => all,
        Some(_) => {
            let problem =
                format!("{field} must be an object, for example {{\"express\": \"^5.0.0\"}}");
            return Err(fail(PACKAGE_JSON, problem));
        }
    };
    let pairs = all.iter().map(|(name, wanted)| match wanted.as_str() {
        Some(wanted) => Ok((name.clone(), wanted.to_owned())),
        None => Err(fail(
            PACKAGE_JSON,
            format!(
                "{field}.{} is {wanted}, must be a version in quotes, for example \"^5.0.0\"",
                name.escape_debug()
            ),
        )),
    });
    pairs.collect()
}

fn is_local(wanted: &str) -> bool {
    ["file:", "link:", "workspace:", "./", "../", "/", "~/"]
        .iter()
        .any(|start| wanted.starts_with(start))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

/// The same value with the keys of every object sorted.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(
                ordered
                    .into_iter()
                    .map(|(key, value)| (key.clone(), sorted(value)))
                    .collect(),
            )
        }
        Value::Array(values) => Value::Array(values.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn parse(file: &'static str, text: &str) -> Result<Value, PackageError> {
    serde_json::from_str(text).map_err(|error| fail(file, format!("is not JSON: {error}")))
}

/// The file's text; `None`: there is none.
fn read(code: &Path, file: &'static str) -> Result<Option<String>, PackageError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(code.join(file))?
            .take(BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(file, format!("cannot be read: {error}"))),
    };
    if bytes.len() as u64 > BYTES_MAX {
        return Err(fail(file, format!("has more than {}", Size(BYTES_MAX))));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text.trim_start_matches('\u{feff}').to_owned())),
        Err(_) => Err(fail(file, "is not UTF-8; save it as UTF-8".to_owned())),
    }
}

fn fail(file: &'static str, problem: String) -> PackageError {
    PackageError { file, problem }
}

pub(super) const PACKAGE_JSON: &str = "package.json";
pub(super) const NODE_MODULES: &str = "node_modules";
pub(super) const NPMRC: &str = ".npmrc";
/// npm uses the first one that exists.
const LOCKS: [&str; 2] = ["npm-shrinkwrap.json", "package-lock.json"];
/// Those of pnpm and Yarn.
const OTHER_LOCKS: [&str; 2] = ["pnpm-lock.yaml", "yarn.lock"];
/// The keys of an `.npmrc` that are used.
const NPMRC_KEYS: [&str; 12] = [
    "registry",
    "legacy-peer-deps",
    "strict-peer-deps",
    "always-auth",
    "ignore-scripts",
    "engine-strict",
    "before",
    "tag",
    "include",
    "omit",
    "install-strategy",
    "prefer-dedupe",
];
/// Begins the hash of packages. Older daemons gave npm other bytes than they hashed, so their environments are not used again.
const CANONICAL: &str = "canonical packages 2";
/// Fields whose packages are installed.
const INSTALLED: [&str; 2] = ["dependencies", "optionalDependencies"];
/// Fields that decide what is installed.
const FIELDS: [&str; 7] = [
    "dependencies",
    "optionalDependencies",
    "peerDependencies",
    "peerDependenciesMeta",
    "overrides",
    "workspaces",
    "allowScripts",
];
/// Largest file. A lockfile of a thousand packages has half a megabyte.
const BYTES_MAX: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn found(files: &[(&str, &str)]) -> Found {
        find(code(files).path()).unwrap()
    }

    fn hash(files: &[(&str, &str)]) -> String {
        match found(files) {
            Found::Wanted(package) => {
                let mut fields = Fields::default();
                package.hash(&mut fields, "code");
                fields.hex()
            }
            other => panic!("{other:?}"),
        }
    }

    fn refusal(files: &[(&str, &str)]) -> String {
        find(code(files).path()).unwrap_err().to_string()
    }

    const EXPRESS: &str = r#"{"dependencies": {"express": "^5"}}"#;

    #[test]
    fn a_lockfile_that_is_not_read_is_named_unless_there_is_one_of_npm() {
        for file in ["pnpm-lock.yaml", "yarn.lock"] {
            let package = ("package.json", EXPRESS);
            let said = unread_lock(code(&[package, (file, "")]).path()).unwrap();
            assert!(said.starts_with(&format!("{file} is not read")), "{said}");
            let locked = code(&[package, (file, ""), ("package-lock.json", "{}")]);
            assert_eq!(unread_lock(locked.path()), None);
        }
        assert_eq!(unread_lock(code(&[("package.json", EXPRESS)]).path()), None);
    }

    #[test]
    fn code_without_dependencies_requires_nothing() {
        for text in [
            "{}",
            r#"{"type": "module", "scripts": {"test": "x"}}"#,
            r#"{"dependencies": {}, "devDependencies": {"eslint": "9"}}"#,
        ] {
            assert_eq!(found(&[("package.json", text)]), Found::Nothing, "{text}");
        }
        assert_eq!(found(&[("index.js", "")]), Found::Nothing);
    }

    #[test]
    fn order_spaces_and_fields_about_something_else_do_not_count() {
        let one = hash(&[(
            "package.json",
            r#"{"name":"a","version":"1.0.0","dependencies":{"a":"1","b":"2"},"scripts":{"postinstall":"x"}}"#,
        )]);
        let other = hash(&[(
            "package.json",
            "\u{feff}{\n  \"dependencies\": {\"b\": \"2\", \"a\": \"1\"},\n  \"devDependencies\": {\"c\": \"3\"}\n}\n",
        )]);
        assert_eq!(one, other);
        let newer = hash(&[("package.json", r#"{"dependencies":{"a":"1","b":"3"}}"#)]);
        assert_ne!(one, newer);
    }

    #[test]
    fn a_lockfile_counts_whatever_its_spaces() {
        let open = hash(&[("package.json", EXPRESS)]);
        let lock = |text: &str| hash(&[("package.json", EXPRESS), ("package-lock.json", text)]);
        let locked = lock(r#"{"lockfileVersion":3,"packages":{}}"#);
        assert_ne!(open, locked);
        assert_eq!(
            locked,
            lock("{\"packages\": {},\n \"lockfileVersion\": 3}\n")
        );
        assert_ne!(locked, lock(r#"{"lockfileVersion":3,"packages":{"x":{}}}"#));
    }

    #[test]
    fn a_shrinkwrap_goes_before_a_lockfile() {
        let files = [
            ("package.json", EXPRESS),
            ("package-lock.json", "{}"),
            ("npm-shrinkwrap.json", "{}"),
        ];
        match found(&files) {
            Found::Wanted(package) => {
                assert_eq!(package.lock.unwrap().file, "npm-shrinkwrap.json");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn node_modules_in_the_code_win() {
        let files = [
            ("package.json", EXPRESS),
            ("node_modules/express/index.js", ""),
        ];
        assert_eq!(found(&files), Found::Brought);
    }

    #[test]
    fn packages_beside_the_code_are_local() {
        for (text, local) in [
            (r#"{"dependencies": {"a": "file:./a"}}"#, true),
            (r#"{"dependencies": {"a": "../a"}}"#, true),
            (r#"{"dependencies": {"a": "1"}, "workspaces": ["b"]}"#, true),
            (r#"{"workspaces": ["b"]}"#, true),
            (EXPRESS, false),
            (
                r#"{"dependencies": {"a": "git+https://example.org/a.git"}}"#,
                false,
            ),
        ] {
            match found(&[("package.json", text)]) {
                Found::Wanted(package) => assert_eq!(package.local, local, "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn no_character_hides_a_line_of_an_npmrc() {
        for end in ["\r", "\x0c", "\u{2028}", "\0"] {
            let npmrc = format!("tag=x\nregistry=https://a.example{end}script-shell=./evil\n");
            let problem = refusal(&[("package.json", EXPRESS), (".npmrc", &npmrc)]);
            assert!(
                problem.starts_with(".npmrc: line 2 has a line end"),
                "{problem}"
            );
        }
        let variable = "//a.example/:_authToken=${TOKEN}";
        let problem = refusal(&[("package.json", EXPRESS), (".npmrc", variable)]);
        assert!(
            problem.contains("a variable of the environment"),
            "{problem}"
        );
    }

    #[test]
    fn what_cannot_be_read_says_which_file_and_what_to_change() {
        let problem = refusal(&[("package.json", "{\"dependencies\": {\n  \"a\" \"1\"}}")]);
        assert!(
            problem.starts_with("package.json: is not JSON: expected `:` at line 2"),
            "{problem}"
        );
        assert!(
            refusal(&[("package.json", EXPRESS), ("package-lock.json", "<<<<<<<")])
                .starts_with("package-lock.json: is not JSON: ")
        );
        assert_eq!(
            refusal(&[("package.json", r#"{"dependencies": {"a": 1}}"#)]),
            "package.json: dependencies.a is 1, must be a version in quotes, for example \"^5.0.0\""
        );
        assert_eq!(
            refusal(&[("package.json", r#"{"dependencies": ["a"]}"#)]),
            "package.json: dependencies must be an object, for example {\"express\": \"^5.0.0\"}"
        );
        assert_eq!(
            refusal(&[("package.json", "[]")]),
            "package.json: is not an object: it must begin with {"
        );
    }

    #[test]
    fn npm_is_given_no_scripts_of_the_package_itself() {
        let text = r#"{"dependencies": {"a": "1"}, "scripts": {"postinstall": "husky"}, "devDependencies": {"husky": "9"}}"#;
        match found(&[("package.json", text)]) {
            Found::Wanted(package) => {
                assert_eq!(
                    package.manifest.to_string(),
                    r#"{"dependencies":{"a":"1"}}"#
                );
            }
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{}:,\"a-z0-9 \\n]{0,200}") {
            let _ = find(code(&[("package.json", &text)]).path());
        }

        #[test]
        fn order_never_counts(names in prop::collection::btree_set("[a-z]{1,8}", 1..6)) {
            let of = |names: &mut dyn Iterator<Item = &String>| {
                let pairs: Vec<String> = names.map(|name| format!("\"{name}\": \"1\"")).collect();
                hash(&[("package.json", &format!("{{\"dependencies\": {{{}}}}}", pairs.join(", ")))])
            };
            prop_assert_eq!(of(&mut names.iter()), of(&mut names.iter().rev()));
        }
    }
}
