//! No circles of imports between the files of a crate. The test reads the sources as tokens and follows each path that begins with
//! `crate`, `self`, `super` or the name of a module below, also inside macros, to the file that defines what it names: a re-export hides
//! nothing. Code for tests does not count.
//!
//! A name that `use module::*` brings counts for that module, also where the module has it from another.
//!
//! A file and the files of its folder are one subject: what a file below takes from the file above it closes no circle.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cargo_metadata::MetadataCommand;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names from the root of a crate to a module, or to an item. The root has none.
type Names = Vec<String>;

/// A module.
#[derive(Debug, Default)]
struct Module {
    /// The module that is a file and has this one in it: itself, unless it is written inside of another.
    file: Names,
    /// What is defined here, besides modules.
    defined: BTreeSet<String>,
    /// What `use` brings here: its name here, and its path from the root.
    brought: BTreeMap<String, Names>,
    /// The modules of which `use` brings everything.
    globs: Vec<Names>,
    /// All paths within the crate that are named here.
    named: BTreeSet<Names>,
}

/// The modules of a crate that are not for tests alone.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Names, Module>);

impl Modules {
    /// Reads a crate. `text` returns the source of a module that is a file.
    fn read(text: &dyn Fn(&[String]) -> String) -> Self {
        let mut modules = Self::default();
        modules.add_file(Names::new(), text);
        modules
    }

    fn add_file(&mut self, at: Names, text: &dyn Fn(&[String]) -> String) {
        let tokens: TokenStream = text(&at).parse().unwrap();
        for file in self.add(&at, &at, tokens) {
            self.add_file(file, text);
        }
    }

    /// Adds the module `at` that is written in `file`, and those written inside it. Returns the modules below that are other files.
    fn add(&mut self, at: &Names, file: &Names, tokens: TokenStream) -> Vec<Names> {
        let tokens = without_tests(tokens);
        let mut reader = Reader {
            at,
            module: Module {
                file: file.clone(),
                ..Module::default()
            },
            below: BTreeSet::new(),
        };
        let (inside, mut files) = (modules_inside(&tokens), Vec::new());
        reader.below = inside.iter().map(|(name, _)| name.clone()).collect();
        reader.items(&tokens);
        reader.paths(&tokens);
        self.0.insert(at.clone(), reader.module);
        for (name, body) in inside {
            let below = joined(at, [name]);
            match body {
                Some(body) => files.extend(self.add(&below, file, body)),
                None => files.push(below),
            }
        }
        files
    }

    /// The files that a path leads through after the root, down to the one that defines what it names.
    fn files_of(&self, path: &[String], seen: &mut BTreeSet<Names>) -> BTreeSet<Names> {
        let mut files = BTreeSet::new();
        if !seen.insert(path.to_vec()) {
            return files;
        }
        let depth = (0..=path.len())
            .rev()
            .find(|depth| self.0.contains_key(&path[..*depth]))
            .unwrap();
        let module = &self.0[&path[..depth]];
        files.insert(module.file.clone());
        let Some((name, rest)) = path[depth..].split_first() else {
            return files;
        };
        if let Some(target) = module.brought.get(name) {
            let target = joined(target, rest.iter().cloned());
            files.extend(self.files_of(&target, seen));
        } else if !module.defined.contains(name) {
            for glob in &module.globs {
                let target = joined(glob, path[depth..].iter().cloned());
                if self.has(&target) {
                    files.extend(self.files_of(&target, seen));
                }
            }
        }
        files
    }

    /// Whether a path that a glob could mean names something.
    fn has(&self, path: &[String]) -> bool {
        let (name, above) = path.split_last().unwrap();
        let in_module =
            |module: &Module| module.defined.contains(name) || module.brought.contains_key(name);
        self.0.contains_key(path) || self.0.get(above).is_some_and(in_module)
    }

