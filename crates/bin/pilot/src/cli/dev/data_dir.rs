//! The default data directory of `pilot dev`, inside the project.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The daemon's data directory, inside the project and ignored by version control. It is kept, so that the next `pilot dev`
/// finds its environments installed.
pub(super) fn inside(dir: &Path) -> anyhow::Result<PathBuf> {
    let base = if dir.is_dir() {
        Some(dir)
    } else {
        dir.parent()
    };
    let base = base
        .filter(|base| !base.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let base = fs::canonicalize(base).with_context(|| base.display().to_string())?;
    let own = base.join(".pilot");
    let data = own.join("dev");
    let make = || -> std::io::Result<()> {
        fs::create_dir_all(&data)?;
        fs::write(own.join(".gitignore"), "*\n")
    };
    make().with_context(|| data.display().to_string())?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_is_not_put_under_version_control() {
        let dir = tempfile::tempdir().unwrap();
        let data = inside(dir.path()).unwrap();
        assert!(data.ends_with(".pilot/dev"));
        assert_eq!(
            fs::read_to_string(dir.path().join(".pilot/.gitignore")).unwrap(),
            "*\n"
        );
    }
}
