//! The Node.js that deployments use without a wanted version, and its npm.

use std::ffi::OsString;

use pilot_model::runtime::NeededBy;

use super::super::program::Tool;
use super::interpreter::Interpreters;

pub(in super::super) async fn survey(search_path: &OsString) -> Vec<Tool> {
    let node = Interpreters::new(search_path.clone())
        .find(None, NeededBy::Runtime)
        .await;
    let npm = node.as_ref().ok().and_then(|node| node.npm(search_path));
    vec![
        Tool {
            name: "Node.js",
            found: node
                .map(|node| node.to_string())
                .map_err(|error| error.to_string()),
        },
        Tool {
            name: "npm",
            found: npm
                .map(|npm| npm.display().to_string())
                .ok_or_else(|| "npm was not found".to_owned()),
        },
    ]
}
