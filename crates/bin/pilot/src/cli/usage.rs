//! Reads the arguments. A negative number is a value and no option, so that the error says what the argument must be; and what Rust or clap
//! says of a number is put in words.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};

/// Reads the arguments.
///
/// # Errors
/// They are wrong, or ask for help.
pub(super) fn parse<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<P, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    parsed(&arguments).map_err(|error| in_words::<P>(error, arguments))
}

fn parsed<P: Parser>(arguments: &[OsString]) -> Result<P, clap::Error> {
    let mut matches = with_negative_numbers(P::command()).try_get_matches_from(arguments)?;
    P::from_arg_matches_mut(&mut matches)
}

/// Prints what is wrong, or the help.
pub(super) fn report(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    let is_lost = printed.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe);
    match error.exit_code() {
        0 if is_lost => ExitCode::FAILURE,
        code => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

/// A parser of an id or a name that the daemon knows.
pub(super) fn not_empty(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("it is empty"),
        _ => Ok(text.to_owned()),
    }
}

fn with_negative_numbers(command: Command) -> Command {
    command
        .mut_args(|argument| match argument.get_action().takes_values() {
            true if !argument.is_allow_hyphen_values_set() => argument.allow_negative_numbers(true),
            _ => argument,
        })
        .mut_subcommands(with_negative_numbers)
}

fn in_words<P: Parser>(error: clap::Error, arguments: Vec<OsString>) -> clap::Error {
    if context(&error, ContextKind::InvalidSubcommand) == Some("help") {
        return clap::Error::raw(
            ErrorKind::InvalidSubcommand,
            "there is no command 'help': `pilot --help` lists the commands, and `pilot COMMAND --help` describes one\n",
        );
    }
    let (Some(problem), Some(argument), Some(value)) = (
        number_problem(&error),
        context(&error, ContextKind::InvalidArg),
        context(&error, ContextKind::InvalidValue),
    ) else {
        return error;
    };
    let problem = of_zero::<P>(arguments, argument, value).unwrap_or(problem);
    clap::Error::raw(
        ErrorKind::ValueValidation,
        format!(
            "invalid value '{value}' for '{argument}': {problem}\n\nFor more information, try '--help'.\n"
        ),
    )
}

/// What would be wrong with 0 in place of a negative number: that has the range, if there is one.
fn of_zero<P: Parser>(mut arguments: Vec<OsString>, argument: &str, value: &str) -> Option<String> {
    value.parse::<i64>().ok().filter(|number| *number < 0)?;
    *arguments.iter_mut().find(|given| *given == value)? = "0".into();
    let error = parsed::<P>(&arguments).err()?;
    let is_same = context(&error, ContextKind::InvalidArg) == Some(argument);
    is_same.then(|| number_problem(&error)).flatten()
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

fn number_problem(error: &clap::Error) -> Option<String> {
    of_number(&std::error::Error::source(error)?.to_string())
}

/// The words of `std::num` and of clap's ranges.
fn of_number(said: &str) -> Option<String> {
    let fixed = match said {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "must be a whole number, not below 0"
        }
        "invalid float literal" | "cannot parse float from empty string" => "must be a number",
        "number too large to fit in target type" => "is too large",
        "number would be zero for non-zero type" => "must be at least 1",
        _ => "",
    };
    if !fixed.is_empty() {
        return Some(fixed.to_owned());
    }
    let (value, range) = said.split_once(" is not in ")?;
    let (least, most) = range.split_once("..")?;
    Some(match (most.strip_prefix('='), value.starts_with('-')) {
        (None, _) => format!("must be at least {least}"),
        // The end is the type's.
        (Some(most), true) if LARGEST.contains(&most) && least == "0" => {
            "must be a whole number, not below 0".to_owned()
        }
        (Some(most), true) if LARGEST.contains(&most) => format!("must be at least {least}"),
        (Some(most), false) if LARGEST.contains(&most) => format!("must be at most {most}"),
        (Some(most), _) => format!("must be from {least} to {most}"),
    })
}

const LARGEST: [&str; 3] = ["65535", "4294967295", "18446744073709551615"];

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=64))]
        threads: Option<u64>,
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[arg(long)]
        pause: Option<u32>,
        #[arg(long)]
        share: Option<f64>,
        #[arg(long, value_parser = not_empty)]
        id: Option<String>,
        data: Option<String>,
    }

    fn parsed(line: &[&str]) -> Result<Typed, String> {
        let arguments = ["typed"].iter().chain(line).map(OsString::from);
        parse(arguments).map_err(|error| error.to_string())
    }

    #[derive(Debug, Parser)]
    struct WithCommands {
        #[command(subcommand)]
        _what: Commands,
    }

    #[derive(Debug, clap::Subcommand)]
    #[command(disable_help_subcommand = true)]
    enum Commands {
        List,
    }

    #[test]
    fn who_asks_for_a_command_help_is_told_what_there_is() {
        let parsed = |line: &[&str]| {
            let arguments = ["typed"].iter().chain(line).map(OsString::from);
            parse::<WithCommands>(arguments).map_err(|error| error.to_string())
        };
        assert!(parsed(&["list"]).is_ok());
        let said = parsed(&["help", "list"]).unwrap_err();
        assert!(said.contains("`pilot COMMAND --help`"), "{said}");
    }

    #[test]
    fn a_wrong_number_is_told_with_its_argument_and_range() {
        for (line, wanted) in [
            (
                ["--threads", "-1"],
                "'--threads <THREADS>': must be from 1 to 64",
            ),
            (["--threads", "65"], "must be from 1 to 64"),
            (["--count", "-3"], "'--count <COUNT>': must be at least 1"),
            (
                ["--pause", "-1"],
                "'--pause <PAUSE>': must be a whole number, not below 0",
            ),
            (["--pause", "1.5"], "must be a whole number"),
            (["--pause", "5000000000"], "must be at most 4294967295"),
            (["--pause", ""], "must be a whole number"),
            (["--share", "half"], "must be a number"),
            (["--id", ""], "'--id <ID>': it is empty"),
        ] {
            let said = parsed(&line).unwrap_err();
            assert!(said.starts_with("error: invalid value"), "{said}");
            assert!(said.contains(wanted), "{line:?}: {said}");
            assert!(said.ends_with("try '--help'.\n"), "{said}");
        }
        assert_eq!(parsed(&["-1"]).unwrap().data.as_deref(), Some("-1"));
        assert_eq!(parsed(&["--share", "-0.5"]).unwrap().share, Some(-0.5));
        assert!(
            parsed(&["--nothing"])
                .unwrap_err()
                .contains("unexpected argument")
        );
    }
}
