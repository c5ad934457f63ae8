//! `make package`: what is in the Debian package and in the tar archive. The release build is left out: the binary of the tests is
//! packaged.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pilot_harness::{Need, needs};

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The only file in a folder with this end of its name.
fn file(folder: &Path, end: &str) -> PathBuf {
    let mut found = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(end));
    let first = found.next().unwrap_or_else(|| panic!("no {end}"));
    assert_eq!(found.next(), None);
    first
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks a packaged binary: it runs, is stripped, and its symbols are beside the package.
fn check_binary(binary: &Path, symbols: &Path) {
    let (path, symbols) = (binary.display().to_string(), symbols.display().to_string());
    assert!(run(&path, &["--version"]).contains(env!("CARGO_PKG_VERSION")));
    let sections = run("readelf", &["--section-headers", "--wide", &path]);
    assert!(!sections.contains(".debug_info") && !sections.contains(".symtab"));
    assert!(sections.contains(".gnu_debuglink"), "{sections}");
    let sections = run("readelf", &["--section-headers", "--wide", &symbols]);
    assert!(sections.contains(".debug_info") && sections.contains(".symtab"));
}

/// Runs `scripts/package`, which fails, and returns what it says.
fn refused(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/package");
    let output = Command::new(script).args(arguments).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_package_is_for_the_processor_of_its_binary() {
    needs!(Need::Program("readelf"));
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out").display().to_string();
    let own = env!("CARGO_BIN_EXE_pilot");
    let other = match std::env::consts::ARCH {
        "x86_64" => "aarch64",
        _ => "x86_64",
    };
    let said = refused(&["--out", &out, "--binary", own, "--arch", other]);
    assert!(said.contains(&format!("and --arch is {other}")), "{said}");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let said = refused(&["--out", &out, "--binary", manifest]);
    assert!(said.contains("is not a program"), "{said}");
    let said = refused(&["--out", &out, "--arch", "vax"]);
    assert!(said.contains("no packages for vax"), "{said}");
    assert!(!Path::new(&out).exists());
}

#[test]
fn the_packages_contain_a_stripped_binary_its_unit_and_its_configuration() {
    for program in ["dpkg-deb", "strip", "objcopy", "readelf"] {
        needs!(Need::Program(program));
    }
    let home = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let packaged = Command::new(root.join("scripts/package"))
        .args(["--binary", env!("CARGO_BIN_EXE_pilot"), "--out"])
        .arg(home.path().join("out"))
        .env("DPKG_DEB_COMPRESSOR_LEVEL", "1")
        .output()
        .unwrap();
    assert!(packaged.status.success(), "{packaged:?}");
    let out = home.path().join("out");

    let package = file(&out, ".deb").display().to_string();
    assert_eq!(
        run("dpkg-deb", &["--field", &package, "Package"]),
        "pilotlight\n"
    );
    let tree = home.path().join("tree").display().to_string();
    run("dpkg-deb", &["--raw-extract", &package, &tree]);
    let tree = Path::new(&tree);
    let arch = run("dpkg-deb", &["--field", &package, "Architecture"]);
    check_binary(
        &tree.join("usr/bin/pilot"),
        &file(&out, &format!("_{}.debug", arch.trim())),
    );
    let unit = text(&tree.join("usr/lib/systemd/system/pilotlight.service"));
    for line in [
        "ExecStart=/usr/bin/pilot serve --config /etc/pilotlight/pilotd.toml",
        "Delegate=yes",
        "NoNewPrivileges=yes",
        "StateDirectoryMode=0700",
        "Type=notify",
        "WatchdogSec=",
    ] {
        assert!(unit.contains(line), "{unit}");
    }
    // It is a key of that section. In another one, systemd ignores it.
    let (general, _) = unit.split_once("[Service]").unwrap();
    assert!(general.contains("\nStartLimitIntervalSec=0\n"), "{unit}");
    // The thread that paces workers has a real-time priority.
    assert!(!unit.contains("\nRestrictRealtime="), "{unit}");
    let socket = text(&tree.join("usr/lib/systemd/system/pilotlight.socket"));
    assert!(socket.contains("ListenStream=127.0.0.1:8080"), "{socket}");
    assert_eq!(
        text(&tree.join("DEBIAN/conffiles")),
        "/etc/pilotlight/pilotd.toml\n"
    );
    let postinst = text(&tree.join("DEBIAN/postinst"));
    assert!(
        postinst.contains("groupadd --system pilotlight"),
        "{postinst}"
    );
    assert!(
        !postinst.contains("systemctl enable --now pilotlight.service"),
        "an installation starts nothing"
    );
    for path in [
        "usr/share/doc/pilotlight/copyright",
        "usr/share/doc/pilotlight/docs/operations.md",
        "usr/share/bash-completion/completions/pilot",
    ] {
        assert!(tree.join(path).is_file(), "{path}");
    }
    // Its keys are known. The exit code is 1 where this machine does not enforce everything.
    let checked = Command::new(tree.join("usr/bin/pilot"))
        .args(["doctor", "--config"])
        .arg(tree.join("etc/pilotlight/pilotd.toml"))
        .output()
        .unwrap();
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");

    let archive = file(&out, ".tar.gz").display().to_string();
    let folder = home.path().display().to_string();
    run(
        "tar",
        &["--extract", "--file", &archive, "--directory", &folder],
    );
    let folder = file(home.path(), "-linux-static");
    check_binary(&folder.join("pilot"), &file(&out, "-linux-static.debug"));
    for path in [
        "pilotlight.service",
        "pilotlight.socket",
        "pilotd.toml",
        "README.md",
        "LICENSE",
    ] {
        assert!(folder.join(path).is_file(), "{path}");
    }
}
