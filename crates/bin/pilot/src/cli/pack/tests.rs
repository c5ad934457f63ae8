use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use flate2::read::GzDecoder;

use super::*;

fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn bytes(archive: &Archive) -> Vec<u8> {
    let mut file = archive.file.try_clone().unwrap();
    file.rewind().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, archive.bytes);
    bytes
}

/// Path, mode and content of each entry, in the archive's order.
fn unpack(archive: &Archive) -> Vec<(String, u32, String)> {
    let bytes = bytes(archive);
    let mut tar = tar::Archive::new(GzDecoder::new(bytes.as_slice()));
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mtime().unwrap(), 0);
        assert_eq!(entry.header().uid().unwrap(), 0);
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mode = entry.header().mode().unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path, mode, text)
    });
    entries.collect()
}

fn names(archive: &Archive) -> Vec<String> {
    unpack(archive)
        .into_iter()
        .map(|(name, _, _)| name)
        .collect()
}

#[test]
fn equal_folders_give_equal_bytes_whenever_they_were_written() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (folder, order) in [
        (&one, ["app.py", "lib/b.py", "lib/a.py"]),
        (&two, ["lib/a.py", "lib/b.py", "app.py"]),
    ] {
        for path in order {
            write(folder.path(), path, path);
        }
    }
    let file = fs::File::options()
        .write(true)
        .open(two.path().join("app.py"))
        .unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::set_permissions(two.path().join("app.py"), fs::Permissions::from_mode(0o600)).unwrap();

    let (one, two) = (
        pack(one.path(), Kind::Code).unwrap(),
        pack(two.path(), Kind::Code).unwrap(),
    );
    assert_eq!(bytes(&one), bytes(&two));
    assert_eq!(one.content.files(), 3);
    assert_eq!(names(&one), ["app.py", "lib", "lib/a.py", "lib/b.py"]);
}

#[test]
fn only_whether_a_file_is_executable_is_kept_of_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a", "");
    write(folder.path(), "b", "");
    fs::set_permissions(folder.path().join("b"), fs::Permissions::from_mode(0o700)).unwrap();
    let modes: BTreeMap<String, u32> = unpack(&pack(folder.path(), Kind::Code).unwrap())
        .into_iter()
        .map(|(name, mode, _)| (name, mode))
        .collect();
    assert_eq!(modes["a"], 0o644);
    assert_eq!(modes["b"], 0o755);
}

#[test]
fn caches_version_control_and_what_pilotignore_lists_stay_behind() {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        "app.py",
        "pilot.toml",
        ".git/HEAD",
        "__pycache__/app.cpython-311.pyc",
        ".venv/bin/python",
        "lib/node_modules/x/y.js",
        "lib/a.pyc",
        "lib/data.json",
        "tests/test_app.py",
        "big.log",
    ] {
        write(folder.path(), path, "");
    }
    write(
        folder.path(),
        ".pilotignore",
        "# not needed to run\ntests/\n*.log\n",
    );
    let archive = pack(folder.path(), Kind::Code).unwrap();
    assert_eq!(names(&archive), ["app.py", "lib", "lib/data.json"]);
    assert_eq!(archive.content.files(), 2);
}

#[test]
fn links_into_the_folder_become_what_they_point_to() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "lib/a.py", "a = 1");
    symlink("lib/a.py", folder.path().join("b.py")).unwrap();
    symlink("lib", folder.path().join("same")).unwrap();
    let entries = unpack(&pack(folder.path(), Kind::Code).unwrap());
    let content = |name: &str| {
        entries
            .iter()
            .find(|entry| entry.0 == name)
            .map(|entry| entry.2.as_str())
    };
    assert_eq!(content("b.py"), Some("a = 1"));
    assert_eq!(content("same/a.py"), Some("a = 1"));
}

/// The target of each link.
fn links(archive: &Archive) -> BTreeMap<String, String> {
    let bytes = bytes(archive);
    let mut tar = tar::Archive::new(GzDecoder::new(bytes.as_slice()));
    let text = |path: std::borrow::Cow<'_, Path>| path.to_str().unwrap().to_owned();
    let entries = tar.entries().unwrap().map(Result::unwrap);
    entries
        .filter(|entry| entry.header().entry_type().is_symlink())
        .map(|entry| {
            let target = entry.link_name().unwrap().unwrap();
            (text(entry.path().unwrap()), text(target))
        })
        .collect()
}

#[test]
fn packages_that_pnpm_links_are_refused_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), ".pilotignore", "!node_modules/");
    write(folder.path(), "node_modules/.pnpm/lock.yaml", "");
    write(folder.path(), "node_modules/ms/index.js", "");
    // As with node-linker=hoisted.
    assert!(pack(folder.path(), Kind::Code).is_ok());
    let stored = "node_modules/.pnpm/debug@4.4.0/node_modules/debug/index.js";
    write(folder.path(), stored, "");
    let error = pack(folder.path(), Kind::Code).unwrap_err().to_string();
    assert!(
        error.contains("/node_modules/.pnpm: pnpm's links"),
        "{error}"
    );
    assert!(pack(folder.path(), Kind::Layer).is_ok());
    write(folder.path(), ".pilotignore", "");
    assert!(pack(folder.path(), Kind::Code).is_ok());
}

