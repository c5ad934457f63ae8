//! The interpreters and installers that this machine has, for `pilot doctor`. Deployments use the same look-up.

use super::config::EnvironmentConfig;
use super::{node, python};

/// A program that deployments need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// `Python`, `pip or uv`, `Node.js`, `npm`.
    pub name: &'static str,
    /// The program, for people; or why there is none.
    pub found: Result<String, String>,
}

/// Looks for interpreters and their installers. Runs the interpreters that it finds.
pub async fn survey(config: &EnvironmentConfig) -> Vec<Tool> {
    let mut tools = python::survey(&config.search_path).await;
    tools.extend(node::survey(&config.search_path).await);
    tools
}
