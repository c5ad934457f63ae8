//! `pilot secret`: sets, lists and removes secrets.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use nix::sys::termios::{self, LocalFlags, SetArg};
use pilot_model::api::SecretInfo;
use pilot_model::secret::VALUE_BYTES_MAX;
use pilot_model::{FunctionName, SecretName};

use super::client::Client;
use super::failure::Failure;
use super::interrupt;
use super::output::{self, Align, Table};
use super::usage::not_empty;

/// The arguments of `pilot secret`.
#[derive(Debug, Args)]
pub(super) struct SecretArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Set a secret. The value is read from standard input, or asked for
    Set(SetArgs),
    /// List all secrets, without their values
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a secret
    Rm {
        /// The secret's name
        name: SecretName,
        /// The owner of the functions that may use it
        #[arg(long, value_name = "OWNER", value_parser = not_empty)]
        owner: Option<String>,
        /// Even if functions use it: their next workers do not start
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The secret's name. There is no argument for the value, because other users could see it
    name: SecretName,
    /// The owner of the functions that may use it. Without an owner, it is for every function that is deployed over the control
    /// socket or with a token for all functions
    #[arg(long, value_name = "OWNER", value_parser = not_empty)]
    owner: Option<String>,
    /// Take the value from this file, byte by byte. From standard input, one line end at the end is left out
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
}

/// Runs the subcommand.
pub(super) fn run(client: &Client, args: &SecretArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Set(args) => set(client, args),
        What::List { json } => list(client, *json),
        What::Rm { name, owner, force } => {
            let mut path = path(name, owner.as_deref());
            if *force {
                path.push_str(if owner.is_some() { "&" } else { "?" });
                path.push_str("force=true");
            }
            client.delete(&path)?;
            output::print(&format!("{name}  removed\n"))
        }
    }
}

fn set(client: &Client, args: &SetArgs) -> anyhow::Result<()> {
    let value = match &args.from_file {
        Some(file) => of_file(file).map_err(|error| Failure::input(&error))?,
        None => of_input(&args.name)?,
    };
    check(&value, args.from_file.as_deref())?;
    let info: SecretInfo = client.put_bytes(&path(&args.name, args.owner.as_deref()), &value)?;
    let owner = if info.owner.is_empty() {
        String::new()
    } else {
        format!(" of {}", info.owner)
    };
    let mut text = format!("{}{owner}  set\n", info.name);
    if !info.used_by.is_empty() {
        let users = names(&info.used_by);
        text.push_str(&format!(
            "new workers of {users} have it from now on; running invocations finish with the previous value\n"
        ));
    }
    output::print(&text)
}

fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let secrets: Vec<SecretInfo> = client.fetch(SECRETS)?;
    if json {
        return output::print_json(&secrets);
    }
    let now = output::unix_s();
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("OWNER", Align::Left),
        ("CHANGED", Align::Left),
        ("USED BY", Align::Left),
    ]);
    for secret in secrets {
        table.row(vec![
            secret.name.to_string(),
            secret.owner,
            output::ago(secret.changed_unix_s, now),
            names(&secret.used_by),
        ]);
    }
    output::print(&table.render())
}

fn names(functions: &[FunctionName]) -> String {
    let names: Vec<&str> = functions.iter().map(FunctionName::as_str).collect();
    names.join(", ")
}

/// Names need no escaping. An owner that does is refused by the daemon.
fn path(name: &SecretName, owner: Option<&str>) -> String {
    let owner = owner.map_or_else(String::new, |owner| {
        let owner: String = form_urlencoded::byte_serialize(owner.as_bytes()).collect();
        format!("?owner={owner}")
    });
    format!("{SECRETS}/{name}{owner}")
}

fn of_file(file: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = file.display();
    let opened = File::open(file).with_context(|| format!("cannot read {shown}"))?;
    bounded(opened).with_context(|| format!("cannot read {shown}"))
}

/// Asks for a line if somebody types; otherwise reads everything.
fn of_input(name: &SecretName) -> anyhow::Result<Vec<u8>> {
    let stdin = io::stdin();
    let mut value = if stdin.is_terminal() {
        asked(name)?
    } else {
        let read = bounded(stdin.lock()).context("cannot read standard input");
        read.map_err(|error| Failure::input(&error))?
    };
    if value.ends_with(b"\n") {
        value.pop();
        if value.ends_with(b"\r") {
            value.pop();
        }
    }
    Ok(value)
}

/// `file`: where it is from, if not from standard input.
fn check(value: &[u8], file: Option<&Path>) -> Result<(), Failure> {
    let problem = match (value.len(), file) {
        (1..=VALUE_BYTES_MAX, _) => return Ok(()),
        (0, None) => {
            "the value is empty: write it to standard input, or use --from-file".to_owned()
        }
        (0, Some(file)) => format!(
            "{} is empty: a secret has at least one byte",
            file.display()
        ),
        (_, None) => format!(
            "the value has more than {VALUE_BYTES_MAX} bytes, which is the most that a secret has"
        ),
        (_, Some(file)) => format!(
            "{} has more than {VALUE_BYTES_MAX} bytes, which is the most that a secret has",
            file.display()
        ),
    };
    Err(Failure::usage(problem))
}

/// One line from the terminal, which does not show it (termios(3), `ECHO`).
fn asked(name: &SecretName) -> anyhow::Result<Vec<u8>> {
    let stdin = io::stdin();
    let before = termios::tcgetattr(&stdin).context("cannot ask for the value")?;
    let restored = before.clone();
    // Otherwise the shell would not show what is typed, either.
    interrupt::on_interrupt(move || {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &restored);
        std::process::exit(interrupt::EXIT_CODE.into());
    })?;
    let mut silent = before.clone();
    silent.local_flags.remove(LocalFlags::ECHO);
    termios::tcsetattr(&stdin, SetArg::TCSAFLUSH, &silent).context("cannot hide what is typed")?;
    eprint!("value of {name}: ");
    let _ = io::stderr().flush();
    let mut line = Vec::new();
    let read = stdin
        .lock()
        .take(VALUE_BYTES_MAX as u64 + 3)
        .read_until(b'\n', &mut line);
    let restored = termios::tcsetattr(&stdin, SetArg::TCSANOW, &before);
    eprintln!();
    read.context("cannot read the value")?;
    restored.context("cannot show again what is typed")?;
    Ok(line)
}

fn bounded(from: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut value = Vec::new();
    from.take(VALUE_BYTES_MAX as u64 + 3)
        .read_to_end(&mut value)?;
    Ok(value)
}

const SECRETS: &str = "/_pilot/v1/secrets";
