//! `pilot scale`: retires a function's idle workers down to a number now, or changes the policy that sizes its pool.

use clap::{ArgGroup, Args};
use pilot_model::FunctionName;
use pilot_model::Policy;
use pilot_model::ScaleConfig;
use pilot_model::api::ScaleRequest;
use pilot_model::deployment::FunctionDescription;
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
    /// Retire idle workers above this number, or start workers up to it; at most scale.max of the function. If it is less than what
    /// scale.min or the policy keeps ready, that lasts until the next request; then those settings apply again
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
    let set_aside = args.workers.and_then(|workers| {
        let described: FunctionDescription = client.fetch_function(&args.name, "").ok()?;
        set_aside(workers, &described.config.scale)
    });
    output::print(&format!(
        "{}: {} idle, {} busy, {} starting{policy}\n{}",
        args.name,
        status.idle,
        status.busy,
        status.starting,
        set_aside.unwrap_or_default()
    ))
}

/// What keeps more workers ready than were asked for, and until when it does not.
fn set_aside(workers: u32, scale: &ScaleConfig) -> Option<String> {
    let keeps = if workers < scale.min {
        format!("scale.min = {}", scale.min)
    } else if scale.policy == Policy::default() {
        return None;
    } else {
        format!("the policy {}", scale.policy)
    };
    Some(format!(
        "until the next request at most {workers} kept ready; from then on {keeps} counts again\n"
    ))
}

fn check_workers(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "must be a number of workers, after the function's name: `pilot scale NAME 0`".to_owned()
    })
}
