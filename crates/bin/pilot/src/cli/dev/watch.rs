//! Watches the files that would be packed, and no others, so that a `.venv` with ten thousand folders needs no watches.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use anyhow::Context;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use pilot_model::FunctionName;

use super::super::initscript;
use super::super::pack::{self, Ignore, Kind};
use super::super::project::{MANIFEST, Project, Target};
use super::message::Message;

/// The watches on a project's folders. Each change is sent once per path.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
    /// The manifest, or where one would be.
    manifest: PathBuf,
    roots: Vec<Root>,
}

/// A function's folder, by the canonical path that the watcher reports.
#[derive(Debug)]
struct Root {
    name: FunctionName,
    folder: PathBuf,
    ignore: Ignore,
    /// The folders and zip files of its layers.
    layers: Vec<PathBuf>,
    /// The crates of its initscripts.
    sources: Vec<PathBuf>,
}

impl Watch {
    /// Starts to watch.
    pub(super) fn start(project: &Project, inbox: Sender<Message>) -> anyhow::Result<Self> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            if is_change(event.kind) {
                for path in event.paths {
                    let _ = inbox.send(Message::Changed(path));
                }
            }
        })
        .context("files cannot be watched")?;
        let mut watch = Self {
            watcher,
            watched: BTreeSet::new(),
            manifest: PathBuf::new(),
            roots: Vec::new(),
        };
        watch.refresh(project)?;
        Ok(watch)
    }

    /// Watches new folders, and stops watching removed ones.
    pub(super) fn refresh(&mut self, project: &Project) -> anyhow::Result<()> {
        let mut wanted = BTreeSet::new();
        self.manifest = match &project.manifest {
            Some(manifest) => real(manifest)?,
            None => real(project.named())?.join(MANIFEST),
        };
        wanted.extend(self.manifest.parent().map(Path::to_owned));
        self.roots = project
            .targets
            .iter()
            .map(|target| {
                let folder = real(&target.folder)?;
                wanted.extend(pack::folders(&folder, Kind::Code)?);
                let mut layers = Vec::new();
                for layer in &target.layers {
                    let path = real(&layer.path)?;
                    if path.is_dir() {
                        wanted.extend(pack::folders(&path, Kind::Layer)?);
                    } else {
                        // Not the file itself, because it is usually replaced.
                        wanted.extend(path.parent().map(Path::to_owned));
                    }
                    layers.push(path);
                }
                let mut sources = Vec::new();
                for source in initscript::sources(target) {
                    let Ok(source) = real(&source) else { continue };
                    let code = source.join("src");
                    if code.is_dir() {
                        wanted.extend(pack::folders(&code, Kind::Code)?);
                    }
                    wanted.insert(source.clone());
                    sources.push(source);
                }
                Ok(Root {
                    name: target.name.clone(),
                    ignore: Ignore::of(&folder, Kind::Code)?,
                    folder,
                    layers,
                    sources,
                })
            })
            .collect::<anyhow::Result<_>>()?;
        for gone in self.watched.difference(&wanted) {
            // The folder may have been removed, together with its watch.
            let _ = self.watcher.unwatch(gone);
        }
        for come in wanted.difference(&self.watched) {
            self.watcher
                .watch(come, RecursiveMode::NonRecursive)
                .with_context(|| format!("{} cannot be watched", come.display()))?;
        }
        self.watched = wanted;
        Ok(())
    }

    /// Whether the path is that of the manifest, which may have appeared or disappeared.
    pub(super) fn is_manifest(&self, path: &Path) -> bool {
        self.manifest == path
    }

    /// Whether a change of the path may change the function's code or configuration.
    pub(super) fn concerns(&self, target: &Target, path: &Path) -> bool {
        if self.is_manifest(path) {
            return true;
        }
        let Some(root) = self.roots.iter().find(|root| root.name == target.name) else {
            return true;
        };
        if root.layers.iter().any(|layer| path.starts_with(layer)) {
            return true;
        }
        let mut sources = root.sources.iter();
        if let Some(inside) = sources.find_map(|source| path.strip_prefix(source).ok()) {
            // Not what its build writes: it would never end.
            return inside.starts_with("src") || inside == Path::new("Cargo.toml");
        }
        match path.strip_prefix(&root.folder) {
            Ok(inside) => inside == Path::new(".pilotignore") || !root.ignore.covers(inside),
            Err(_) => false,
        }
    }
}

fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn real(path: &Path) -> anyhow::Result<PathBuf> {
    fs::canonicalize(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};
    use std::time::Duration;

    use super::*;

    fn project(dir: &Path) -> Project {
        for (path, text) in [
            (
                "pilot.toml",
                "[functions.a]\npath = \"a\"\n[functions.b]\npath = \"b\"\n",
            ),
            ("a/app.py", ""),
            ("b/app.py", ""),
            ("b/.venv/lib/x.py", ""),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Project::read(dir, None).unwrap()
    }

    fn next_change(inbox: &Receiver<Message>) -> PathBuf {
        match inbox.recv_timeout(Duration::from_secs(10)).unwrap() {
            Message::Changed(path) => path,
            Message::Ended(_) => panic!("no daemon here"),
        }
    }

    #[test]
    fn an_edit_is_told_and_concerns_the_function_it_lies_in() {
        let dir = tempfile::tempdir().unwrap();
        let project = project(dir.path());
        let (sender, inbox) = mpsc::channel();
        let watch = Watch::start(&project, sender).unwrap();
        fs::write(dir.path().join("b/.venv/lib/x.py"), "not watched").unwrap();
        fs::write(dir.path().join("a/app.py"), "edited").unwrap();
        let path = next_change(&inbox);
        assert!(path.ends_with("a/app.py"), "{}", path.display());
        let [a, b] = project.targets.as_slice() else {
            panic!()
        };
        assert!(watch.concerns(a, &path));
        assert!(!watch.concerns(b, &path));
    }

    #[test]
    fn an_edit_of_the_manifest_concerns_all_and_one_of_a_cache_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let project = project(dir.path());
        let watch = Watch::start(&project, mpsc::channel().0).unwrap();
        let real = real(dir.path()).unwrap();
        for target in &project.targets {
            assert!(watch.concerns(target, &real.join("pilot.toml")));
            assert!(!watch.concerns(target, &real.join("a/__pycache__/app.pyc")));
        }
    }

    #[test]
    fn a_manifest_that_appears_is_told_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("app.py"), "").unwrap();
        let project = Project::read(&folder, None).unwrap();
        let (sender, inbox) = mpsc::channel();
        let watch = Watch::start(&project, sender).unwrap();
        fs::write(folder.join("pilot.toml"), "[functions.a]\npath = \".\"\n").unwrap();
        let path = next_change(&inbox);
        assert!(watch.is_manifest(&path), "{}", path.display());
        assert!(watch.concerns(&project.targets[0], &path));
        assert!(!watch.is_manifest(&real(&folder).unwrap().join("app.py")));
    }

    #[test]
    fn an_edit_of_a_layer_concerns_the_functions_that_list_it() {
        let dir = tempfile::tempdir().unwrap();
        project(dir.path());
        let text = "[layers.tools]\npath = \"tools\"\n[functions.a]\npath = \"a\"\nlayers = [\"tools\"]\n[functions.b]\npath = \"b\"\n";
        fs::write(dir.path().join("pilot.toml"), text).unwrap();
        fs::create_dir_all(dir.path().join("tools/bin")).unwrap();
        let project = Project::read(dir.path(), None).unwrap();
        let (sender, inbox) = mpsc::channel();
        let watch = Watch::start(&project, sender).unwrap();
        fs::write(dir.path().join("tools/bin/x"), "").unwrap();
        let path = next_change(&inbox);
        let concerned: Vec<bool> = project
            .targets
            .iter()
            .map(|target| watch.concerns(target, &path))
            .collect();
        assert_eq!(concerned, [true, false], "{}", path.display());
    }

    #[test]
    fn an_edit_of_an_initscript_concerns_its_function_and_what_its_build_writes_nobody() {
        let dir = tempfile::tempdir().unwrap();
        project(dir.path());
        let text = "[functions.a]\npath = \"a\"\n[functions.a.initscript]\nmodule = \"init.wasm\"\nsource = \"script\"\n[functions.b]\npath = \"b\"\n";
        fs::write(dir.path().join("pilot.toml"), text).unwrap();
        fs::create_dir_all(dir.path().join("a/script/src")).unwrap();
        let project = Project::read(dir.path(), None).unwrap();
        let (sender, inbox) = mpsc::channel();
        let watch = Watch::start(&project, sender).unwrap();
        fs::write(dir.path().join("a/script/src/lib.rs"), "").unwrap();
        let path = next_change(&inbox);
        let [a, b] = project.targets.as_slice() else {
            panic!()
        };
        assert!(watch.concerns(a, &path), "{}", path.display());
        assert!(!watch.concerns(b, &path));
        let script = real(&dir.path().join("a/script")).unwrap();
        assert!(watch.concerns(a, &script.join("Cargo.toml")));
        for written in ["Cargo.lock", "target/release/.cargo-lock"] {
            assert!(!watch.concerns(a, &script.join(written)), "{written}");
        }
    }

    #[test]
    fn a_new_folder_is_watched_after_a_refresh() {
        let dir = tempfile::tempdir().unwrap();
        let project = project(dir.path());
        let (sender, inbox) = mpsc::channel();
        let mut watch = Watch::start(&project, sender).unwrap();
        fs::create_dir(dir.path().join("a/lib")).unwrap();
        while !next_change(&inbox).ends_with("a/lib") {}
        watch.refresh(&project).unwrap();
        fs::write(dir.path().join("a/lib/new.py"), "").unwrap();
        while !next_change(&inbox).ends_with("a/lib/new.py") {}
    }
}
