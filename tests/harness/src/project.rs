//! A project in a temporary directory, with the files that a user would write.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder with a `pilot.toml` and code. Dropping it removes it.
#[derive(Debug)]
pub struct Project {
    dir: TempDir,
}

impl Project {
    /// An empty folder.
    ///
    /// # Panics
    /// If there is no space for temporary files.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            dir: tempfile::Builder::new()
                .prefix("pilot-project-")
                .tempdir()
                .unwrap(),
        }
    }

    /// One function with the handler `app.handler` and these keys in `pilot.toml` (TOML lines of the function's table; use
    /// `scale.max = 1` for the scale table).
    #[must_use]
    pub fn function(name: &str, code: &str, keys: &str) -> Self {
        Self::empty().file("app.py", code).manifest(name, keys)
    }

    /// With this file, which replaces an existing one.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.write(name, content);
        self
    }

    /// With this manifest for one function.
    #[must_use]
    pub fn manifest(self, name: &str, keys: &str) -> Self {
        self.file(
            "pilot.toml",
            format!("[functions.{name}]\npath = \".\"\n{keys}\n"),
        )
    }

    /// Writes a file, like an edit.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of the repository's examples.
    #[must_use]
    pub fn examples() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
    }
}
