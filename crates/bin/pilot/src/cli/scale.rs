//! `pilot scale`: retires a function's idle workers down to a number now, or changes the policy that sizes its pool.

use clap::{ArgGroup, Args};
use pilot_model::FunctionName;
use pilot_model::Policy;
use pilot_model::api::ScaleRequest;
use pilot_model::policy::PolicySpec;
use pilot_model::status::PoolStatus;

use super::client::Client;
use super::output;

/// The arguments of `pilot scale`.
#[derive(Debug, Args)]
#[command(
    override_usage = "pilot scale [OPTIONS] <NAME> <N>\n       pilot scale [OPTIONS] <NAME> [N] --policy <POLICY>"
)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["workers", "policy"]))]
pub(super) struct ScaleArgs {
    /// Which function
    name: FunctionName,
    /// Retire idle workers above this number, or start workers up to it; at most scale.max of the function
    #[arg(value_name = "N", value_parser = check_workers)]
    workers: Option<u32>,
    /// Use this policy until the next deploy or the daemon's end, e.g. auto, static:3, cusum:h=6
    #[arg(long)]
    policy: Option<Policy>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Scales, and prints the workers afterwards.
pub(super) fn run(client: &Client, args: &ScaleArgs) -> anyhow::Result<()> {
    let request = ScaleRequest {
        workers: args.workers,
        policy: args
            .policy
            .map(|policy| PolicySpec::Line(policy.to_string())),
    };
    let status: PoolStatus = client.post_function(&args.name, "/scale", &request)?;
    if args.json {
        return output::print_json(&status);
    }
    let policy = args
        .policy
        .map_or_else(String::new, |policy| format!("; policy {policy}"));
    output::print(&format!(
        "{}: {} idle, {} busy, {} starting{policy}\n",
        args.name, status.idle, status.busy, status.starting
    ))
}

fn check_workers(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "must be a number of workers, after the function's name: `pilot scale NAME 0`".to_owned()
    })
}
