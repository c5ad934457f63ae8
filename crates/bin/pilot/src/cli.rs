//! The command line: its commands and exit codes.
//!
//! Each command has a file with its arguments and a function `run`. Client commands block; none of them starts an async runtime.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::connection::Connection;
use self::failure::Failure;
use crate::serve_args::ServeArgs;

mod asynchronous;
mod bench;
mod client;
mod connection;
mod cost;
mod deploy;
mod describe;
mod dev;
mod doctor;
mod failure;
mod indent;
mod initscript;
mod interrupt;
mod invoke;
mod layers;
mod list;
mod logs;
mod multipart;
mod new;
mod output;
mod pack;
mod phases;
mod profile;
mod progress;
mod project;
mod prune;
mod reader;
mod remove;
mod report;
mod rightsize;
mod rollback;
mod scale;
mod secret;
mod serve;
mod simulate;
mod token;
mod usage;
mod version;

/// Runs AWS Lambda-style functions on this machine, with short cold starts.
#[derive(Debug, Parser)]
#[command(
    name = "pilot",
    version,
    after_help = AFTER_HELP,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon
    Serve(ServeArgs),
    /// Say what this machine can enforce, what is missing, and what to change
    Doctor(doctor::DoctorArgs),
    /// Create a new function in a folder of its own
    New(new::NewArgs),
    /// Serve a folder, and deploy it again after every edit
    Dev(dev::DevArgs),
    /// Deploy every function of a pilot.toml
    Up(deploy::UpArgs),
    /// Deploy one function
    Deploy(deploy::DeployArgs),
    /// Invoke a function and print its response
    Invoke(invoke::InvokeArgs),
    /// List all functions
    List(list::ListArgs),
    /// Show one function, its template and its last cold start
    Describe(describe::DescribeArgs),
    /// Print a function's log
    Logs(logs::LogsArgs),
    /// List, show or cancel asynchronous invocations
    Async(asynchronous::AsyncArgs),
    /// List, show, redrive or purge dead letters: asynchronous invocations that failed
    Dlq(asynchronous::DlqArgs),
    /// Say what the same invocations would have cost on other platforms
    Cost(cost::CostArgs),
    /// Recommend a size for a function, from the CPU time and memory of its calls
    Rightsize(rightsize::RightsizeArgs),
    /// Retire idle workers down to a number now, or change the scaling policy
    Scale(scale::ScaleArgs),
    /// Make an earlier version the live one again
    Rollback(rollback::RollbackArgs),
    /// Simulate scaling policies on a workload, in virtual time
    Simulate(simulate::args::SimulateArgs),
    /// Measure, infer or model what a CPU limit does to a function
    Profile(profile::ProfileArgs),
    /// Measure a function or any other HTTP server
    Bench(bench::BenchArgs),
    /// Remove a function
    Remove(remove::RemoveArgs),
    /// Set, list or remove secrets, which functions get as variables or files
    Secret(secret::SecretArgs),
    /// Remove files that nothing uses, and old versions if asked for
    Prune(prune::PruneArgs),
    /// Make, list or revoke tokens for the API over TCP
    Token(token::TokenArgs),
    /// Print the versions of this binary and of the daemon
    Version(version::VersionArgs),
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

const AFTER_HELP: &str = "\
Exit codes:
  0    success
  1    the function failed, or the daemon refused the request or the deployment
  2    invalid arguments, or a file or folder that is invalid or missing
  3    no daemon, or no server to measure, can be reached
  130  interrupted by Ctrl-C

A first function: `pilot new hello`, then `pilot dev hello`.";

/// Parses the arguments, runs the command and returns the exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match usage::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_failure(&error),
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let client = || client::Client::new(&cli.connection);
    match cli.verb {
        Verb::Serve(args) => serve::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::New(args) => new::run(&cli.connection, &args),
        Verb::Dev(args) => dev::run(&args),
        Verb::Up(args) => deploy::up(&client()?, &args),
        Verb::Deploy(args) => deploy::run(&client()?, &args),
        Verb::Invoke(args) => invoke::run(&client()?, &args),
        Verb::List(args) => list::run(&client()?, &args),
        Verb::Describe(args) => describe::run(&client()?, &args),
        Verb::Logs(args) => logs::run(&client()?, &args),
        Verb::Async(args) => asynchronous::run(&client()?, &args),
        Verb::Dlq(args) => asynchronous::dlq(&client()?, &args),
        Verb::Cost(args) => cost::run(&client, &args),
        Verb::Rightsize(args) => rightsize::run(client, &args),
        Verb::Scale(args) => scale::run(&client()?, &args),
        Verb::Rollback(args) => rollback::run(&client()?, &args),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Profile(args) => profile::run(&args),
        Verb::Bench(args) => bench::run(&client()?, &cli.connection, &args),
        Verb::Remove(args) => remove::run(&client()?, &args),
        Verb::Secret(args) => secret::run(&client()?, &args),
        Verb::Prune(args) => prune::run(&client()?, &args),
        Verb::Token(args) => token::run(&client()?, &args),
        Verb::Version(args) => version::run(&client()?, &args),
        Verb::Completions { shell } => completions(shell),
    }
}

/// Prints the error to standard error and returns the exit code.
fn report_failure(error: &anyhow::Error) -> ExitCode {
    let failure = error.downcast_ref::<Failure>();
    if !matches!(
        failure,
        Some(
            Failure::Reported
                | Failure::InputReported
                | Failure::Interrupted
                | Failure::Terminated
                | Failure::ReaderGone
        )
    ) {
        output::error(&format!("{error:#}"));
    }
    if let Some(Failure::Refused { error, .. }) = failure {
        output::detail(&error.detail);
    }
    ExitCode::from(failure.map_or(failure::GENERAL, Failure::exit_code))
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pilot", &mut script);
    output::print_bytes(&script)
}

#[cfg(test)]
mod tests;
