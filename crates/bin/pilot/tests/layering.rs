//! The layers: which crate may import which, and where unsafe code is allowed. The test asks Cargo for the dependencies.
//! ARCHITECTURE.md has the reasons.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// A crate of the workspace: `path/pool` is (`path`, `pool`). The layer of a crate outside `crates/` is its top folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    layer: String,
    name: String,
}

impl Crate {
    fn new(layer: &str, name: &str) -> Self {
        Self {
            layer: layer.to_owned(),
            name: name.to_owned(),
        }
    }

    fn is(&self, layer: &str) -> bool {
        self.layer == layer
    }

    fn at(&self, layer: &str, name: &str) -> bool {
        *self == Self::new(layer, name)
    }
}

impl std::fmt::Display for Crate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.layer, self.name)
    }
}

/// One crate of the workspace imports another.
#[derive(Debug)]
struct Import {
    from: Crate,
    to: Crate,
    kind: DependencyKind,
}

/// Why an import is not allowed; `None`: it is allowed.
fn objection(import: &Import) -> Option<&'static str> {
    let Import { from, to, kind } = import;
    if to.at("base", "testkit") && *kind != DependencyKind::Development {
        return Some("base/testkit is for tests: a dev-dependency");
    }
    if to.is("tests") {
        let for_tests = from.is("bin") && *kind == DependencyKind::Development;
        return (!for_tests).then_some("the harness is for the suites of bin/pilot");
    }
    if from.at("bench", "experiments")
        && EXPERIMENTS_IMPORT
            .iter()
            .any(|(layer, name)| to.at(layer, name))
    {
        return None;
    }
    match (from.layer.as_str(), to.layer.as_str()) {
        (_, "bin") => Some("nothing imports a program"),
        (_, "bench") if to.name == "experiments" => Some("nothing imports a program"),
        ("tests", _) => Some("tests see the product from outside"),
        ("bench", _) => {
            Some("benches see the product from outside; experiments imports only the policies")
        }
        // `pilot bench` is the load client's front end.
        (layer, "bench") if layer != "bin" => Some("only bin/pilot imports the load client"),
        ("base", "base") if from.name == "model" && *kind != DependencyKind::Development => {
            Some("base/model imports none of our crates")
        }
        ("base", "path" | "side") => Some("base imports only base"),
        ("path", "side") => Some("path never imports side"),
        ("path", "path") if to.name <= from.name => {
            Some("a request passes path/ in alphabetical order: a crate imports only later ones")
        }
        ("side", "path") => Some("side never imports path"),
        ("side", "side") => Some("side never imports another side"),
        _ => None,
    }
}

/// What `bench/experiments` may import: the policies, which it runs without a daemon, and workloads. Other crates under `bench/`
/// import none of our crates.
const EXPERIMENTS_IMPORT: [(&str, &str); 3] = [
    ("base", "model"),
    ("base", "workload"),
    ("side", "forecast"),
];

fn workspace() -> Metadata {
    MetadataCommand::new()
        .no_deps()
        .other_options(["--offline".to_owned(), "--locked".to_owned()])
        .exec()
        .unwrap()
}

fn folder(package: &Package) -> PathBuf {
    let manifest = package.manifest_path.as_std_path();
    manifest.parent().unwrap().to_owned()
}

/// The crate whose folder this is.
fn crate_of(root: &Path, folder: &Path) -> Crate {
    let relative = folder.strip_prefix(root).unwrap();
    let parts: Vec<&str> = relative.iter().map(|part| part.to_str().unwrap()).collect();
    match parts[..] {
        ["crates", layer @ ("bin" | "path" | "side" | "base"), name]
        | [layer @ ("tests" | "bench"), name] => Crate::new(layer, name),
        _ => panic!("{} is in no layer", relative.display()),
    }
}

fn imports(metadata: &Metadata) -> Vec<Import> {
    let root = metadata.workspace_root.as_std_path();
    let of = |package: &Package| {
        let from = crate_of(root, &folder(package));
        let ours = package.dependencies.iter().filter_map(move |dependency| {
            let folder = dependency.path.as_ref()?.as_std_path();
            // A fuzz target is built with what the tests of its crate have.
            let is_for_fuzzing = dependency
                .target
                .as_ref()
                .is_some_and(|target| target.to_string() == "cfg(fuzzing)");
            Some(Import {
                from: from.clone(),
                to: crate_of(root, folder),
                kind: if is_for_fuzzing {
                    DependencyKind::Development
                } else {
                    dependency.kind
                },
            })
        });
        ours.collect::<Vec<_>>()
    };
    metadata.packages.iter().flat_map(of).collect()
}

