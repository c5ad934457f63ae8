//! `pilot serve`: the daemon, from its arguments to its end.

use crate::cli::serve::ServeArgs;

/// Runs the daemon until it is told to stop (SIGINT or SIGTERM), then drains it.
///
/// # Errors
/// What keeps it from starting: the configuration, the data directory, the address, or in strict mode the machine.
pub(crate) fn run(args: ServeArgs) -> anyhow::Result<()> {
    anyhow::bail!("this build has no daemon yet (asked for with {args:?})")
}
