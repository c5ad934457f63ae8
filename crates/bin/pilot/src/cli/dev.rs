//! `pilot dev`: runs a daemon for a folder, deploys the folder again after every edit, and prints the functions' logs.
//!
//! It has other threads besides the main one: one waits for signals, one for the daemon's end ([`daemon`]), and one per function
//! copies its log. They end with the process. None holds a resource that outlives the daemon.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use pilot_model::FunctionName;
use pilot_model::log_line::{LogLine, LogSource};

use self::daemon::Daemon;
use self::message::{Ended, Message};
use self::watch::Watch;
use super::client::Client;
use super::connection::command_for;
use super::deploy::{self, Course};
use super::failure::Failure;
use super::output::{self, DIM, GOOD, STRONG};
use super::progress::Show;
use super::project::{Project, Target};
use super::{logs, report};

mod address;
mod daemon;
mod data_dir;
mod message;
mod watch;

/// The arguments of `pilot dev`.
#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// A folder with a pilot.toml, an app.py or an index.mjs
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Address that the daemon listens on [default: 127.0.0.1:8080 if it is free, else a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR", value_parser = crate::listen::address)]
    listen: Option<SocketAddr>,
    /// The daemon's data directory [default: .pilot/dev in the folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Serves the folder until Ctrl-C.
pub(super) fn run(args: &DevArgs) -> anyhow::Result<()> {
    let project = Project::read(&args.dir, None)?;
    if let Some(remark) = project.remark() {
        output::note(&remark);
    }
    let (sender, inbox) = mpsc::channel();
    let data_dir = match &args.data_dir {
        Some(given) => given.clone(),
        None => data_dir::inside(&args.dir)?,
    };
    let address = match args.listen {
        Some(address) => address,
        None => address::choose()?,
    };
    let daemon = Daemon::start(&data_dir, address, sender.clone())?;
    let client = Client::at(Some(&daemon.endpoint()), None, None)?;
    if let Some(ended) = wait_until_ready(&client, &inbox)? {
        return result(ended);
    }
    // Before the first deployment, so that no edit during it is missed.
    let watch = Watch::start(&project, sender)?;
    let mut session = Session {
        dir: args.dir.clone(),
        project,
        client,
        watch,
        followed: BTreeSet::new(),
        stopping: daemon.stopping(),
    };
    session.begin();
    loop {
        let ended = match inbox.recv().context("the watcher has ended")? {
            Message::Changed(path) => session.redeploy(path, &inbox),
            Message::Ended(ended) => Some(ended),
        };
        if let Some(ended) = ended {
            return result(ended);
        }
    }
}

fn result(ended: Ended) -> anyhow::Result<()> {
    match ended {
        Ended::AsTold => {
            output::note("\nstopped");
            Ok(())
        }
        Ended::ByItself(status) => {
            anyhow::bail!("the daemon ended unexpectedly ({status}); its last log lines are above")
        }
    }
}

/// The state of the main thread, except the daemon.
#[derive(Debug)]
struct Session {
    dir: PathBuf,
    project: Project,
    client: Client,
    watch: Watch,
    /// Functions whose log is printed.
    followed: BTreeSet<FunctionName>,
    /// Set when the daemon has been told to stop. Later failures are not reported.
    stopping: Arc<AtomicBool>,
}

impl Session {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn begin(&mut self) {
        for target in self.project.targets.clone() {
            match deploy::deploy(&self.client, &target, Show::Progress, &Course::default()) {
                Ok(report) => {
                    let _ = output::print(&report::deployed(&report, &self.client.functions_url()));
                    self.follow(&target);
                }
                Err(_) if self.is_stopping() => return,
                Err(error) => tell_failure(&target, &error),
            }
        }
        output::note(&format!(
            "\n{DIM}watching {}; Ctrl-C stops{DIM:#}",
            self.dir.display()
        ));
        if let Some(target) = self.project.targets.first() {
            let invoke = format!("invoke {}", target.name);
            let invoke = command_for(Some(self.client.endpoint()), &invoke);
            output::note(&format!("{DIM}in another terminal: {invoke}{DIM:#}"));
        }
    }

    /// Waits until the edits pause, and deploys the functions that they change. `Some`: the daemon has ended.
    fn redeploy(&mut self, first: PathBuf, inbox: &Receiver<Message>) -> Option<Ended> {
        let edited = Instant::now();
        let mut changed = vec![first];
        while let Some(left) = PAUSE_MAX.checked_sub(edited.elapsed()) {
            match inbox.recv_timeout(left.min(PAUSE)) {
                Ok(Message::Changed(path)) => changed.push(path),
                Ok(Message::Ended(ended)) => return Some(ended),
                Err(_) => break,
            }
        }
        if changed.iter().any(|path| self.watch.is_manifest(path))
            && let Err(error) = self.read_again()
        {
            output::error(&format!("{error:#}"));
            return None;
        }
        let concerned: Vec<Target> = self
            .project
            .targets
            .iter()
            .filter(|target| changed.iter().any(|path| self.watch.concerns(target, path)))
            .cloned()
            .collect();
        if let Err(error) = self.watch.refresh(&self.project) {
            output::error(&format!("{error:#}"));
            return None;
        }
        for target in concerned {
            match deploy::deploy(&self.client, &target, Show::Nothing, &Course::default()) {
                Ok(report) => {
                    if report.changed {
                        let took = output::duration(edited.elapsed());
                        output::note(&format!(
                            "{GOOD}✓{GOOD:#} {STRONG}{}{STRONG:#}  version {}, live {took} after the edit",
                            report.name, report.number
                        ));
                    }
                    self.follow(&target);
                }
                Err(_) if self.is_stopping() => return None,
                Err(error) => tell_failure(&target, &error),
            }
        }
        None
    }

    /// Reads the manifest again. Removes functions that are no longer in it.
    fn read_again(&mut self) -> anyhow::Result<()> {
        let project = Project::read(&self.dir, None)?;
        for gone in &self.project.targets {
            let stays = project
                .targets
                .iter()
                .any(|target| target.name == gone.name);
            if !stays && self.followed.remove(&gone.name) {
                self.client.delete_function(&gone.name)?;
                output::note(&format!("{}  removed", gone.name));
            }
        }
        let had_manifest = self.project.manifest.is_some();
        self.project = project;
        // Without its manifest, the function gets the defaults.
        if had_manifest && let Some(remark) = self.project.remark() {
            output::note(&remark);
        }
        Ok(())
    }

    /// Starts to print a function's log, once.
    fn follow(&mut self, target: &Target) {
        if !self.followed.insert(target.name.clone()) {
            return;
        }
        let client = self.client.clone();
        let name = target.name.clone();
        thread::spawn(move || {
            // Ends with the daemon or when the function is removed. After a broken connection the log is opened again.
            while let Ok(log) = logs::follow(&client, &name) {
                let _ = logs::copy(log, |line| {
                    output::print(&log_line(&name, &logs::parse(line)?))
                });
            }
        });
    }
}

/// `NAME │ text` of the function, `NAME ┃ text` of Pilotlight.
fn log_line(name: &FunctionName, line: &LogLine) -> String {
    let (_, text) = line.render_parts();
    match line.source {
        LogSource::Platform => format!("{DIM}{name} ┃ {text}{DIM:#}\n"),
        LogSource::Function | LogSource::Unknown => format!("{DIM}{name} │{DIM:#} {text}\n"),
    }
}

fn tell_failure(target: &Target, error: &anyhow::Error) {
    output::not_deployed(&target.name, error);
    if let Some(Failure::Refused { error, .. }) = error.downcast_ref() {
        output::detail(&error.detail);
    }
}

/// `None`: the daemon is ready. `Some`: it ended before it was ready.
fn wait_until_ready(client: &Client, inbox: &Receiver<Message>) -> anyhow::Result<Option<Ended>> {
    let begun = Instant::now();
    while client
        .fetch::<serde_json::Value>("/_pilot/v1/version")
        .is_err()
    {
        if begun.elapsed() > READY_MAX {
            anyhow::bail!("the daemon at {} does not answer", client.endpoint());
        }
        // Nothing is watched yet, so the only message is the daemon's end.
        if let Ok(Message::Ended(ended)) = inbox.recv_timeout(READY_RETRY) {
            return Ok(Some(ended));
        }
    }
    Ok(None)
}

/// Edits within this time are deployed together.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest wait for further edits.
const PAUSE_MAX: Duration = Duration::from_millis(50);
const READY_MAX: Duration = Duration::from_secs(30);
const READY_RETRY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_carry_the_functions_name() {
        let shown = |source, text: &str| {
            let line = LogLine {
                time: None,
                source,
                request_id: None,
                text: text.to_owned(),
            };
            let line = log_line(&"a".parse().unwrap(), &line);
            anstream::adapter::strip_str(&line).to_string()
        };
        assert_eq!(
            shown(LogSource::Function, "greeting \u{1b}[2J"),
            "a │ greeting \\u{1b}[2J\n"
        );
        assert_eq!(shown(LogSource::Platform, "REPORT x"), "a ┃ REPORT x\n");
    }
}