    /// Which files each file imports, except the files above it.
    fn imports(&self) -> BTreeMap<Names, BTreeSet<Names>> {
        let mut imports: BTreeMap<Names, BTreeSet<Names>> = BTreeMap::new();
        for module in self.0.values() {
            let to = imports.entry(module.file.clone()).or_default();
            for path in &module.named {
                to.extend(self.files_of(path, &mut BTreeSet::new()));
            }
            to.retain(|to| !module.file.starts_with(to));
        }
        imports
    }

    /// The circles: files that import each other, directly or through others, and what each imports of the same circle.
    fn circles(&self) -> Vec<BTreeMap<Names, BTreeSet<Names>>> {
        let imports = self.imports();
        let reached = |from: &Names| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(file) = next.pop() {
                next.extend(
                    imports[file]
                        .iter()
                        .filter(|to| reached.insert((*to).clone())),
                );
            }
            reached
        };
        let reached: BTreeMap<&Names, BTreeSet<Names>> =
            imports.keys().map(|file| (file, reached(file))).collect();
        let circle = |file: &Names| -> BTreeSet<Names> {
            let back = |other: &&Names| reached[other].contains(file);
            reached[file].iter().filter(back).cloned().collect()
        };
        let circles: BTreeSet<BTreeSet<Names>> = imports.keys().map(circle).collect();
        let within = |circle: &BTreeSet<Names>| {
            let of = |file: &Names| (file.clone(), &imports[file] & circle);
            circle.iter().map(of).collect()
        };
        let found = circles.iter().filter(|circle| !circle.is_empty());
        found.map(within).collect()
    }
}

/// Reads what one module names.
struct Reader<'a> {
    at: &'a Names,
    module: Module,
    /// The modules directly below.
    below: BTreeSet<String>,
}

impl Reader<'_> {
    /// Notes the items that are defined at the top of the module.
    fn items(&mut self, tokens: &[TokenTree]) {
        const KEYWORDS: [&str; 8] = [
            "struct", "enum", "union", "trait", "type", "const", "static", "fn",
        ];
        for pair in tokens.windows(2) {
            if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = pair
                && KEYWORDS.iter().any(|known| keyword == known)
            {
                self.module.defined.insert(name.to_string());
            }
        }
    }

    /// Notes every path, and what `use` brings.
    fn paths(&mut self, tokens: &[TokenTree]) {
        let mut rest = tokens;
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            match first {
                TokenTree::Ident(word) if word == "mod" && is_module(rest) => rest = &rest[2..],
                TokenTree::Ident(word) if word == "use" => {
                    let end = rest.iter().position(|token| is(token, ';'));
                    let (tree, after) = rest.split_at(end.unwrap_or(rest.len()));
                    self.brings(&Names::new(), tree);
                    rest = after;
                }
                TokenTree::Ident(_) => {
                    let (path, after) = path(first, rest);
                    rest = after;
                    if path.len() > 1
                        && let Some(path) = self.below_root(&path)
                    {
                        self.module.named.insert(path);
                    }
                }
                TokenTree::Group(group) => {
                    self.paths(&group.stream().into_iter().collect::<Vec<_>>());
                }
                _ => {}
            }
        }
    }

    /// Notes what a tree of `use` brings. `above` is what stands before the braces around it.
    fn brings(&mut self, above: &Names, tree: &[TokenTree]) {
        // A leading `::` names another crate.
        let Some(first @ TokenTree::Ident(_)) = tree.first() else {
            if let Some(TokenTree::Group(group)) = tree.first() {
                self.brings_each(above, group.stream());
            } else if tree.first().is_some_and(|token| is(token, '*'))
                && let Some(module) = self.below_root(above)
            {
                self.module.named.insert(module.clone());
                self.module.globs.push(module);
            }
            return;
        };
        let (names, rest) = path(first, &tree[1..]);
        let full = joined(above, names);
        if let [colon, _, rest @ ..] = rest
            && is(colon, ':')
        {
            return self.brings(&full, rest);
        }
        let (last, parent) = full.split_last().unwrap();
        let full = if last == "self" && !parent.is_empty() {
            parent.to_vec()
        } else {
            full
        };
        let Some(target) = self.below_root(&full) else {
            return;
        };
        let name = match rest {
            [TokenTree::Ident(word), TokenTree::Ident(alias)] if word == "as" => alias.to_string(),
            _ => full.last().unwrap().clone(),
        };
        self.module.named.insert(target.clone());
        self.module.brought.insert(name, target);
    }

    fn brings_each(&mut self, above: &Names, group: TokenStream) {
        let tokens: Vec<TokenTree> = group.into_iter().collect();
        for tree in tokens.split(|token| is(token, ',')) {
            self.brings(above, tree);
        }
    }

    /// A path as seen from the root; `None` if it names another crate or something local.
    fn below_root(&self, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Names::new(),
            "self" => self.at.clone(),
            "super" => self.at.split_last()?.1.to_vec(),
            below if self.below.contains(below) => joined(self.at, [below.to_owned()]),
            _ => return None,
        };
        for name in rest {
            if name == "super" {
                base.pop();
            } else {
                base.push(name.clone());
            }
        }
        Some(base)
    }
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Whether a module follows the word `mod`.
fn is_module(rest: &[TokenTree]) -> bool {
    let [TokenTree::Ident(_), body, ..] = rest else {
        return false;
    };
    is(body, ';') || matches!(body, TokenTree::Group(_))
}

