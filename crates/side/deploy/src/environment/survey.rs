//! The interpreters and installers that this machine has, for `pilot doctor`. Deployments use the same look-up.

use super::config::EnvironmentConfig;
use super::program::Tool;
use super::{node, python};

/// Looks for interpreters and their installers. Runs the interpreters that it finds.
pub async fn survey(config: &EnvironmentConfig) -> Vec<Tool> {
    let mut tools = python::survey(&config.search_path).await;
    tools.extend(node::survey(&config.search_path).await);
    tools
}
