use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

enum Entry<'a> {
    File(&'a str, &'a [u8]),
    Program(&'a str),
    Link(&'a str, &'a str),
}

fn zip(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    for entry in entries {
        match entry {
            Entry::File(name, content) => {
                zip.start_file(*name, options).unwrap();
                zip.write_all(content).unwrap();
            }
            Entry::Program(name) => {
                let options = options.unix_permissions(0o755);
                zip.start_file(*name, options).unwrap();
            }
            Entry::Link(name, target) => zip.add_symlink(*name, *target, options).unwrap(),
        }
    }
    zip.finish().unwrap().into_inner()
}

/// The folder that has `layer`, in which the bytes are unpacked, and the result.
fn unzipped(bytes: &[u8]) -> (tempfile::TempDir, Result<(), UnzipError>) {
    unzipped_within(bytes, &ArchiveLimits::DEFAULT)
}

fn unzipped_within(
    bytes: &[u8],
    limits: &ArchiveLimits,
) -> (tempfile::TempDir, Result<(), UnzipError>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("layer");
    fs::create_dir(&folder).unwrap();
    let result = unzip_within(file.path(), &folder, limits);
    (dir, result)
}

fn refusal(entries: &[Entry<'_>]) -> String {
    unzipped(&zip(entries)).1.unwrap_err().to_string()
}

#[test]
fn files_programs_and_links_come_out() {
    let (dir, result) = unzipped(&zip(&[
        Entry::Link("lib/x.so", "x.so.1"),
        Entry::File("lib/x.so.1", b"library"),
        Entry::Program("bin/x"),
        Entry::Link("current", "./lib/../lib"),
        Entry::Link("lib/sub/y.so", "/opt/lib/x.so"),
        Entry::Link("bin/python", "/usr/bin/python3"),
        Entry::Link("a/up", "../../etc"),
        Entry::Link("of/another", "/opt/other/layer"),
        Entry::Link("self", "self"),
    ]));
    result.unwrap();
    let layer = dir.path().join("layer");
    assert_eq!(fs::read(layer.join("current/x.so")).unwrap(), b"library");
    for (path, target) in [
        ("lib/x.so", "x.so.1"),
        ("current", "./lib/../lib"),
        ("lib/sub/y.so", "/opt/lib/x.so"),
        ("bin/python", "/usr/bin/python3"),
        ("a/up", "../../etc"),
        ("of/another", "/opt/other/layer"),
        ("self", "self"),
    ] {
        let found = fs::read_link(layer.join(path)).unwrap();
        assert_eq!(found.as_os_str(), target, "{path}");
    }
    let mode = |path: &str| layer.join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("bin/x"), mode("lib/x.so.1")), (0o700, 0o600));
}

#[test]
fn names_that_lead_out_are_refused_by_name() {
    for (entries, wanted) in [
        (
            &[Entry::File("../evil", b"")][..],
            "the entry '../evil' leads out",
        ),
        (&[Entry::File("a/../../evil", b"")], "leads out"),
        (&[Entry::File("a\\..\\evil", b"")], "has a backslash"),
        (&[Entry::Link("../x", "a")], "leads out of the layer"),
        (&[Entry::Link("x", "")], "is a link without a target"),
        (&[Entry::Link("x", "a\0b")], "is a link without a target"),
        (&[Entry::Link("x", &"a".repeat(1025))], "is too long"),
        // Nothing is written through a link, whatever it leads to.
        (
            &[
                Entry::File("real/f", b""),
                Entry::Link("a", "real"),
                Entry::File("a/evil", b""),
            ],
            "lies below 'a', which is a file",
        ),
        (
            &[Entry::Link("a", "/etc"), Entry::File("a/evil", b"")],
            "lies below 'a', which is a file",
        ),
    ] {
        let told = refusal(entries);
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let limits = ArchiveLimits {
        unpacked_bytes_max: 1 << 20,
        entries_max: 3,
        ..ArchiveLimits::DEFAULT
    };
    let zeros = vec![0; 32 << 20];
    let bomb = zip(&[Entry::File("zeros", &zeros)]);
    assert!(bomb.len() < 1 << 20);
    let (dir, result) = unzipped_within(&bomb, &limits);
    let told = result.unwrap_err().to_string();
    assert!(
        told.contains("limit of 1 MB") && told.contains("'zeros'"),
        "{told}"
    );
    let written = fs::metadata(dir.path().join("layer/zeros")).unwrap().len();
    assert!(written <= 1 << 20);

    let many = zip(&[
        Entry::File("a/b", b""),
        Entry::File("a/c", b""),
        Entry::File("a/d", b""),
    ]);
    let told = unzipped_within(&many, &limits).1.unwrap_err().to_string();
    assert!(told.contains("more than 3 entries"), "{told}");
}

#[test]
fn what_is_no_zip_is_said_to_be_none() {
    let whole = zip(&[Entry::File("a", &[b'x'; 1000])]);
    let mut damaged = whole.clone();
    damaged[40] ^= 0xff;
    for bytes in [
        &b""[..],
        b"\x1f\x8b a tar.gz",
        &whole[..whole.len() / 2],
        &damaged,
    ] {
        assert!(unzipped(bytes).1.is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With any names and links, nothing is made outside of the folder.
    #[test]
    fn no_entry_ever_escapes_the_folder(
        entries in prop::collection::vec(
            (
                prop::collection::vec(prop::sample::select(&["..", ".", "a", "b", "", "c"][..]), 1..5),
                prop::option::of(prop::collection::vec(prop::sample::select(&["..", ".", "a", "b", ""][..]), 1..5)),
            ),
            1..6,
        )
    ) {
        let entries: Vec<(String, Option<String>)> = entries
            .into_iter()
            .map(|(name, target)| (name.join("/"), target.map(|parts| parts.join("/"))))
            .collect();
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, target) in &entries {
            let options = SimpleFileOptions::default();
            // The writer refuses a name that it has seen.
            let _ = match target {
                Some(target) => zip.add_symlink(name.as_str(), target.as_str(), options),
                None => zip.start_file(name.as_str(), options),
            };
        }
        let (dir, _) = unzipped(&zip.finish().unwrap().into_inner());
        let outside: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        prop_assert_eq!(outside, ["layer"]);
    }
}
