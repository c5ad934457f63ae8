//! Makes a `node_modules` that can be moved. npm makes links to packages beside the code. The part's folder has no such code, so the
//! links are replaced by their targets.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pilot_model::size::Size;

use super::package::NODE_MODULES;
use crate::data_dir::make_dir;

/// A package that is a link to a place outside the part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) target: String,
}

/// Moves `work/node_modules` to `place` and resolves its links. Creates an empty folder if npm made none. `Some`: a link that leads
/// out of `work`, or to a folder that contains it.
pub(super) fn make_whole(work: &Path, place: &Path) -> io::Result<Option<Link>> {
    let modules = work.join(NODE_MODULES);
    if modules.is_symlink() {
        return Ok(Some(Link {
            name: NODE_MODULES.to_owned(),
            target: fs::read_link(&modules)?.display().to_string(),
        }));
    }
    if !modules.is_dir() {
        make_dir(place)?;
        return Ok(None);
    }
    let work = work.canonicalize()?;
    let modules = work.join(NODE_MODULES);
    let mut left = COPIED_BYTES_MAX;
    for path in packages(&modules)? {
        if !path.is_symlink() {
            continue;
        }
        let target = path.canonicalize();
        let inside = target.as_ref().is_ok_and(|target| {
            target.starts_with(&work) && target.is_dir() && !modules.starts_with(target)
        });
        let name = path.strip_prefix(&modules).unwrap_or(&path);
        match target {
            Ok(target) if inside => {
                fs::remove_file(&path)?;
                make_dir(&path)?;
                copy_within(&target, &path, &mut left)?;
            }
            _ => {
                return Ok(Some(Link {
                    name: name.display().to_string(),
                    target: fs::read_link(&path)?.display().to_string(),
                }));
            }
        }
    }
    fs::rename(&modules, place)?;
    Ok(None)
}

/// The folders of all packages at the top level, also those in scopes. Hidden folders are npm's own.
pub(super) fn packages(modules: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(modules)? {
        let path = entry?.path();
        let first = path.file_name().and_then(|name| name.to_str());
        match first.and_then(|name| name.chars().next()) {
            Some('.') => {}
            Some('@') if path.is_dir() && !path.is_symlink() => {
                for entry in fs::read_dir(&path)? {
                    found.push(entry?.path());
                }
            }
            _ => found.push(path),
        }
    }
    Ok(found)
}

/// Copies the content of a folder into another. Links stay links.
pub(in super::super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut without_limit = u64::MAX;
    copy_within(from, to, &mut without_limit)
}

/// The same, with as many bytes as are left. Install scripts make files of any length, also without taking room on the disk for them.
fn copy_within(from: &Path, to: &Path, left: &mut u64) -> io::Result<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(from.join(&folder))? {
            let entry = entry?;
            let inside = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            let place = to.join(&inside);
            if kind.is_symlink() {
                symlink(fs::read_link(entry.path())?, &place)?;
            } else if kind.is_dir() {
                make_dir(&place)?;
                folders.push(inside);
            } else {
                let len = entry.metadata()?.len();
                *left = left.checked_sub(len).ok_or_else(too_much)?;
                fs::copy(entry.path(), &place)?;
            }
        }
    }
    Ok(())
}

fn too_much() -> io::Error {
    let problem = format!(
        "the packages beside the code have more than {}",
        Size(COPIED_BYTES_MAX)
    );
    io::Error::new(io::ErrorKind::FileTooLarge, problem)
}

/// All that is copied in place of links. The code itself has at most 250 MiB.
const COPIED_BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn work(files: &[&str], links: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join("work").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        for (target, link) in links {
            let path = folder.path().join("work").join(link);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }
        folder
    }

    fn whole(folder: &tempfile::TempDir) -> Option<Link> {
        make_whole(&folder.path().join("work"), &folder.path().join("place")).unwrap()
    }

    #[test]
    fn packages_beside_the_code_have_a_limit_also_if_they_take_no_room() {
        let folder = work(
            &["packages/b/index.js", "node_modules/c/index.js"],
            &[("../packages/b", "node_modules/b")],
        );
        let long = folder.path().join("work/packages/b/long");
        let file = fs::File::create(long).unwrap();
        file.set_len(COPIED_BYTES_MAX).unwrap();
        let made = make_whole(&folder.path().join("work"), &folder.path().join("place"));
        let error = made.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("more than 1"), "{error}");
    }

    #[test]
    fn a_package_beside_the_code_comes_along() {
        let folder = work(
            &[
                "lib/index.js",
                "packages/b/deep/x.js",
                "node_modules/express/index.js",
            ],
            &[
                ("../lib", "node_modules/lib"),
                ("../../packages/b", "node_modules/@own/b"),
                ("../lib/index.js", "node_modules/.bin/lib"),
            ],
        );
        assert_eq!(whole(&folder), None);
        let place = folder.path().join("place");
        for file in ["lib/index.js", "@own/b/deep/x.js", "express/index.js"] {
            assert!(place.join(file).is_file(), "{file}");
        }
        assert!(!place.join("lib").is_symlink());
        assert_eq!(
            fs::read_to_string(place.join(".bin/lib")).unwrap(),
            "lib/index.js",
            "npm's links within the folder are as good as before"
        );
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_told() {
        for target in ["/etc", "..", "../nowhere", "../.."] {
            let folder = work(&["node_modules/x/y"], &[(target, "node_modules/out")]);
            let link = Link {
                name: "out".to_owned(),
                target: target.to_owned(),
            };
            assert_eq!(whole(&folder), Some(link));
        }
    }

    #[test]
    fn nothing_installed_is_an_empty_folder() {
        let folder = work(&["package.json"], &[]);
        assert_eq!(whole(&folder), None);
        assert_eq!(
            fs::read_dir(folder.path().join("place")).unwrap().count(),
            0
        );
    }
}
