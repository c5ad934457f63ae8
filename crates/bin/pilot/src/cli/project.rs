//! A project on disk: the functions of a folder or of a `pilot.toml`, and where their code is.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use pilot_model::manifest::Manifest;
use pilot_model::nearest::nearest;
use pilot_model::{FunctionName, FunctionSpec};

use super::failure::Failure;
use super::layers::{self, LayerSource};

/// A function that can be deployed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    /// Its name.
    pub(super) name: FunctionName,
    /// Its configuration for the daemon, without `path` and `layers`.
    pub(super) spec: FunctionSpec,
    /// Its layers, in their order.
    pub(super) layers: Vec<LayerSource>,
    /// Its code.
    pub(super) folder: PathBuf,
}

/// The functions of a folder.
#[derive(Debug)]
pub(super) struct Project {
    /// Its functions, by name.
    pub(super) targets: Vec<Target>,
    /// The manifest, if there is one.
    pub(super) manifest: Option<PathBuf>,
    /// The folder or file as given.
    named: PathBuf,
}

impl Project {
    /// Reads the project of a folder: its `pilot.toml`. With only an `app.py` (or the default file of another runtime), the project
    /// is one function with the defaults, named `name` or like the folder. The path may also be that of a `pilot.toml`.
    ///
    /// # Errors
    /// [`Failure::Usage`]: there is neither, or the manifest is invalid. The error names file, line and nearest key.
    pub(super) fn read(path: &Path, name: Option<&FunctionName>) -> Result<Self, Failure> {
        Self::read_there(path, name).map_err(|error| Failure::input(&error))
    }

    fn read_there(path: &Path, name: Option<&FunctionName>) -> anyhow::Result<Self> {
        let metadata = fs::metadata(path).map_err(|error| not_there(path, &error))?;
        let manifest = if metadata.is_dir() {
            path.join(MANIFEST)
        } else if path.extension().is_some_and(|kind| kind == "toml") {
            path.to_owned()
        } else {
            return Err(no_project(path).into());
        };
        match text_of(&manifest)? {
            Some(text) => Self::of_manifest(path, &manifest, &text),
            None => Self::of_folder(path, name),
        }
    }

    fn of_manifest(named: &Path, manifest: &Path, text: &str) -> anyhow::Result<Self> {
        let parsed = Manifest::parse(text, &manifest.display().to_string())?;
        let base = manifest.parent().unwrap_or(Path::new(""));
        for (name, layer) in &parsed.layers {
            let path = base.join(&layer.path);
            if !layers::is_there(&path) {
                anyhow::bail!(
                    "{}: layers.{name}.path: \"{}\" is neither a folder nor a zip file: there is none at {}",
                    manifest.display(),
                    layer.path,
                    path.display()
                );
            }
        }
        let targets = parsed.functions.into_iter().map(|(name, mut spec)| {
            let below = spec.path.take().unwrap_or_else(|| ".".to_owned());
            let folder = if below == "." {
                base.to_owned()
            } else {
                base.join(&below)
            };
            let folder = if folder.as_os_str().is_empty() {
                PathBuf::from(".")
            } else {
                folder
            };
            if !folder.is_dir() {
                anyhow::bail!(
                    "{}: functions.{name}.path: \"{below}\" is not a folder: there is none at {}",
                    manifest.display(),
                    folder.display()
                );
            }
            // The manifest has all of them: it was checked.
            let layers = std::mem::take(&mut spec.layers).into_iter().map(|name| {
                let path = base.join(&parsed.layers[&name].path);
                LayerSource { name, path }
            });
            let layers = layers.collect();
            Ok(Target {
                name,
                spec,
                layers,
                folder,
            })
        });
        Ok(Self {
            targets: targets.collect::<anyhow::Result<_>>()?,
            manifest: Some(manifest.to_owned()),
            named: named.to_owned(),
        })
    }