/// The names of a path that begins with `first`, and the tokens after it.
fn path<'a>(first: &TokenTree, mut rest: &'a [TokenTree]) -> (Names, &'a [TokenTree]) {
    let mut names = vec![first.to_string()];
    while let [one, two, TokenTree::Ident(name), after @ ..] = rest
        && is(one, ':')
        && is(two, ':')
    {
        names.push(name.to_string());
        rest = after;
    }
    (names, rest)
}

fn joined(path: &[String], rest: impl IntoIterator<Item = String>) -> Names {
    path.iter().cloned().chain(rest).collect()
}

/// The modules directly inside: their names, and their text if it is not in another file.
fn modules_inside(tokens: &[TokenTree]) -> Vec<(String, Option<TokenStream>)> {
    let module = |window: &[TokenTree]| {
        let [TokenTree::Ident(word), TokenTree::Ident(name), body] = window else {
            return None;
        };
        if word != "mod" {
            return None;
        }
        match body {
            TokenTree::Group(body) => Some((name.to_string(), Some(body.stream()))),
            end => is(end, ';').then(|| (name.to_string(), None)),
        }
    };
    tokens.windows(3).filter_map(module).collect()
}

/// The tokens without attributes, and without the items that are there for tests only.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let mut left: Vec<TokenTree> = tokens.into_iter().collect();
    left.reverse();
    let (mut kept, mut skips) = (Vec::new(), false);
    while let Some(token) = left.pop() {
        if is(&token, '#') {
            if left.last().is_some_and(|next| is(next, '!')) {
                left.pop();
            }
            let attribute = left.pop().unwrap().to_string().replace(' ', "");
            skips |= attribute == "[cfg(test)]" || attribute.starts_with("[cfg(all(test,");
        } else if skips {
            let braces =
                matches!(&token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
            skips = !braces && !is(&token, ';');
        } else if let TokenTree::Group(group) = token {
            let inner = without_tests(group.stream()).into_iter().collect();
            kept.push(proc_macro2::Group::new(group.delimiter(), inner).into());
        } else {
            kept.push(token);
        }
    }
    kept
}

/// A circle as text: a line per file.
fn shown(circle: &BTreeMap<Names, BTreeSet<Names>>) -> String {
    let mut text = String::new();
    for (file, to) in circle {
        let to: Vec<String> = to.iter().map(|to| to.join("::")).collect();
        writeln!(text, "    {} imports {}", file.join("::"), to.join(", ")).unwrap();
    }
    text
}

/// The crates of the workspace by name, and the file at the root of each.
fn crates() -> BTreeMap<String, Vec<std::path::PathBuf>> {
    let metadata = MetadataCommand::new()
        .no_deps()
        .other_options(["--offline".to_owned(), "--locked".to_owned()])
        .exec()
        .unwrap();
    let roots = |package: &cargo_metadata::Package| {
        let targets = package.targets.iter();
        let built = targets.filter(|target| target.is_lib() || target.is_bin());
        built.map(|target| target.src_path.clone().into()).collect()
    };
    let packages = metadata.packages.iter();
    packages
        .map(|package| (package.name.to_string(), roots(package)))
        .collect()
}