#[test]
fn crates_import_only_what_their_layer_may() {
    let imports = imports(&workspace());
    assert!(
        imports.len() > 20,
        "only {} imports were found",
        imports.len()
    );
    let wrong: Vec<String> = imports
        .iter()
        .filter_map(|import| {
            let objection = objection(import)?;
            Some(format!(
                "{} imports {}: {objection}",
                import.from, import.to
            ))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_rule_catches_its_breach() {
    for (from, to, kind) in [
        (("path", "pool"), ("side", "admin"), DependencyKind::Normal),
        (
            ("path", "pool"),
            ("path", "invoke"),
            DependencyKind::Development,
        ),
        (
            ("side", "admin"),
            ("path", "invoke"),
            DependencyKind::Normal,
        ),
        (
            ("side", "admin"),
            ("side", "deploy"),
            DependencyKind::Normal,
        ),
        (("base", "model"), ("base", "sys"), DependencyKind::Normal),
        (("base", "sys"), ("path", "wire"), DependencyKind::Normal),
        (
            ("path", "pool"),
            ("base", "testkit"),
            DependencyKind::Normal,
        ),
        (("side", "deploy"), ("bin", "pilot"), DependencyKind::Normal),
        (
            ("side", "deploy"),
            ("tests", "harness"),
            DependencyKind::Development,
        ),
        (
            ("tests", "harness"),
            ("base", "model"),
            DependencyKind::Normal,
        ),
        (
            ("side", "forecast"),
            ("bench", "loadgen"),
            DependencyKind::Normal,
        ),
        (
            ("bench", "loadgen"),
            ("base", "model"),
            DependencyKind::Normal,
        ),
        (
            ("bench", "experiments"),
            ("path", "pool"),
            DependencyKind::Normal,
        ),
        (
            ("bin", "pilot"),
            ("bench", "experiments"),
            DependencyKind::Normal,
        ),
    ] {
        let import = Import {
            from: Crate::new(from.0, from.1),
            to: Crate::new(to.0, to.1),
            kind,
        };
        assert!(objection(&import).is_some(), "{import:?} is not caught");
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_base_sys_but_for_one_call() {
    let metadata = workspace();
    let root = metadata.workspace_root.as_std_path();
    let read = |path: &Path| -> toml::Table { fs::read_to_string(path).unwrap().parse().unwrap() };
    let manifest = read(&root.join("Cargo.toml"));
    assert_eq!(
        manifest["workspace"]["lints"]["rust"]["unsafe_code"].as_str(),
        Some("forbid")
    );
    let own: BTreeMap<Crate, bool> = metadata
        .packages
        .iter()
        .map(|package| {
            let folder = folder(package);
            let inherits = read(&folder.join("Cargo.toml"))
                .get("lints")
                .and_then(|lints| lints.get("workspace"))
                .and_then(toml::Value::as_bool);
            (crate_of(root, &folder), inherits != Some(true))
        })
        .collect();
    let own: Vec<&Crate> = own
        .iter()
        .filter(|(_, own)| **own)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        own,
        [&Crate::new("base", "sys"), &Crate::new("side", "component")],
        "crates that do not inherit the workspace's lints"
    );
    // There, unsafe code is denied but for one call, which only wasmtime can make safe (decision 0037).
    let component = root.join("crates/side/component");
    assert_eq!(
        read(&component.join("Cargo.toml"))["lints"]["rust"]["unsafe_code"].as_str(),
        Some("deny")
    );
    let uses = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).unwrap();
        text.matches("unsafe {").count()
    };
    let files = fs::read_dir(component.join("src")).unwrap();
    assert_eq!(files.map(|file| uses(file.unwrap())).sum::<usize>(), 1);
}

/// The longest source file. Aim for half of it.
const LINES_MAX: usize = 800;

#[test]
fn no_source_file_is_longer_than_somebody_reads() {
    let root = workspace().workspace_root.into_std_path_buf();
    let mut folders = vec![
        root.join("crates"),
        root.join("tests"),
        root.join("bench"),
        root.join("python"),
    ];
    let mut long = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let hidden = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|end| end == "rs" || end == "py")
            {
                let lines = fs::read_to_string(&path).unwrap().lines().count();
                if lines > LINES_MAX {
                    long.push(format!("{}: {lines} lines", path.display()));
                }
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}
