//! `pilot doctor`: what this machine can enforce, what is missing, and what to change. It needs no daemon, changes nothing, and uses the
//! probes with which the daemon starts ([`Isolation`]) and the look-up of deployments (`pilot_deploy::environment::survey`).
//!
//! The checks of the daemon's own resources are in [`resources`], and those of what it reads when it starts in [`start`].

mod resources;
mod start;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use pilot_deploy::EnvironmentConfig;
use pilot_deploy::environment::survey;
use pilot_sandbox::{Enforcement, Isolation};
use serde::Serialize;

use self::resources::UseOfDataDir;
use super::failure::Failure;
use super::output::{self, BAD, DIM, GOOD, STRONG, WARN};
use crate::daemon_config::DaemonConfig;
use crate::serve_args::ServeArgs;

/// The arguments of `pilot doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The daemon's configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's data directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    /// `isolation`, `features`, `interpreters`, `daemon`.
    group: &'static str,
    what: &'static str,
    state: CheckState,
    /// What was found.
    found: String,
    /// What to change; empty if nothing is missing.
    #[serde(skip_serializing_if = "str::is_empty")]
    change: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckState {
    /// It is there.
    Ok,
    /// It is not there. Functions that do not need it are not affected.
    Absent,
    /// It is not enforced, or the daemon cannot run without it.
    Missing,
}

impl Check {
    /// A check that found `Ok` with what there is, or `Err` with what is wrong.
    fn of(
        (group, what): (&'static str, &'static str),
        found: Result<String, String>,
        otherwise: CheckState,
        change: &'static str,
    ) -> Self {
        let (state, found, change) = match found {
            Ok(found) => (CheckState::Ok, found, ""),
            Err(problem) => (otherwise, problem, change),
        };
        Self {
            group,
            what,
            state,
            found,
            change,
        }
    }
}

/// Checks the machine and prints the results. Fails if something that protects functions is missing, or the daemon cannot run.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let config = DaemonConfig::load(&ServeArgs {
        config: args.config.clone(),
        data_dir: args.data_dir.clone(),
        ..ServeArgs::default()
    })
    .map_err(|error| Failure::input(&error))?;
    // Before the first thread starts: the probes fork.
    let isolation = Isolation::probe(config.limits.id_base);
    let mut checks = enforced(&isolation);
    checks.push(outbound(&isolation));
    drop(isolation);
    checks.push(resources::container_engine(
        config.container_engine.as_deref(),
    ));
    checks.push(resources::volumes(config.limits.volume()));
    checks.extend(interpreters()?);
    let (use_of_dir, daemon) = resources::daemon(&config);
    checks.extend(daemon);
    checks.extend(resources::certificates(&config));
    checks.extend(start::configured(&config));
    if use_of_dir == UseOfDataDir::Free {
        checks.extend(start::content(&config));
    }
    if use_of_dir != UseOfDataDir::Daemon {
        checks.extend(start::control_socket(&config));
    }
    let printed = match args.json {
        true => output::print_json(&checks),
        false => output::print(&render(&checks)),
    };
    // Whether or not anybody reads the output.
    if checks
        .iter()
        .any(|check| check.state == CheckState::Missing)
    {
        return Err(Failure::Reported.into());
    }
    printed
}

fn enforced(isolation: &Isolation) -> Vec<Check> {
    let findings = isolation.findings().iter();
    findings
        .map(|finding| {
            let found = match &finding.enforcement {
                Enforcement::Full => Ok(match &finding.by {
                    Some(by) => format!("enforced ({by})"),
                    None => "enforced".to_owned(),
                }),
                Enforcement::Missing(why) => Err(why.clone()),
            };
            Check::of(
                ("isolation", finding.what),
                found,
                CheckState::Missing,
                finding.remedy,
            )
        })
        .collect()
}

fn outbound(isolation: &Isolation) -> Check {
    let unavailable: Vec<String> = isolation.unavailable().collect();
    let found = if unavailable.is_empty() {
        Ok("functions with network = \"outbound\" reach other machines".to_owned())
    } else {
        Err(unavailable.join("; "))
    };
    Check::of(
        ("features", "outbound network"),
        found,
        CheckState::Absent,
        "run the daemon as root, on a kernel with nf_tables and with a resolver on another host",
    )
}

fn interpreters() -> anyhow::Result<Vec<Check>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tools = runtime.block_on(survey(&EnvironmentConfig::default()));
    let checks = tools.into_iter().map(|tool| {
        let change = match tool.name {
            "Python" => "install Python 3.9 or newer, and name its folder in the daemon's PATH",
            "Node.js" => "install Node.js, and name its folder in the daemon's PATH",
            _ => "install it, and name its folder in the daemon's PATH",
        };
        Check::of(
            ("interpreters", tool.name),
            tool.found,
            CheckState::Absent,
            change,
        )
    });
    Ok(checks.collect())
}

fn render(checks: &[Check]) -> String {
    let mut text = String::new();
    let mut group = "";
    for check in checks {
        if check.group != group {
            group = check.group;
            let _ = writeln!(text, "{STRONG}{group}{STRONG:#}");
        }
        let mark = match check.state {
            CheckState::Ok => format!("{GOOD}✓{GOOD:#}"),
            CheckState::Absent => format!("{WARN}-{WARN:#}"),
            CheckState::Missing => format!("{BAD}✗{BAD:#}"),
        };
        let _ = writeln!(text, "  {mark} {:<28}{}", check.what, check.found);
        if !check.change.is_empty() {
            let _ = writeln!(text, "{:32}{DIM}change:{DIM:#} {}", "", check.change);
        }
    }
    let missing = checks
        .iter()
        .filter(|check| check.state == CheckState::Missing);
    let _ = match missing.count() {
        0 => writeln!(text, "\nnothing is missing"),
        1 => writeln!(text, "\n1 check is missing something"),
        many => writeln!(text, "\n{many} checks are missing something"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_stands_with_what_to_change() {
        let checks = [
            Check::of(
                ("isolation", "users"),
                Ok("enforced".to_owned()),
                CheckState::Missing,
                "be root",
            ),
            Check::of(
                ("isolation", "process ids"),
                Err("the kernel has none".to_owned()),
                CheckState::Missing,
                "use another kernel",
            ),
            Check::of(
                ("features", "containers"),
                Err("no engine".to_owned()),
                CheckState::Absent,
                "start one",
            ),
        ];
        let text = anstream::adapter::strip_str(&render(&checks)).to_string();
        assert_eq!(
            text,
            "isolation\n  \
               ✓ users                       enforced\n  \
               ✗ process ids                 the kernel has none\n                                \
                                             change: use another kernel\n\
             features\n  \
               - containers                  no engine\n                                \
                                             change: start one\n\
             \n1 check is missing something\n"
        );
    }
}