/// The source of a module of a crate with the given root.
fn source(root: &Path, module: &[String]) -> String {
    if module.is_empty() {
        return fs::read_to_string(root).unwrap();
    }
    let path = root.with_file_name(module.join("/"));
    fs::read_to_string(path.with_extension("rs")).unwrap()
}

#[test]
fn files_of_a_crate_import_each_other_in_one_direction() {
    let crates = crates();
    let (mut wrong, mut files) = (String::new(), 0);
    for (name, roots) in &crates {
        let modules = roots
            .iter()
            .map(|root| Modules::read(&|module| source(root, module)));
        let modules: Vec<Modules> = modules.collect();
        files += modules
            .iter()
            .map(|modules| modules.imports().len())
            .sum::<usize>();
        for circle in modules.iter().flat_map(Modules::circles) {
            writeln!(wrong, "{name} has a circle:\n{}", shown(&circle)).unwrap();
        }
    }
    assert!(files > 400, "only {files} files were found");
    assert!(wrong.is_empty(), "{wrong}");
}

/// The circles of a crate of the given files, by the names of the modules.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let modules = Modules::read(&|module| files[module.join("::").as_str()].to_owned());
    let names = |circle: BTreeMap<Names, _>| circle.keys().map(|file| file.join("::")).collect();
    modules.circles().into_iter().map(names).collect()
}

#[test]
fn circles_are_found_however_they_are_written() {
    for (a, b) in [
        ("use crate::b::B;", "use super::a::A;"),
        (
            "use crate::{b::{self, B as C}};",
            "pub fn f(_: crate::a::A) {}",
        ),
        (
            "fn f() { use super::b; }",
            "fn f() { log!(\"{}\", crate::a::N) }",
        ),
        ("use crate::b::*;", "impl T for crate::a::A {}"),
        // What the root re-exports.
        ("use crate::B;", "use crate::A;"),
        ("pub struct X(super::B);", "use super::{x, A};"),
        // A module written inside the file.
        ("mod inside { use super::super::b::B; }", "use crate::a::A;"),
        // A file below: what it imports closes no circle, but what is imported of it does.
        ("use crate::b::below::D;", "mod below { use crate::a::A; }"),
        // Through a third file, which re-exports.
        ("use crate::c::C;", "use crate::a::A;"),
    ] {
        let root = "mod a; mod b; mod c; pub use a::A; pub use b::*;";
        let a = format!("pub struct A; {a}");
        let b = format!("pub struct B; {b}");
        let files = [
            ("", root),
            ("a", &a),
            ("b", &b),
            ("c", "pub use super::b::B as C;"),
        ];
        let circles = circles_of(&files);
        assert_eq!(circles.len(), 1, "{a} / {b}");
        assert!(
            circles[0].starts_with(&["a".to_owned(), "b".to_owned()]),
            "{circles:?}"
        );
    }
}

#[test]
fn imports_in_one_direction_are_no_circle() {
    for (a, b) in [
        ("", "use crate::a::A;"),
        (
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "use crate::a::A;",
        ),
        ("#[cfg(test)] use crate::b::B;", "use crate::a::A;"),
        ("/// Of [`crate::b`].\npub fn f() {}", "use crate::a::A;"),
        ("use b::B; use ::b::C;", "use crate::a::A;"),
        // The root stands above both.
        ("use crate::R;", "use crate::a::A;"),
        (
            "use self::A as C; use super::R;",
            "pub(crate) use crate::a::A;",
        ),
    ] {
        let a = format!("pub struct A; {a}");
        let files = [
            ("", "mod a; mod b; pub struct R; pub use a::A; use b::B;"),
            ("a", &a),
            ("b", b),
        ];
        assert_eq!(circles_of(&files), Vec::<Vec<String>>::new(), "{a} / {b}");
    }
}
