//! The Python that deployments use without a wanted version, and its installer.

use std::ffi::OsStr;

use pilot_model::runtime::NeededBy;

use super::super::program::{Tool, on_path};
use super::interpreter::Interpreters;

pub(in super::super) async fn survey(search_path: &OsStr) -> Vec<Tool> {
    let python = Interpreters::new(search_path.to_owned())
        .find(None, NeededBy::Runtime)
        .await;
    let uv = on_path(search_path, "uv").map(|uv| format!("uv at {}", uv.display()));
    let pip = python
        .as_ref()
        .is_ok_and(|python| python.pip)
        .then(|| "pip of that Python".to_owned());
    vec![
        Tool {
            name: "Python",
            found: python
                .map(|python| python.to_string())
                .map_err(|error| error.to_string()),
        },
        Tool {
            name: "uv or pip",
            found: uv
                .or(pip)
                .ok_or_else(|| "neither uv nor pip was found".to_owned()),
        },
    ]
}