    fn of_folder(folder: &Path, name: Option<&FunctionName>) -> anyhow::Result<Self> {
        let is_there = |file: &str| folder.join(file).is_file();
        let found = APPS.iter().find(|(file, _, _)| is_there(file));
        let Some((_, runtime, handler)) = found else {
            return Err(Failure::usage(format!(
                "{} has neither pilot.toml nor app.py (nor lambda_function.py, index.mjs, index.js or bootstrap): \
                 `pilot new NAME` creates a function",
                folder.display()
            ))
            .into());
        };
        let name = match name {
            Some(name) => name.clone(),
            None => name_of(folder)?,
        };
        Ok(Self {
            targets: vec![Target {
                name,
                spec: FunctionSpec {
                    runtime: runtime.map(str::to_owned),
                    handler: handler.map(str::to_owned),
                    ..FunctionSpec::default()
                },
                layers: Vec::new(),
                folder: folder.to_owned(),
            }],
            manifest: None,
            named: folder.to_owned(),
        })
    }

    /// The function with this name, or the only one.
    ///
    /// # Errors
    /// There is no function of this name, or there are several and none was named.
    pub(super) fn one(&self, function: Option<&FunctionName>) -> Result<Target, Failure> {
        let names = || self.targets.iter().map(|target| target.name.as_str());
        if let Some(wanted) = function {
            let found = self.targets.iter().find(|target| target.name == *wanted);
            return found.cloned().ok_or_else(|| {
                let hint = nearest(wanted.as_str(), names())
                    .map_or_else(String::new, |near| format!(", did you mean '{near}'?"));
                Failure::usage(format!(
                    "{} has no function '{wanted}'{hint} (it has: {})",
                    self.source().display(),
                    names().collect::<Vec<_>>().join(", ")
                ))
            });
        }
        match self.targets.as_slice() {
            [only] => Ok(only.clone()),
            _ => Err(Failure::usage(format!(
                "{} has several functions ({}): name one with --function, or deploy all with `pilot up {}`",
                self.source().display(),
                names().collect::<Vec<_>>().join(", "),
                self.named.display()
            ))),
        }
    }

    /// A note if there is no configuration.
    pub(super) fn remark(&self) -> Option<String> {
        let [target] = self.targets.as_slice() else {
            return None;
        };
        if self.manifest.is_some() {
            return None;
        }
        let runs = match target.spec.runtime.as_deref() {
            Some("node") => "node, index.handler",
            Some(_) => "provided, ./bootstrap",
            None => target.spec.handler.as_deref().unwrap_or("app.handler"),
        };
        Some(format!(
            "{} has no pilot.toml: '{}' gets the defaults ({runs}, 256 MB, 30 s, no network)",
            self.named.display(),
            target.name
        ))
    }

    /// The folder or file as given.
    pub(super) fn named(&self) -> &Path {
        &self.named
    }

    fn source(&self) -> &Path {
        self.manifest.as_deref().unwrap_or(&self.named)
    }
}

/// The text of a manifest. `None`: there is none, and no link that should lead to one. Then a function gets the defaults.
fn text_of(manifest: &Path) -> anyhow::Result<Option<String>> {
    let wrong = |problem: &str| Failure::usage(format!("{}: {problem}", manifest.display()));
    let metadata = match fs::metadata(manifest) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match fs::symlink_metadata(manifest) {
                Ok(_) => Err(wrong("is a symbolic link to a file that does not exist").into()),
                Err(_) => Ok(None),
            };
        }
        Err(error) => return Err(error).with_context(|| manifest.display().to_string()),
    };
    // Opening a pipe would wait for a writer, and a device may have no end.
    if !metadata.is_file() {
        return Err(wrong("is not a regular file").into());
    }
    let mut bytes = Vec::new();
    fs::File::open(manifest)
        .and_then(|file| file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes))
        .with_context(|| manifest.display().to_string())?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(wrong("has more than 1 MB, which is the most").into());
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8; save it as UTF-8"))?;
    Ok(Some(text))
}

fn name_of(folder: &Path) -> anyhow::Result<FunctionName> {
    let real = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    name.parse().map_err(|_| {
        Failure::usage(format!(
            "the folder's name \"{name}\" is not a valid function name: choose one with --name (1 to 64 of a-z A-Z 0-9 - _)"
        ))
        .into()
    })
}

