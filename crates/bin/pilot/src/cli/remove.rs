//! `pilot remove`: takes a function away. Asks nothing.

use clap::Args;
use pilot_model::FunctionName;

use super::client::Client;
use super::output;

/// What `pilot remove` takes.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// Which function
    name: FunctionName,
}

/// Removes the function.
pub(super) fn run(client: &Client, args: &RemoveArgs) -> anyhow::Result<()> {
    client.delete_function(&args.name)?;
    output::print(&format!(
        "{} is removed; what was running there finishes\n",
        args.name
    ))
}
