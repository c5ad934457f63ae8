use std::collections::HashSet;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use pilot_testkit::version_with;

use super::merged::merged;
use super::*;
use crate::content::{Content, FileDigest};

struct Bench {
    _root: tempfile::TempDir,
    data_dir: Arc<DataDir>,
    state: Arc<DeployState>,
    store: LayerStore,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let data_dir = Arc::new(DataDir::open(root.path()).unwrap().unwrap());
        let state = Arc::new(DeployState::default());
        let limits = ArchiveLimits {
            unpacked_bytes_max: 1 << 20,
            ..ArchiveLimits::DEFAULT
        };
        Self {
            store: LayerStore::new(Arc::clone(&data_dir), Arc::clone(&state), limits),
            _root: root,
            data_dir,
            state,
        }
    }

    fn add(&self, name: &str, files: &[(&str, &str)]) -> Layer {
        let id = id_of(files);
        self.store.add(&id, archive(files)).unwrap();
        Layer {
            name: name.to_owned(),
            id,
        }
    }

    fn add_links(&self, name: &str, files: &[(&str, &str)], links: &[(&str, &str)]) -> Layer {
        let mut content = content_of(files);
        for (path, target) in links {
            content.add_link(PathBuf::from(path), Path::new(target));
        }
        let id: LayerId = content.hash().parse().unwrap();
        self.store.add(&id, archive_with(files, links)).unwrap();
        Layer {
            name: name.to_owned(),
            id,
        }
    }

    fn sweep(&self) {
        let rubbish = self.data_dir.stage().unwrap();
        let parents = [self.data_dir.layers()];
        let named = HashSet::new();
        self.state.sweep(&parents, &named, rubbish.path()).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data_dir.layers()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

fn id_of(files: &[(&str, &str)]) -> LayerId {
    content_of(files).hash().parse().unwrap()
}

fn content_of(files: &[(&str, &str)]) -> Content {
    let mut content = Content::default();
    for (path, text) in files {
        let digest = FileDigest::of(text.as_bytes()).unwrap();
        content.add(PathBuf::from(path), false, digest);
    }
    content
}

fn archive(files: &[(&str, &str)]) -> File {
    archive_with(files, &[])
}

fn archive_with(files: &[(&str, &str)], links: &[(&str, &str)]) -> File {
    let mut tar = tar::Builder::new(GzEncoder::new(
        tempfile::tempfile().unwrap(),
        Compression::fast(),
    ));
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    for (path, target) in links {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        tar.append_link(&mut header, path, target).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn refusal(result: Result<impl std::fmt::Debug, DeployError>) -> (&'static str, String) {
    match result.unwrap_err() {
        DeployError::Invalid { code, message, .. } => (code, message),
        DeployError::Internal { message } => ("internal", message),
    }
}

#[test]
fn a_layer_that_arrived_whole_is_found() {
    let bench = Bench::new();
    let layer = bench.add("a", &[("bin/x", "1"), ("lib/y", "22")]);
    let info = bench.store.find(&layer.id).unwrap().unwrap();
    assert_eq!((info.files, info.bytes), (2, 3));
    assert_eq!(bench.names(), [layer.id.as_str()]);
    // A second upload changes nothing, whatever is in it.
    let again = bench.store.add(&layer.id, archive(&[("evil", "")]));
    assert_eq!(again.unwrap(), info);
}

#[test]
fn a_layer_that_is_not_what_its_id_says_leaves_nothing() {
    let bench = Bench::new();
    let id = id_of(&[("a", "1")]);
    let (code, message) = refusal(bench.store.add(&id, archive(&[("a", "2")])));
    assert_eq!(code, "bad_layer");
    assert!(message.contains("changed on the way"), "{message}");
    for (files, code) in [
        (&[][..], "bad_layer"),
        (&[("pilot/node/worker.js", "evil")], "bad_layer"),
        (&[("environment", "a file")], "bad_layer"),
    ] {
        let refused = refusal(bench.store.add(&id_of(files), archive(files)));
        assert_eq!(refused.0, code, "{}", refused.1);
    }
    let large = "x".repeat((1 << 20) + 1);
    let files = [("big", large.as_str())];
    let (code, message) = refusal(bench.store.add(&id_of(&files), archive(&files)));
    assert_eq!(code, "too_large");
    assert!(message.contains("big"), "{message}");
    let mut broken = tempfile::tempfile().unwrap();
    broken.write_all(b"PK").unwrap();
    assert_eq!(refusal(bench.store.add(&id, broken)).0, "bad_archive");
    assert!(bench.names().is_empty());
    assert_eq!(bench.store.find(&id).unwrap(), None);
}

#[test]
fn an_uploaded_layer_waits_for_its_deployment_but_not_for_ever() {
    let bench = Bench::new();
    let layer = bench.add("a", &[("x", "1")]);
    bench.sweep();
    assert_eq!(bench.names().len(), 1);
    assert!(!bench.store.release_expired());
    for held in bench.store.held.lock().iter_mut() {
        held.until = Instant::now();
    }
    assert!(bench.store.release_expired());
    bench.sweep();
    assert!(bench.names().is_empty());
    assert_eq!(bench.store.find(&layer.id).unwrap(), None);
    assert!(bench.store.held.lock().is_empty());
}

#[test]
fn only_so_many_layers_wait() {
    let bench = Bench::new();
    let first = bench.add("a", &[("x", "first")]);
    // Neither a question nor an upload that fails takes the place of a layer.
    for number in 0..=HELD_MAX {
        let id = id_of(&[("x", &number.to_string())]);
        assert_eq!(bench.store.find(&id).unwrap(), None);
        bench
            .store
            .add(&id, archive(&[("x", "wrong")]))
            .unwrap_err();
    }
    bench.sweep();
    assert_eq!(bench.names(), [first.id.as_str()]);
    for number in 0..=HELD_MAX {
        bench.add("a", &[("x", &number.to_string())]);
    }
    assert_eq!(bench.store.held.lock().len(), HELD_MAX);
    bench.sweep();
    assert_eq!(bench.names().len(), HELD_MAX);
}

#[test]
fn merged_layers_share_their_files_and_the_last_one_wins() {
    let bench = Bench::new();
    let layers = [
        bench.add("a", &[("both", "a"), ("bin/a", "a")]),
        bench.add("b", &[("both", "b"), ("bin/b", "b")]),
    ];
    let place = bench.data_dir.layers().join("merged-x");
    let staged = bench.store.merge(&layers).unwrap();
    staged.settle(&place, false).unwrap();
    let read = |path: &str| fs::read_to_string(place.join(path)).unwrap();
    assert_eq!(
        [read("both"), read("bin/a"), read("bin/b")],
        ["b", "a", "b"]
    );
    for folder in MOUNT_PLACES {
        assert!(place.join(folder).is_dir(), "{folder}");
    }
    let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
    let own = bench.store.folder(&layers[1].id).join("both");
    assert_eq!(inode(own), inode(place.join("both")));
}

#[test]
fn a_file_where_another_layer_has_a_folder_names_both_layers() {
    let bench = Bench::new();
    let file = bench.add("file", &[("python", "1")]);
    let folder = bench.add("folder", &[("python/x.py", "2")]);
    for (layers, wanted) in [
        (
            [file.clone(), folder.clone()],
            "layer 'folder' has the folder 'python', and layer 'file' has a file there",
        ),
        (
            [folder, file],
            "layer 'file' has the file 'python', and layer 'folder' has a folder there",
        ),
    ] {
        let (code, message) = refusal(bench.store.merge(&layers));
        assert_eq!(code, "bad_layer");
        assert!(message.starts_with(wanted), "{message}");
    }
}

/// Only functions follow links of layers. Nothing of what they lead to is read, shared, changed or counted here.
#[test]
fn links_of_layers_are_merged_as_links_that_nobody_follows() {
    let bench = Bench::new();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.py");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let (secret_text, outside_text) = (secret.to_str().unwrap(), outside.path().to_str().unwrap());
    let layers = [
        bench.add_links(
            "a",
            &[("both", "a"), ("x", "1")],
            &[("file", secret_text), ("gone", "/opt/bin/b")],
        ),
        bench.add_links(
            "b",
            &[("bin/b", "b"), ("file.txt", "1")],
            &[
                ("both", "bin/b"),
                ("python", outside_text),
                ("lib", outside_text),
            ],
        ),
        bench.add("c", &[("x", "2")]),
        bench.add_links("d", &[("y", "1")], &[("x", outside_text)]),
        bench.add("e", &[("x", "5")]),
    ];
    let info = bench.store.find(&layers[0].id).unwrap().unwrap();
    assert_eq!(info.bytes, (2 + secret_text.len() + 10) as u64);
    assert_eq!(info.files, 4);
    let place = bench.data_dir.layers().join("merged-x");
    let staged = bench.store.merge(&layers).unwrap();
    assert_eq!(staged.python(), None, "it leads out of the data directory");
    staged.settle(&place, false).unwrap();
    let target = |path: &str| fs::read_link(place.join(path)).unwrap();
    assert_eq!(target("file"), secret);
    assert_eq!(target("gone"), Path::new("/opt/bin/b"));
    assert_eq!(target("both"), Path::new("bin/b"));
    assert_eq!(target("python"), outside.path());
    assert_eq!(fs::read_to_string(place.join("x")).unwrap(), "5");
    let own = fs::metadata(&secret).unwrap();
    assert_eq!((own.mode() & 0o777, own.nlink()), (0o600, 1));
    // What is removed is the link.
    tree::remove(&place).unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
}

#[test]
fn a_link_does_not_take_the_place_of_a_folder_or_of_our_own() {
    let bench = Bench::new();
    let folder = bench.add("folder", &[("python/x.py", "1")]);
    let link = bench.add_links("link", &[("x", "1")], &[("python", "/etc")]);
    let (code, message) = refusal(bench.store.merge(&[link.clone(), folder.clone()]));
    assert_eq!(code, "bad_layer");
    let wanted =
        "layer 'folder' has the folder 'python', and layer 'link' has a symbolic link there";
    assert!(message.starts_with(wanted), "{message}");
    let (_, message) = refusal(bench.store.merge(&[folder, link]));
    let wanted =
        "layer 'link' has the symbolic link 'python', and layer 'folder' has a folder there";
    assert!(message.starts_with(wanted), "{message}");
    for name in RESERVED {
        let mut content = Content::default();
        content.add_link(PathBuf::from(name), Path::new("/nowhere"));
        let id: LayerId = content.hash().parse().unwrap();
        let archive = archive_with(&[], &[(name, "/nowhere")]);
        let (_, message) = refusal(bench.store.add(&id, archive));
        assert!(
            message.contains(&format!("has '{name}' at its top")),
            "{message}"
        );
    }
}

#[test]
fn a_layer_that_is_not_there_is_named() {
    let bench = Bench::new();
    let layer = Layer {
        name: "ffmpeg".to_owned(),
        id: id_of(&[("x", "1")]),
    };
    let (code, message) = refusal(bench.store.parts(&[layer]));
    assert_eq!(code, "unknown_layer");
    assert!(message.starts_with("layer 'ffmpeg' ("), "{message}");
}

#[test]
fn the_merged_folder_depends_on_layers_order_and_interpreter() {
    let root = Path::new("/data/layers");
    let of = |ids: &[&str], python: &str| {
        let version = version_with("f", 1, |config| {
            config.layers = ids
                .iter()
                .map(|id| Layer {
                    name: "any".to_owned(),
                    id: id.repeat(32).parse().unwrap(),
                })
                .collect();
        });
        let mut environment = version.environment.clone();
        if let Some(found) = &mut environment.python {
            found.executable = PathBuf::from(python);
        }
        merged(root, &version.config, &environment).map(|merged| merged.dir)
    };
    assert_eq!(of(&[], "python3.11"), None);
    let one = of(&["0a", "0b"], "python3.11").unwrap();
    assert_eq!(one.parent(), Some(root));
    assert_eq!(of(&["0a", "0b"], "python3.11"), Some(one.clone()));
    for other in [
        of(&["0b", "0a"], "python3.11"),
        of(&["0a"], "python3.11"),
        of(&["0a", "0b"], "python3.12"),
    ] {
        assert_ne!(other, Some(one.clone()));
    }
}
