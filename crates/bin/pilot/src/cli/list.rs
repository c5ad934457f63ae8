//! `pilot list`: all functions, one per line.

use clap::Args;
use pilot_model::deployment::FunctionSummary;

use super::client::{Client, FUNCTIONS};
use super::output::{self, Align, BAD, Table};

/// The arguments of `pilot list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the functions.
pub(super) fn run(client: &Client, args: &ListArgs) -> anyhow::Result<()> {
    let functions: serde_json::Value = client.fetch(FUNCTIONS)?;
    if args.json {
        return output::print_json(&functions);
    }
    let functions: Vec<FunctionSummary> = output::readable(functions)?;
    if functions.is_empty() {
        output::note(
            "no function is deployed: `pilot deploy DIR` deploys one, `pilot new NAME` writes one",
        );
        return Ok(());
    }
    output::print(&render(&functions, output::unix_s()))
}

fn render(functions: &[FunctionSummary], now_unix_s: u64) -> String {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("VER", Align::Right),
        ("HANDLER", Align::Left),
        ("IDLE", Align::Right),
        ("BUSY", Align::Right),
        ("MEMORY", Align::Right),
        ("CALLS", Align::Right),
        ("COLD", Align::Right),
        ("ERRORS", Align::Right),
        ("DEPLOYED", Align::Left),
    ]);
    for function in functions {
        table.row(vec![
            function.name.to_string(),
            function.number.to_string(),
            what_runs(function),
            function.workers.idle.to_string(),
            (function.workers.busy + function.workers.starting).to_string(),
            output::megabytes(function.workers.memory_bytes),
            function.totals.invocations.to_string(),
            function.totals.cold.to_string(),
            function.totals.errors.to_string(),
            output::ago(function.deployed_unix_s, now_unix_s),
        ]);
    }
    let mut text = table.render();
    for function in functions {
        if let Some(problem) = &function.problem {
            text.push_str(&format!(
                "{BAD}{}{BAD:#} cannot be invoked: {problem}\n",
                function.name
            ));
        }
    }
    text
}

/// The handler or the command, shortened to the width of a column. The runtime, if the image defines the command.
fn what_runs(function: &FunctionSummary) -> String {
    let what = match function.handler.as_str() {
        "" => &function.runtime,
        handler => handler,
    };
    if what.chars().count() <= WHAT_CHARS_MAX {
        return what.to_owned();
    }
    let mut cut: String = what.chars().take(WHAT_CHARS_MAX - 1).collect();
    cut.push('…');
    cut
}

/// Long enough for Python handlers; commands may be longer.
const WHAT_CHARS_MAX: usize = 24;

#[cfg(test)]
pub(super) mod tests {
    use pilot_model::VersionId;
    use pilot_model::status::{PoolStatus, Totals};

    use super::*;

    pub(in super::super) fn a_summary() -> FunctionSummary {
        FunctionSummary {
            name: "invert".parse().unwrap(),
            version: VersionId::from_hex("0123456789abcdef"),
            number: 3,
            runtime: "python3.11".to_owned(),
            handler: "app.handler".to_owned(),
            deployed_unix_s: 1_000,
            workers: PoolStatus {
                starting: 0,
                idle: 2,
                frozen: 0,
                busy: 1,
                waiting: 0,
                memory_bytes: 6 << 20,
            },
            totals: Totals {
                invocations: 1_234,
                cold: 12,
                errors: 1,
            },
            problem: None,
        }
    }

    #[test]
    fn the_list_fits_a_terminal() {
        let text = anstream::adapter::strip_str(&render(&[a_summary()], 1_300)).to_string();
        assert_eq!(
            text,
            "NAME    VER  HANDLER      IDLE  BUSY  MEMORY  CALLS  COLD  ERRORS  DEPLOYED\n\
             invert    3  app.handler     2     1  6.0 MB   1234    12       1  5 min ago\n"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_function_without_a_handler_shows_what_runs() {
        let mut function = a_summary();
        function.handler = "functions-framework --target hello".to_owned();
        assert_eq!(what_runs(&function), "functions-framework --t…");
        function.handler = String::new();
        function.runtime = "container qr:1".to_owned();
        assert_eq!(what_runs(&function), "container qr:1");
    }

    #[test]
    fn a_function_that_cannot_be_invoked_is_pointed_out() {
        let mut broken = a_summary();
        broken.problem = Some("its files are gone: deploy it again".to_owned());
        let text = anstream::adapter::strip_str(&render(&[broken], 1_300)).to_string();
        assert!(
            text.ends_with("invert cannot be invoked: its files are gone: deploy it again\n"),
            "{text}"
        );
    }
}
