//! `pilot remove`: removes a function, without confirmation.

use clap::Args;
use pilot_model::FunctionName;

use super::client::Client;
use super::output;

/// The arguments of `pilot remove`.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// Which function
    name: FunctionName,
}

/// Removes the function.
pub(super) fn run(client: &Client, args: &RemoveArgs) -> anyhow::Result<()> {
    client.delete_function(&args.name)?;
    output::print(&format!(
        "{} is removed; its running invocations finish\n",
        args.name
    ))
}
