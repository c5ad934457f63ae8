use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tar::{Builder, Header};

use super::*;

/// An entry as an attacker would write it, with an unchecked name.
struct Entry<'a> {
    name: &'a [u8],
    kind: EntryType,
    mode: u32,
    content: &'a [u8],
}

fn file<'a>(name: &'a str, content: &'a [u8]) -> Entry<'a> {
    Entry {
        name: name.as_bytes(),
        kind: EntryType::Regular,
        mode: 0o600,
        content,
    }
}

fn of_kind(name: &str, kind: EntryType) -> Entry<'_> {
    Entry {
        name: name.as_bytes(),
        kind,
        mode: 0o777,
        content: b"",
    }
}

fn tar_gz(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for entry in entries {
        let mut header = Header::new_gnu();
        // Bypasses the library's own checks.
        let length = entry.name.len().min(100);
        header.as_old_mut().name[..length].copy_from_slice(&entry.name[..length]);
        if matches!(entry.kind, EntryType::Symlink | EntryType::Link) {
            header.set_link_name_literal("/etc/passwd").unwrap();
        }
        header.set_entry_type(entry.kind);
        header.set_mode(entry.mode);
        header.set_size(entry.content.len() as u64);
        header.set_cksum();
        tar.append(&header, entry.content).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn try_unpack(entries: &[Entry<'_>]) -> (tempfile::TempDir, Result<Content, ArchiveError>) {
    try_unpack_with(entries, Links::Refused)
}

fn try_unpack_with(
    entries: &[Entry<'_>],
    links: Links,
) -> (tempfile::TempDir, Result<Content, ArchiveError>) {
    let folder = tempfile::tempdir().unwrap();
    let code = folder.path().join("code");
    fs::create_dir(&code).unwrap();
    let archive = tar_gz(entries);
    let unpacked = unpack(archive.as_slice(), &code, links, &ArchiveLimits::default());
    (folder, unpacked)
}

fn refusal(entries: &[Entry<'_>]) -> String {
    try_unpack(entries).1.unwrap_err().to_string()
}

#[test]
fn files_come_out_with_plain_modes_and_one_time() {
    let mut script = file("bin/run.sh", b"#!/bin/sh\n");
    script.mode = 0o6711;
    let before = SystemTime::now();
    let (folder, unpacked) = try_unpack(&[file("./app.py", b"x = 1\n"), script]);
    assert_eq!(unpacked.unwrap().files(), 2);
    let mode = |path: &str| {
        let metadata = fs::metadata(folder.path().join("code").join(path)).unwrap();
        metadata.permissions().mode() & 0o7777
    };
    assert_eq!(
        [mode("app.py"), mode("bin/run.sh"), mode("bin")],
        [0o644, 0o755, 0o755]
    );
    let modified = |path: &str| {
        let metadata = fs::metadata(folder.path().join("code").join(path));
        metadata.unwrap().modified().unwrap()
    };
    assert_eq!(modified("app.py"), modified("bin/run.sh"));
    // A server of static files would take a changed file of the same length for the old one.
    assert!((before..=SystemTime::now()).contains(&modified("app.py")));
}

#[test]
fn the_hash_is_of_paths_modes_and_bytes_alone() {
    let hash = |entries: &[Entry<'_>]| try_unpack(entries).1.unwrap().hash();
    let base = hash(&[file("a.py", b"1"), file("b.py", b"2")]);
    assert_eq!(hash(&[file("./b.py", b"2"), file("a.py", b"1")]), base);
    assert_eq!(
        hash(&[
            file("a.py", b"1"),
            file("b.py", b"2"),
            of_kind("empty/", EntryType::Directory)
        ]),
        base
    );
    assert_ne!(hash(&[file("a.py", b"1"), file("c.py", b"2")]), base);
    assert_ne!(hash(&[file("a.py", b"1"), file("b.py", b"3")]), base);
    let mut executable = file("b.py", b"2");
    executable.mode = 0o700;
    assert_ne!(hash(&[file("a.py", b"1"), executable]), base);
}

#[test]
fn bytecode_is_left_out() {
    let (folder, unpacked) = try_unpack(&[
        file("app.py", b""),
        file("__pycache__/app.cpython-311.pyc", b"stale"),
    ]);
    assert_eq!(unpacked.unwrap().files(), 1);
    assert!(!folder.path().join("code/__pycache__").exists());
}

#[test]
fn names_that_lead_out_are_refused_by_name() {
    assert_eq!(
        refusal(&[file("../evil.py", b"")]),
        "the archive's entry '../evil.py' leads out of the code with '..'; pack the code from inside its folder"
    );
    assert!(refusal(&[file("a/../../evil.py", b"")]).contains("leads out"));
    assert!(refusal(&[file("/etc/cron.d/evil", b"")]).contains("absolute path"));
}

#[test]
fn names_that_look_like_others_are_refused_and_shown_escaped() {
    for (name, shown, code) in [
        ("a\u{2028}b.py", "a\\u{2028}b.py", "2028"),
        ("a\u{2029}.py", "a\\u{2029}.py", "2029"),
        ("\u{1b}[2Ja.py", "\\u{1b}[2Ja.py", "001B"),
        ("d\n/a.py", "d\\n/a.py", "000A"),
        ("a\u{85}.py", "a\\u{85}.py", "0085"),
        ("a\u{202e}yp.exe", "a\\u{202e}yp.exe", "202E"),
        ("a\u{2066}.py", "a\\u{2066}.py", "2066"),
    ] {
        let message = refusal(&[file(name, b"")]);
        assert!(
            message.starts_with(&format!(
                "the archive's entry '{shown}' has the character U+{code} in its name"
            )),
            "{message}"
        );
    }
    let (_folder, unpacked) = try_unpack(&[file("g\u{fc}n \u{1f468}\u{200d}\u{1f467}.py", b"")]);
    assert_eq!(unpacked.unwrap().files(), 1);
}

#[test]
fn folders_in_each_other_have_a_limit() {
    let deep = format!("{}app.py", "d/".repeat(63));
    assert!(checked_path(deep.as_bytes()).is_ok());
    let refused = checked_path(format!("d/{deep}").as_bytes()).unwrap_err();
    assert!(refused.contains("in more than 64 folders"), "{refused}");
}

#[test]
fn links_and_devices_are_refused_by_name() {
    for kind in [EntryType::Symlink, EntryType::Link] {
        let message = refusal(&[file("app.py", b""), of_kind("passwd", kind)]);
        assert!(
            message.starts_with("the archive's entry 'passwd' is a link;"),
            "{message}"
        );
    }
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo] {
        assert!(
            refusal(&[of_kind("dev", kind)]).contains("'dev' is a device or pipe; leave it out")
        );
    }
}

#[test]
fn packages_that_pnpm_links_are_refused_with_what_to_change() {
    let stored = "node_modules/.pnpm/express@4.21.2/node_modules/express/index.js";
    let message = refusal(&[file("index.js", b""), file(stored, b"")]);
    assert!(message.contains("express@4.21.2"), "{message}");
    assert!(message.contains("node-linker=hoisted"), "{message}");
    let hoisted = [
        file("node_modules/.pnpm/lock.yaml", b""),
        file("node_modules/express/node_modules/ms/index.js", b""),
    ];
    assert!(try_unpack(&hoisted).1.is_ok());
    // A layer keeps its links.
    let layer = try_unpack_with(&[file(stored, b"")], Links::Kept);
    assert!(layer.1.is_ok());
}

#[test]
fn links_of_a_layer_are_kept_as_they_are() {
    let long = format!("/opt/{}", "folder/".repeat(30));
    let gnu = format!("{long}\0").into_bytes();
    let (folder, unpacked) = try_unpack_with(
        &[
            of_kind("a", EntryType::Symlink),
            of(EntryType::GNULongLink, &gnu),
            of_kind("b", EntryType::Symlink),
            of(EntryType::XHeader, &pax("linkpath", "../x/./y")),
            of_kind("lib/c", EntryType::Symlink),
            file("lib/d", b"1"),
        ],
        Links::Kept,
    );
    let content = unpacked.unwrap();
    let target = |path: &str| fs::read_link(folder.path().join("code").join(path)).unwrap();
    assert_eq!(target("a"), Path::new("/etc/passwd"));
    assert_eq!(target("b").as_os_str(), long.as_str());
    assert_eq!(target("lib/c").as_os_str(), "../x/./y");
    assert_eq!(content.files(), 4);
    assert_eq!(content.bytes(), (11 + long.len() + 8 + 1) as u64);
}

#[test]
fn nothing_is_written_through_a_link_of_a_layer() {
    let link = || of_kind("a", EntryType::Symlink);
    for (entries, wanted) in [
        (
            &[link(), file("a/x", b"1")][..],
            "lies below 'a', which is a file",
        ),
        (&[file("a/x", b"1"), link()], "appears twice"),
        (&[link(), file("a", b"1")], "appears twice"),
        (&[file("a", b"1"), link()], "appears twice"),
        (&[link(), link()], "appears twice"),
        (
            &[of_kind("../a", EntryType::Symlink)],
            "leads out of the code",
        ),
        (&[of_kind("a", EntryType::Link)], "is a link;"),
        (
            &[
                of(EntryType::XHeader, &pax("linkpath", "x\u{202e}y")),
                link(),
            ],
            "the character U+202E",
        ),
        (
            &[of(EntryType::GNULongLink, b"\0"), link()],
            "is a link without a target",
        ),
    ] {
        let told = try_unpack_with(entries, Links::Kept)
            .1
            .unwrap_err()
            .to_string();
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn an_entry_twice_is_refused() {
    assert!(refusal(&[file("app.py", b"1"), file("./app.py", b"2")]).contains("appears twice"));
    assert!(
        refusal(&[file("app", b"1"), file("app/x.py", b"2")])
            .contains("lies below 'app', which is a file")
    );
    assert!(refusal(&[file("app/x.py", b"1"), file("app", b"2")]).contains("appears twice"));
}

#[test]
fn every_limit_names_itself() {
    let folder = tempfile::tempdir().unwrap();
    let archive = tar_gz(&[file("a.py", &[b'x'; 5000]), file("b.py", b"y")]);
    let message = |limits: ArchiveLimits, into: &str| {
        let code = folder.path().join(into);
        fs::create_dir(&code).unwrap();
        let error = unpack(archive.as_slice(), &code, Links::Refused, &limits).unwrap_err();
        assert!(matches!(error, ArchiveError::TooLarge { .. }), "{error}");
        error.to_string()
    };
    let limits = ArchiveLimits::default();
    let bytes = ArchiveLimits {
        unpacked_bytes_max: 4096,
        ..limits
    };
    assert!(
        message(bytes, "1").contains(
            "larger than the limit of 4 KB; its largest files up to there are a.py (5 KB)"
        )
    );
    let entries = ArchiveLimits {
        entries_max: 1,
        ..limits
    };
    assert!(message(entries, "2").contains("more than 1 files and folders; list what"));
    assert!(message(bytes, "3").ends_with("in .pilotignore"));
}

#[test]
fn a_bomb_stops_at_the_limit() {
    // 64 MiB of zeros are some 64 KiB when compressed.
    let zeros = vec![0; 64 << 20];
    let folder = tempfile::tempdir().unwrap();
    let limits = ArchiveLimits {
        unpacked_bytes_max: 1 << 20,
        ..ArchiveLimits::default()
    };
    let error = unpack(
        tar_gz(&[file("zeros", &zeros)]).as_slice(),
        folder.path(),
        Links::Refused,
        &limits,
    )
    .unwrap_err();
    assert!(matches!(error, ArchiveError::TooLarge { .. }), "{error}");
    let written = fs::metadata(folder.path().join("zeros")).unwrap().len();
    assert!(written <= 1 << 20);
}

/// A pax record: its length, which counts itself, then `key=value`.
fn pax(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let length = (1..)
        .find(|length| length.to_string().len() + rest.len() == *length)
        .unwrap();
    format!("{length}{rest}").into_bytes()
}

fn of(kind: EntryType, content: &[u8]) -> Entry<'_> {
    Entry {
        name: b"header",
        kind,
        mode: 0o600,
        content,
    }
}

#[test]
fn an_extended_header_over_its_limit_is_refused_before_it_is_read() {
    let zeros = vec![0; 100 << 20];
    for kind in [
        EntryType::XHeader,
        EntryType::XGlobalHeader,
        EntryType::GNULongName,
        EntryType::GNULongLink,
    ] {
        let archive = tar_gz(&[of(kind, &zeros), file("app.py", b"")]);
        assert!(archive.len() < 1 << 20);
        let folder = tempfile::tempdir().unwrap();
        let mut rest = archive.as_slice();
        let error = unpack(
            &mut rest,
            folder.path(),
            Links::Refused,
            &ArchiveLimits::default(),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the archive cannot be read: an extended header of 100 MB is larger than the limit of 64 KB; send the code as a \
             gzip-compressed tar"
        );
        assert!(
            rest.len() > archive.len() / 2,
            "{} bytes are unread",
            rest.len()
        );
    }
}

#[test]
fn long_names_are_read_from_both_kinds_of_extended_headers() {
    let long = format!("{}/app.py", "folder".repeat(30));
    let pax = pax("path", &long);
    let gnu = format!("{long}\0").into_bytes();
    for header in [
        of(EntryType::XHeader, &pax),
        of(EntryType::GNULongName, &gnu),
    ] {
        let global = of(EntryType::XGlobalHeader, b"14 comment=abc\n");
        let (folder, unpacked) =
            try_unpack(&[global, header, file("short", b"x"), file("b.py", b"")]);
        assert_eq!(unpacked.unwrap().files(), 2);
        assert!(folder.path().join("code").join(&long).is_file());
        assert!(folder.path().join("code/b.py").is_file());
    }
}

#[test]
fn extended_headers_that_contradict_are_refused() {
    let header = pax("path", "x");
    let twice = [
        of(EntryType::XHeader, &header),
        of(EntryType::XHeader, &header),
        file("a", b""),
    ];
    assert!(refusal(&twice).contains("two extended headers"));
    let size = pax("size", "7");
    let sizes = [of(EntryType::XHeader, &size), file("a", b"123")];
    assert!(refusal(&sizes).contains("two different sizes"));
    let out = pax("path", "../../x");
    assert!(refusal(&[of(EntryType::XHeader, &out), file("a", b"")]).contains("leads out"));
}

#[test]
fn what_is_no_archive_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let whole = tar_gz(&[file("app.py", &[b'x'; 4096])]);
    for bytes in [
        &b""[..],
        b"PK\x03\x04 a zip",
        &whole[..whole.len() - 9],
        &whole[..40],
    ] {
        let code = tempfile::tempdir_in(folder.path()).unwrap();
        match unpack(
            bytes,
            code.path(),
            Links::Refused,
            &ArchiveLimits::default(),
        ) {
            Err(ArchiveError::Unreadable { .. }) => {}
            // An empty upload has no files.
            Ok(unpacked) => assert_eq!((bytes.len(), unpacked.files()), (0, 0)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_archive_without_files_says_so() {
    let unpacked = try_unpack(&[of_kind("only/", EntryType::Directory)]).1;
    assert_eq!(unpacked.unwrap().files(), 0);
}

#[test]
fn a_program_stays_one() {
    let mut bootstrap = file("bootstrap", b"#!/bin/sh\n");
    bootstrap.mode = 0o100;
    let (folder, unpacked) = try_unpack(&[bootstrap, file("data", b"")]);
    unpacked.unwrap();
    let mode = |name: &str| {
        let path = folder.path().join("code").join(name);
        path.metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("bootstrap"), mode("data")), (0o755, 0o644));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With any names and kinds of entries, nothing is created outside the folder, and only files and folders inside, and in layers
    /// links.
    #[test]
    fn no_entry_ever_escapes_the_folder(
        entries in prop::collection::vec(
            (
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    prop::collection::vec(prop::sample::select(&["..", ".", "a", "b", "", "/", "\u{e9}", "c\0d"][..]), 0..6)
                        .prop_map(|parts| parts.join("/").into_bytes()),
                ],
                prop::sample::select(&[
                    EntryType::Regular, EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link,
                    EntryType::Fifo, EntryType::GNULongName, EntryType::XHeader, EntryType::GNUSparse, EntryType::Continuous,
                ][..]),
            ),
            1..6,
        ),
        links in prop::sample::select(&[Links::Refused, Links::Kept][..]),
    ) {
        let entries: Vec<Entry<'_>> = entries
            .iter()
            .map(|(name, kind)| Entry { name, kind: *kind, mode: 0o777, content: b"content" })
            .collect();
        let (folder, _) = try_unpack_with(&entries, links);
        let outside: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        prop_assert_eq!(outside, ["code"]);
        let mut folders = vec![folder.path().join("code")];
        while let Some(path) = folders.pop() {
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                prop_assert!(kind.is_dir() || kind.is_file() || kind.is_symlink() && links == Links::Kept);
                if kind.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
    }
}
