//! `pilot logs`: a function's output, with a REPORT line per invocation; with `-f` it follows the log.

use std::io::{BufRead, ErrorKind};

use anyhow::Context;
use clap::Args;
use pilot_model::FunctionName;

use super::client::Client;
use super::output;

/// The arguments of `pilot logs`.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Which function
    name: FunctionName,
    /// Follow the log
    #[arg(short, long)]
    follow: bool,
    /// Number of last lines to print
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
}

/// Prints the log.
pub(super) fn run(client: &Client, args: &LogsArgs) -> anyhow::Result<()> {
    let log = open(client, &args.name, args.lines, args.follow)?;
    copy(log, output::print_bytes)?;
    if args.follow {
        anyhow::bail!("the daemon at {} has ended the log", client.endpoint());
    }
    Ok(())
}

/// Opens the log at its last lines; with `follow` it goes on.
pub(super) fn open(
    client: &Client,
    name: &FunctionName,
    lines: u32,
    follow: bool,
) -> anyhow::Result<impl BufRead + use<>> {
    client.stream_function(name, &format!("/logs?lines={lines}&follow={follow}"))
}

/// Copies line after line, each with its line break, until the stream ends. A function may write any bytes.
pub(super) fn copy(
    mut log: impl BufRead,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        match log.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => each(&line)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("the log was interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_handed_on_one_by_one_whatever_bytes_they_hold() {
        let mut seen = Vec::new();
        copy(&b"a\n\xff\xfe\nlast"[..], |line| {
            seen.push(line.to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(
            seen,
            [b"a\n".to_vec(), b"\xff\xfe\n".to_vec(), b"last".to_vec()]
        );
    }
}
