use clap::error::ErrorKind;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_verb_of_the_documentation_is_understood() {
    for line in [
        "pilot serve --listen 127.0.0.1:9000 --data-dir /tmp/d --config pilotd.toml --strict --log-format json",
        "pilot doctor",
        "pilot doctor --config pilotd.toml --data-dir /tmp/d --json",
        "pilot new hello --template asgi",
        "pilot dev examples/hello --listen 127.0.0.1:9000 --data-dir /tmp/d",
        "pilot up",
        "pilot up examples/pilot.toml --json",
        "pilot deploy examples/hello --name hi",
        "pilot deploy examples --function hello",
        "pilot invoke hello:2 --data {} --timeline --log",
        "pilot invoke hello --file event.json -o answer.json",
        "pilot invoke hello -d -",
        "pilot list --json",
        "pilot describe hello",
        "pilot logs hello -f -n 5",
        "pilot scale hello 0",
        "pilot scale hello --policy cusum:h=6",
        "pilot scale hello 2 --policy static:2",
        "pilot simulate burst.toml --policy auto --policy static:4 --start-ms 2,100,900 --json",
        "pilot bench cold hello -n 20",
        "pilot bench warm hello --connections 16 --seconds 2 --json --samples",
        "pilot bench warm --url http://127.0.0.1:8000/ --count 100",
        "pilot bench burst hello --path / -X PUT --data x --keep-workers",
        "pilot bench load p.toml -t hello --set time_scale=2 --over-ms 700 --samples s.csv",
        "pilot bench load p.toml --target f{index} --data traces --body-text {service_ms} --threads 2",
        "pilot rollback hello",
        "pilot rollback hello 2 --json",
        "pilot remove hello",
        "pilot token create ci --role deploy --role invoke --function web --owner shop",
        "pilot token list --json",
        "pilot token revoke ci",
        "pilot version",
        "pilot completions bash",
        "pilot list --endpoint http://10.0.0.1:8080 --token secret",
    ] {
        if let Err(error) = parse(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn the_endpoint_may_stand_before_and_after_the_verb() {
    for line in [
        "pilot --endpoint http://a:1 list",
        "pilot list --endpoint http://a:1",
    ] {
        let endpoint = parse(line).unwrap().connection.endpoint();
        assert_eq!(endpoint.as_deref(), Some("http://a:1"));
    }
}

#[test]
fn an_event_in_the_wrong_place_is_told_where_it_goes() {
    for line in ["pilot invoke a {}", "pilot invoke a --payload {}"] {
        let problem = parse(line).unwrap_err().to_string();
        assert!(problem.contains("goes into --data"), "{problem}");
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (line, kind) in [
        (
            "pilot invoke a --data {} --file f",
            ErrorKind::ArgumentConflict,
        ),
        ("pilot invoke a --raw --json", ErrorKind::ArgumentConflict),
        ("pilot bench load p", ErrorKind::MissingRequiredArgument),
        (
            "pilot bench warm a --url http://b/",
            ErrorKind::ArgumentConflict,
        ),
        (
            "pilot bench cold a --samples",
            ErrorKind::MissingRequiredArgument,
        ),
        (
            "pilot bench burst a --connections 0",
            ErrorKind::ValueValidation,
        ),
        ("pilot remove a/b", ErrorKind::ValueValidation),
        ("pilot invoke a/b", ErrorKind::ValueValidation),
        ("pilot deplyo .", ErrorKind::InvalidSubcommand),
        ("pilot scale a", ErrorKind::MissingRequiredArgument),
        ("pilot scale a --policy cusmu", ErrorKind::ValueValidation),
    ] {
        assert_eq!(parse(line).unwrap_err().kind(), kind, "{line}");
    }
}

#[test]
fn the_exit_codes_are_in_the_help() {
    let help = Cli::command().render_help().to_string();
    assert!(help.contains("can be reached"), "{help}");
}