/// A file that is not a manifest, such as the handler's.
fn no_project(path: &Path) -> Failure {
    let around = path.parent().filter(|around| *around != Path::new(""));
    let around = around.unwrap_or(Path::new("."));
    let files = APPS.iter().map(|(file, _, _)| *file).chain([MANIFEST]);
    let is_project = files.into_iter().any(|file| around.join(file).is_file());
    let example = match is_project {
        true => format!(", for example {}", around.display()),
        false => String::new(),
    };
    Failure::usage(format!(
        "{} is neither a folder nor a {MANIFEST}: name the function's folder{example}",
        path.display()
    ))
}

fn not_there(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(format!(
            "{} does not exist: name the folder of a function, or a {MANIFEST}; `pilot new NAME` creates a function",
            path.display()
        )),
        _ => Failure::usage(format!("cannot read {}: {error}", path.display())),
    }
}

/// The manifest's name.
pub(super) const MANIFEST: &str = "pilot.toml";
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// The files that make a folder without a manifest a function, with its runtime and its handler. The first one that exists counts.
const APPS: [(&str, Option<&str>, Option<&str>); 6] = [
    ("app.py", None, None),
    // As AWS's console names it.
    (
        "lambda_function.py",
        None,
        Some("lambda_function.lambda_handler"),
    ),
    ("index.mjs", Some("node"), None),
    ("index.js", Some("node"), None),
    ("index.cjs", Some("node"), None),
    ("bootstrap", Some("provided"), None),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn name(text: &str) -> FunctionName {
        text.parse().unwrap()
    }

    #[test]
    fn a_manifest_of_one_function_is_that_function() {
        let dir = folder(&[
            ("pilot.toml", "[functions.a]\npath = \"code\"\n"),
            ("code/app.py", ""),
        ]);
        let target = Project::read(dir.path(), None).unwrap().one(None).unwrap();
        assert_eq!(target.name, name("a"));
        assert_eq!(target.folder, dir.path().join("code"));
        assert_eq!(
            target.spec.path, None,
            "the daemon is not told where the client's files lie"
        );
    }

    #[test]
    fn several_functions_need_a_name_and_a_wrong_one_gets_the_nearest() {
        let dir = folder(&[("pilot.toml", "[functions.invert]\n[functions.resize]\n")]);
        let project = Project::read(dir.path(), None).unwrap();
        assert_eq!(project.targets.len(), 2);
        let problem = project.one(None).unwrap_err().to_string();
        assert!(
            problem.contains("--function") && problem.contains("pilot up"),
            "{problem}"
        );
        let problem = project.one(Some(&name("invrt"))).unwrap_err().to_string();
        assert!(problem.contains("did you mean 'invert'?"), "{problem}");
        assert_eq!(
            project.one(Some(&name("resize"))).unwrap().name,
            name("resize")
        );
    }

    #[test]
    fn what_is_no_manifest_says_what_to_name_or_to_change() {
        let dir = folder(&[("app.py", "")]);
        let problem = Project::read(&dir.path().join("app.py"), None).unwrap_err();
        let wanted = format!(
            "name the function's folder, for example {}",
            dir.path().display()
        );
        assert!(problem.to_string().ends_with(&wanted), "{problem}");
        let dir_without = folder(&[("notes.txt", "")]);
        let problem = Project::read(&dir_without.path().join("notes.txt"), None).unwrap_err();
        let said = problem.to_string();
        assert!(said.ends_with("name the function's folder"), "{said}");
        // As some editors of other systems write it.
        fs::write(dir.path().join("pilot.toml"), b"\xff\xfe[\0f\0").unwrap();
        let problem = Project::read(dir.path(), None).unwrap_err().to_string();
        assert!(
            problem.ends_with("pilot.toml: is not UTF-8; save it as UTF-8"),
            "{problem}"
        );
    }

    #[test]
    fn a_manifest_that_is_no_regular_file_is_refused_and_not_taken_as_missing() {
        let refused = |make: &dyn Fn(&Path), wanted: &str| {
            let dir = folder(&[("app.py", "")]);
            make(&dir.path().join("pilot.toml"));
            let problem = Project::read(dir.path(), None).unwrap_err().to_string();
            assert!(problem.contains(wanted), "{problem}");
        };
        let link =
            |to: &'static str| move |path: &Path| std::os::unix::fs::symlink(to, path).unwrap();
        refused(&link("gone.toml"), "pilot.toml: is a symbolic link to");
        refused(&link("/dev/zero"), "pilot.toml: is not a regular file");
        let pipe = |path: &Path| {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        };
        refused(&pipe, "pilot.toml: is not a regular file");
        refused(
            &|path| fs::create_dir(path).unwrap(),
            "is not a regular file",
        );
        let long = |path: &Path| fs::write(path, "#".repeat((1 << 20) + 1)).unwrap();
        refused(&long, "pilot.toml: has more than 1 MB");
        let dir = folder(&[("app.py", ""), ("real.toml", "[functions.a]\n")]);
        std::os::unix::fs::symlink("real.toml", dir.path().join("pilot.toml")).unwrap();
        let project = Project::read(dir.path(), None).unwrap();
        assert_eq!(project.one(None).unwrap().name, name("a"));
    }

    #[test]
    fn a_folder_with_only_an_app_gets_the_defaults_and_says_so() {
        let dir = folder(&[("hello/app.py", "")]);
        let project = Project::read(&dir.path().join("hello"), None).unwrap();
        assert_eq!(project.one(None).unwrap().name, name("hello"));
        assert!(project.remark().unwrap().contains("defaults"));
        let named = Project::read(&dir.path().join("hello"), Some(&name("other"))).unwrap();
        assert_eq!(named.one(None).unwrap().name, name("other"));
    }

    #[test]
    fn a_folder_with_what_another_runtime_begins_with_is_of_that_runtime() {
        for (files, runtime, remark) in [
            (
                &["index.mjs", "package.json"][..],
                Some("node"),
                "node, index.handler, 256",
            ),
            (
                &["bootstrap"],
                Some("provided"),
                "provided, ./bootstrap, 256",
            ),
            (&["app.py", "index.js"], None, "(app.handler, 256"),
            (
                &["lambda_function.py"],
                None,
                "(lambda_function.lambda_handler, 256",
            ),
        ] {
            let files: Vec<String> = files.iter().map(|file| format!("hello/{file}")).collect();
            let files: Vec<(&str, &str)> = files.iter().map(|file| (file.as_str(), "")).collect();
            let dir = folder(&files);
            let project = Project::read(&dir.path().join("hello"), None).unwrap();
            let target = project.one(None).unwrap();
            assert_eq!(target.spec.runtime.as_deref(), runtime);
            target.spec.check(&target.name).unwrap();
            let said = project.remark().unwrap();
            assert!(said.contains(remark), "{said}");
        }
    }

    #[test]
    fn a_folder_that_does_not_exist_says_what_to_name() {
        let problem = Project::read(Path::new("nowhere"), None).unwrap_err();
        let said = problem.to_string();
        assert!(said.starts_with("nowhere does not exist: "), "{said}");
        assert!(said.contains("`pilot new NAME`"), "{said}");
    }

    #[test]
    fn a_folder_with_nothing_says_what_writes_one() {
        let dir = folder(&[]);
        let problem = Project::read(dir.path(), None).unwrap_err().to_string();
        assert!(problem.contains("pilot new"), "{problem}");
    }

    #[test]
    fn a_manifest_error_has_file_and_line() {
        let dir = folder(&[("pilot.toml", "[functions.a]\nmemroy_mb = 1\n")]);
        let problem = Project::read(dir.path(), None).unwrap_err().to_string();
        assert!(problem.contains("pilot.toml:2: "), "{problem}");
        assert!(problem.contains("memory_mb"), "{problem}");
    }

    #[test]
    fn a_path_that_is_no_folder_names_its_key() {
        let dir = folder(&[("pilot.toml", "[functions.a]\npath = \"nowhere\"\n")]);
        let problem = Project::read(dir.path(), None).unwrap_err().to_string();
        assert!(problem.contains("functions.a.path"), "{problem}");
    }
}