#[test]
fn links_of_a_layer_stay_links_whether_they_lead_to_something_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("./{}//x", "folder/".repeat(30));
    write(folder.path(), "lib/x.so.1", "library");
    write(folder.path(), ".pilotignore", "left-out/\n");
    let own = fs::canonicalize(folder.path()).unwrap();
    for (link, target) in [
        ("lib/x.so", "x.so.1"),
        ("same", "/opt/lib"),
        ("up", "."),
        ("lib/other", "../of/another/layer"),
        ("other", "/opt/of/another/layer"),
        ("long", long.as_str()),
        ("left-out", "/etc"),
        ("own", own.join("lib").to_str().unwrap()),
    ] {
        symlink(target, folder.path().join(link)).unwrap();
    }
    let archive = pack(folder.path(), Kind::Layer).unwrap();
    let found = links(&archive);
    let wanted = [
        ("lib/other", "../of/another/layer"),
        ("lib/x.so", "x.so.1"),
        ("long", long.as_str()),
        ("other", "/opt/of/another/layer"),
        ("own", "/opt/lib"),
        ("same", "/opt/lib"),
        ("up", "."),
    ];
    let wanted = wanted.map(|(link, target)| (link.to_owned(), target.to_owned()));
    assert_eq!(found, BTreeMap::from(wanted));
    assert_eq!(
        archive.content,
        content(folder.path(), Kind::Layer).unwrap()
    );
    assert_eq!(archive.content.files(), 8);
    let problem = pack(folder.path(), Kind::Code).unwrap_err().to_string();
    assert!(problem.contains("is a symbolic link to"), "{problem}");
}

#[test]
fn a_link_out_of_a_layers_folder_is_an_error_but_not_one_of_a_zip_file() {
    for (link, target) in [
        ("x", "/etc/passwd"),
        ("x", ".."),
        ("lib/x", "../../etc"),
        ("x", "/opt/../etc"),
        ("x", "lib/../../lib"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "lib/a", "");
        symlink(target, folder.path().join(link)).unwrap();
        let problem = pack(folder.path(), Kind::Layer).unwrap_err().to_string();
        let wanted = format!("is a symbolic link to {target}, outside the layer");
        assert!(problem.contains(&wanted), "{problem}");
        let kept = pack(folder.path(), Kind::Unzipped).unwrap();
        assert_eq!(links(&kept)[link], target);
    }
}

/// Somebody else made it: what it leads to may be anything.
#[test]
fn a_list_of_a_zip_file_that_is_a_link_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a", "");
    symlink("/dev/zero", folder.path().join(".pilotignore")).unwrap();
    let archive = pack(folder.path(), Kind::Unzipped).unwrap();
    assert_eq!(names(&archive), ["a"]);
}

#[test]
fn links_that_leave_loop_or_dangle_are_errors_that_name_them() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "secret", "");
    for (target, wanted) in [
        (outside.path().join("secret"), "outside the folder"),
        (PathBuf::from("../.."), "outside the folder"),
        (PathBuf::from(".."), "folder above it"),
        (PathBuf::from("."), "folder above it"),
        (PathBuf::from("nowhere"), "No such file"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "lib/a.py", "");
        symlink(&target, folder.path().join("lib/link")).unwrap();
        let problem = pack(folder.path(), Kind::Code).unwrap_err().to_string();
        assert!(problem.contains("lib/link"), "{problem}");
        assert!(problem.contains(wanted), "{problem}");

        write(folder.path(), ".pilotignore", "link\n");
        assert!(
            pack(folder.path(), Kind::Code).is_ok(),
            "an ignored link does no harm"
        );
    }
}

#[test]
fn a_socket_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let _socket = UnixListener::bind(folder.path().join("s")).unwrap();
    let problem = pack(folder.path(), Kind::Code).unwrap_err().to_string();
    assert!(problem.contains("/s: is a socket"), "{problem}");
}

#[test]
fn the_folders_to_watch_are_those_that_are_packed() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["app.py", "lib/deep/a.py", ".venv/lib/b.py"] {
        write(folder.path(), path, "");
    }
    let found = folders(folder.path(), Kind::Code).unwrap();
    let inside: Vec<&Path> = found
        .iter()
        .map(|path| path.strip_prefix(folder.path()).unwrap())
        .collect();
    assert_eq!(
        inside,
        [Path::new(""), Path::new("lib"), Path::new("lib/deep")]
    );
}
