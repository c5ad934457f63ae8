//! What the files may be, and when they are read again.

use std::os::unix::fs::PermissionsExt;

use rcgen::{CertifiedKey as Made, generate_simple_self_signed};

use super::*;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn files(&self, certificate: &str, key: &str) -> TlsFiles {
        let certificate = self.write("cert.pem", certificate);
        let key = self.write("key.pem", key);
        of(Some(&certificate), Some(&key)).unwrap().unwrap()
    }
}

fn of(certificate: Option<&Path>, key: Option<&Path>) -> anyhow::Result<Option<TlsFiles>> {
    TlsFiles::of(["tls_certificate", "tls_key"], certificate, key)
}

fn pair() -> (String, String) {
    let Made { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (cert.pem(), signing_key.serialize_pem())
}

#[track_caller]
fn refused(files: &TlsFiles) -> String {
    format!("{:#}", Certificate::load(files).unwrap_err())
}

#[test]
fn one_of_two_files_is_an_error_that_names_the_other_key() {
    assert_eq!(of(None, None).unwrap(), None);
    let problem = of(Some(Path::new("c")), None).unwrap_err().to_string();
    assert!(problem.contains("tls_key is not"), "{problem}");
    let problem = of(None, Some(Path::new("k"))).unwrap_err().to_string();
    assert!(problem.contains("tls_certificate is not"), "{problem}");
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_key() {
    let folder = Folder::new();
    let ((certificate, key), (_, other_key)) = (pair(), pair());
    let path = |name: &str| folder.0.path().join(name).display().to_string();
    for (certificate, key, wanted) in [
        (
            "",
            &*key,
            vec![
                "tls_certificate: ".to_owned(),
                path("cert.pem"),
                "no certificate".to_owned(),
            ],
        ),
        (
            &*key,
            &*key,
            vec!["tls_certificate: ".to_owned(), "no certificate".to_owned()],
        ),
        (
            &*certificate,
            "",
            vec![
                "tls_key: ".to_owned(),
                path("key.pem"),
                "no private key".to_owned(),
            ],
        ),
        (
            &*certificate,
            &*certificate,
            vec!["tls_key: ".to_owned(), "no private key".to_owned()],
        ),
        (
            &*certificate,
            &*other_key,
            vec![
                "tls_key: ".to_owned(),
                path("key.pem"),
                "is not the key of".to_owned(),
                path("cert.pem"),
            ],
        ),
    ] {
        let problem = refused(&folder.files(certificate, key));
        for part in wanted {
            assert!(problem.contains(&part), "{part}: {problem}");
        }
    }
    let files = folder.files(&certificate, &key);
    fs::remove_file(folder.0.path().join("key.pem")).unwrap();
    assert!(
        refused(&files).contains("cannot be read"),
        "{}",
        refused(&files)
    );
    fs::create_dir(folder.0.path().join("key.pem")).unwrap();
    assert!(
        refused(&files).contains("is not a file"),
        "{}",
        refused(&files)
    );
}

#[test]
fn a_key_that_others_may_read_is_refused_and_one_for_a_group_is_not() {
    let folder = Folder::new();
    let (certificate, key) = pair();
    let files = folder.files(&certificate, &key);
    for (mode, passes) in [(0o640, true), (0o400, true), (0o644, false), (0o604, false)] {
        let path = folder.0.path().join("key.pem");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Certificate::load(&files).is_ok(), passes, "{mode:o}");
    }
    assert!(refused(&files).contains("other users may read it"));
}

#[test]
fn new_files_replace_the_certificate_and_broken_ones_do_not() {
    let folder = Folder::new();
    let (certificate, key) = pair();
    let served = Certificate::load(&folder.files(&certificate, &key)).unwrap();
    let first = served.current.load_full();
    served.reload(Reload::IfChanged);
    assert!(
        Arc::ptr_eq(&first, &served.current.load_full()),
        "unchanged"
    );
    folder.write("cert.pem", "broken");
    served.reload(Reload::IfChanged);
    assert!(Arc::ptr_eq(&first, &served.current.load_full()));
    let (certificate, key) = pair();
    folder.files(&certificate, &key);
    served.reload(Reload::IfChanged);
    assert_ne!(first.cert, served.current.load_full().cert);
}
