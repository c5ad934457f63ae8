//! What the program says when something is wrong: messages that name the cause and what to change, hints that work, and exit codes.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pilot_harness::{Daemon, DaemonOptions, Project, eventually, free_address, terminate};
use serde_json::json;

use crate::{ECHO, daemon, failure, lab, plain};

/// The command without a daemon, and without the variables of the environment that name one.
fn pilot(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilot"));
    command
        .args(arguments)
        .env_remove("PILOT_ENDPOINT")
        .env_remove("PILOT_TOKEN")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const LOOKS_UP: &str = "import socket\n\ndef handler(event, context):\n    return socket.getaddrinfo('example.com', 80)\n";

#[test]
fn a_function_without_network_that_looks_for_a_host_says_which_key_to_set() {
    let daemon = lab(LOOKS_UP, plain());
    let error = failure(&daemon, "lab", json!({}));
    assert_eq!(error["errorType"], "gaierror");
    assert!(
        !error.to_string().contains("outbound"),
        "the error body is the function's own: {error}"
    );
    let output = daemon.cli(&["invoke", "lab"]);
    let hint = "set network = \"outbound\" in pilot.toml";
    assert!(
        stderr(&output).contains("hint: ") && stderr(&output).contains(hint),
        "{}",
        stderr(&output)
    );
    eventually("the log has the hint", || {
        daemon.logs("lab").contains(hint).then_some(())
    });
}

#[test]
fn a_package_that_is_not_installed_says_where_to_add_it() {
    let wanted = "add the package with the module 'requests' to requirements.txt";
    let late = "def handler(event, context):\n    import requests.adapters\n";
    let daemon = lab(late, plain());
    let output = daemon.cli(&["invoke", "lab"]);
    assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    let early = "import requests\n\ndef handler(event, context):\n    pass\n";
    let said = daemon.deploy_fails(&Project::function("lab", early, ""));
    assert!(
        said.contains("No module named 'requests'") && said.contains(wanted),
        "{said}"
    );
}

#[test]
fn a_wrapper_script_that_has_no_effect_is_told_at_the_deployment() {
    let daemon = daemon();
    let keys = "environment = { AWS_LAMBDA_EXEC_WRAPPER = \"/opt/otel-instrument\" }";
    let said = daemon.deploy(&Project::function("lab", ECHO, keys));
    let warning = "warning      AWS_LAMBDA_EXEC_WRAPPER has no effect: ";
    assert!(said.contains(warning), "{said}");
    let described = daemon.cli_ok(&["describe", "lab"]);
    assert!(described.contains(warning), "{described}");
}

#[test]
fn only_names_that_are_near_are_suggested() {
    let daemon = daemon();
    daemon.upload_code("nser", &plain(), ECHO);
    let said = stderr(&daemon.cli(&["describe", "nothere"]));
    assert_eq!(
        said,
        "error: there is no function 'nothere': `pilot list` lists all functions\n"
    );
    let said = stderr(&daemon.cli(&["describe", "nsre"]));
    assert!(said.contains("did you mean 'nser'?"), "{said}");
}

#[test]
fn the_daemon_listens_on_a_name_and_says_why_it_cannot_listen() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().display().to_string();
    let port = free_address().port();
    let mut child = pilot(&["serve", "--data-dir", &data, "--listen"])
        .arg(format!("localhost:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it answers", || {
        TcpStream::connect(format!("localhost:{port}")).ok()
    });
    let taken = format!("127.0.0.1:{port}");
    for (address, wanted, code) in [
        (taken.as_str(), "another program listens there", 1),
        (
            "192.0.2.1:8080",
            "192.0.2.1 is not an address of this machine",
            1,
        ),
        (
            "nowhere.invalid:80",
            "the name nowhere.invalid has no address",
            2,
        ),
        ("localhost", "use ADDRESS:PORT or NAME:PORT", 2),
    ] {
        let other = tempfile::tempdir().unwrap();
        let output = pilot(&["serve", "--listen", address, "--data-dir"])
            .arg(other.path().join("data"))
            .args(config_with_tokens(other.path()))
            .output()
            .unwrap();
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
    terminate(&mut child);
}

/// Tokens, so that an address that others can reach is not refused for their absence.
fn config_with_tokens(folder: &Path) -> [String; 2] {
    let file = folder.join("pilotd.toml");
    std::fs::write(&file, "control_token = \"c\"\ninvoke_token = \"i\"\n").unwrap();
    ["--config".to_owned(), file.display().to_string()]
}

#[test]
fn a_wrong_value_in_the_daemons_configuration_names_file_line_and_key() {
    let options = DaemonOptions {
        config: Some("strict = false\n[limits]\nmemory_mb = \"2G\"\n".to_owned()),
        ..DaemonOptions::default()
    };
    let (code, said) = Daemon::refuses_to_start(env!("CARGO_BIN_EXE_pilot"), options);
    assert!(
        said.contains(
            "pilotd.toml:3: limits.memory_mb: is \"2G\", must be a whole number, not below 0"
        ),
        "{said}"
    );
    assert_eq!(code, Some(2));
}

#[test]
fn hints_name_the_daemon_of_the_environment() {
    let home = Project::empty();
    let new = |name: &str, template: &str, endpoint: Option<&str>| {
        let folder = home.path().join(name).display().to_string();
        let mut command = pilot(&["new", &folder, "--template", template]);
        if let Some(endpoint) = endpoint {
            command.env("PILOT_ENDPOINT", endpoint);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let said = new("one", "http", None);
    assert!(
        said.contains("curl http://127.0.0.1:8080/fn/one/"),
        "{said}"
    );
    let said = new("two", "http", Some("http://10.0.0.7:9000"));
    assert!(said.contains("curl http://10.0.0.7:9000/fn/two/"), "{said}");
    let said = new("three", "event", Some("http://10.0.0.7:9000"));
    assert!(said.contains("pilot invoke three --data"), "{said}");
    assert!(!said.contains("--endpoint"), "{said}");
    let gone = pilot(&["list"])
        .env("PILOT_ENDPOINT", "http://127.0.0.1:9")
        .output()
        .unwrap();
    assert!(
        stderr(&gone).contains("no daemon at http://127.0.0.1:9: check the address"),
        "{}",
        stderr(&gone)
    );
}

#[test]
fn the_hint_of_dev_works_whatever_other_daemons_there_are() {
    let project = Project::function("lab", ECHO, "");
    // Somebody may have the usual address for functions.
    let _taken = TcpListener::bind("127.0.0.1:8080");
    for endpoint in ["", "http://127.0.0.1:9"] {
        let mut dev = pilot(&["dev", &project.path().display().to_string()])
            .env("PILOT_ENDPOINT", endpoint)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(dev.stderr.take().unwrap()).lines();
        let hint = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("in another terminal: ")?.1.to_owned()))
            .unwrap();
        let words: Vec<&str> = hint.split(' ').skip(1).collect();
        let output = pilot(&words)
            .env("PILOT_ENDPOINT", endpoint)
            .output()
            .unwrap();
        assert!(output.status.success(), "{hint}: {}", stderr(&output));
        terminate(&mut dev);
    }
}

#[test]
fn usage_errors_show_the_arguments_that_are_needed_and_no_others() {
    for (arguments, usage) in [
        (&["describe"][..], "Usage: pilot describe <NAME>"),
        (&["scale"], "Usage: pilot scale [OPTIONS] <NAME> <N>"),
        (&["bench", "cold"], "Usage: pilot bench cold <NAME>"),
    ] {
        let output = pilot(arguments)
            .env("PILOT_ENDPOINT", "http://127.0.0.1:9")
            .env("PILOT_TOKEN", "secret")
            .output()
            .unwrap();
        let said = stderr(&output);
        assert!(said.contains(usage), "{said}");
        assert!(
            !said.contains("--endpoint") && !said.contains("secret"),
            "{said}"
        );
        assert_eq!(output.status.code(), Some(2));
    }
    let output = pilot(&["scale", "0", "greet"]).output().unwrap();
    assert!(
        stderr(&output).contains("after the function's name: `pilot scale NAME 0`"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn wrong_values_of_arguments_say_what_they_must_be() {
    for (arguments, wanted) in [
        (
            &["logs", "lab", "--since", "-5m"][..],
            "neither a duration like 30s",
        ),
        (&["logs", "lab", "-n", "many"], "must be a whole number"),
        (
            &["rollback", "lab", "last"],
            "must be the number of a version",
        ),
        (
            &["prune", "--versions", "--older-than", "long"],
            "must be a duration like 12h or 30d",
        ),
        (&["new", ".."], "'..' is not a function name"),
        (
            &["logs", "lab", "-n", "-1"],
            "'--lines <N>': must be a whole number",
        ),
        (&["scale", "lab", "-1"], "must be a number of workers"),
        (
            &["rollback", "lab", "-1"],
            "must be the number of a version",
        ),
        (
            &["async", "list", "--limit", "-1"],
            "'--limit <N>': must be from 1 to 1000",
        ),
        (
            &["list", "--endpoint", "http://[::1"],
            "the endpoint \"http://[::1\" is neither unix:PATH nor http://HOST:PORT",
        ),
        (
            &["list", "--endpoint", "http://127.0.0.1:99999"],
            "the endpoint \"http://127.0.0.1:99999\" is neither",
        ),
        (
            &["list", "--token", "two\nlines"],
            "the token (--token or PILOT_TOKEN) has a space, a line break",
        ),
        (
            &["deploy", "nowhere"],
            "nowhere does not exist: name the folder",
        ),
        (
            &["up", "nowhere"],
            "nowhere does not exist: name the folder",
        ),
        (
            &["cost", "--trace", "-", "--billing", "/proc/version"],
            "/proc/version: line 1, \"Linux",
        ),
        (
            &["serve", "--control-listen", "localhost"],
            "use ADDRESS:PORT or NAME:PORT",
        ),
        (&["bench", "warm", "lab", "-n", "-1"], "must be at least 1"),
        (
            &["bench", "load", "p.toml", "-t", "lab", "--threads", "65"],
            "must be from 1 to 64",
        ),
        (&["async", "show", ""], "'<ID>': it is empty"),
        (
            &["logs", "lab", "--request", ""],
            "'--request <ID>': it is empty",
        ),
        (&["token", "revoke", ""], "'<NAME>': it is empty"),
    ] {
        let output = pilot(arguments).output().unwrap();
        let said = stderr(&output);
        assert!(said.contains(wanted), "{arguments:?}: {said}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    }
}

#[test]
fn a_folder_as_awss_console_makes_it_is_a_function_and_any_error_is_shown() {
    let code = "def lambda_handler(event, context):\n    raise ValueError('a \\ud800 b')\n";
    let files = Project::empty().file("hello/lambda_function.py", code);
    let folder = files.path().join("hello").display().to_string();
    let daemon = daemon();
    daemon.cli_ok(&["deploy", &folder]);
    let said = stderr(&daemon.cli(&["invoke", "hello"]));
    assert!(said.starts_with("ValueError: a \u{fffd}"), "{said}");
}

#[test]
fn more_workers_than_the_function_may_have_are_refused() {
    let daemon = lab(ECHO, json!({"scale": {"max": 2}}));
    for too_many in [
        ["scale", "lab", "3"].as_slice(),
        &["scale", "lab", "--policy", "static:3"],
    ] {
        let output = daemon.cli(too_many);
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(
            said.contains("function 'lab' has at most 2 workers (scale.max), and 3 were asked for"),
            "{said}"
        );
    }
    daemon.cli_ok(&["scale", "lab", "2", "--policy", "static:2"]);
}

/// The table of exit codes: the code, its meaning as in `pilot --help` and in the README, and commands that end with it.
#[test]
fn every_exit_code_is_as_the_table_says() {
    let daemon = lab(
        "def handler(event, context):\n    assert event.get('fine')\n",
        plain(),
    );
    let files = Project::empty()
        .file("broken/pilot.toml", "[functions.a\n")
        .file("empty/README", "")
        .file("nowhere/pilot.toml", "[functions.a]\npath = \"gone\"\n")
        .file(
            "unbuilt/pilot.toml",
            "[functions.a]\nruntime = \"wasm\"\ncomponent = \"a.wasm\"\n",
        )
        .file("pilotd.toml", "lissten = 1\n");
    let at = |name: &str| files.path().join(name).display().to_string();
    let (broken, empty, nowhere) = (at("broken"), at("empty"), at("nowhere"));
    let (gone, config) = (at("gone"), at("pilotd.toml"));
    let fine = ["invoke", "lab", "--data", "{\"fine\": true}"];
    let table: [(i32, &str, &[&[&str]]); 4] = [
        (0, "success", &[&fine, &["list"], &["version"]]),
        (
            1,
            "the function failed, or the daemon refused the request or the deployment",
            &[
                &["invoke", "lab"],
                &["invoke", "nobody"],
                &["describe", "nobody"],
                &["rollback", "lab"],
                &["bench", "warm", "lab", "-n", "1"],
            ],
        ),
        (
            2,
            "invalid arguments, or a file or folder that is invalid or missing",
            &[
                &["dance"],
                &["list", "--loud"],
                &["list", "--endpoint", "ftp://a"],
                &["invoke", "lab", "--data", "{"],
                &["invoke", "lab", "--file", &gone],
                &["deploy", &gone],
                &["deploy", &broken],
                &["deploy", &empty],
                &["deploy", &nowhere],
                &["deploy", &at("unbuilt")],
                &["up", &at("unbuilt/pilot.toml")],
                &["up", &gone],
                &["up", &broken],
                &["dev", &gone],
                &["dev", &broken],
                &["serve", "--config", &gone],
                &["serve", "--config", &config],
                &["secret", "set", "key", "--from-file", &gone],
                &["simulate", &gone],
                &["bench", "load", &gone, "--target", "lab"],
            ],
        ),
        (
            3,
            "no daemon, or no server to measure, can be reached",
            &[
                &["list", "--endpoint", "http://127.0.0.1:1"],
                &["list", "--endpoint", "http://nowhere.invalid:8080"],
                &["list", "--endpoint", "http://nowhere.invalid"],
                &["deploy", &at("fine"), "--endpoint", "http://127.0.0.1:1"],
                &["bench", "warm", "--url", "http://127.0.0.1:1/"],
                &["bench", "warm", "--url", "http://nowhere.invalid/"],
            ],
        ),
    ];
    files.write("fine/app.py", ECHO);
    let help = String::from_utf8(pilot(&["--help"]).output().unwrap().stdout).unwrap();
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    for (code, meaning, commands) in table {
        assert!(
            help.contains(&format!("  {code:<3}  {meaning}\n")),
            "{meaning}: {help}"
        );
        assert!(readme.contains(&format!("{code} {meaning}")), "{meaning}");
        for arguments in commands {
            let output = daemon.cli(arguments);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{arguments:?}: {}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn a_file_that_cannot_be_used_is_not_the_machines_fault() {
    let files = Project::empty()
        .file("file", "")
        .file("long", "x".repeat(70_000))
        .file(
            "store.toml",
            "[stores.a]\nkind = \"redis\"\nfunctions = []\nurl = \"redis://h\"\npassword_file = \"/gone\"\n",
        )
        .file(
            "tls.toml",
            "tls_certificate = \"/gone\"\ntls_key = \"/gone\"\n",
        )
        .file(
            "endpoint.toml",
            "[stores.a]\nkind = \"s3\"\nfunctions = [\"*\"]\nendpoint = \"http://127.0.0.1:99999\"\n",
        )
        .file("damaged/registry.sqlite", "x".repeat(9_000));
    let at = |name: &str| files.path().join(name).display().to_string();
    let daemon = daemon();
    for arguments in [
        &["serve", "--data-dir", &at("file")][..],
        &["serve", "--data-dir", &at("damaged")],
        &[
            "serve",
            "--data-dir",
            &at("a"),
            "--config",
            &at("store.toml"),
        ],
        &["serve", "--data-dir", &at("b"), "--config", &at("tls.toml")],
        &[
            "serve",
            "--data-dir",
            &at("c"),
            "--config",
            &at("endpoint.toml"),
        ],
        &["new", &at("file/below")],
        &["new", &at("damaged")],
        &["new", "--template", "none", "a"],
        &["secret", "set", "key", "--from-file", &at("file")],
        &["secret", "set", "key", "--from-file", &at("long")],
        &["secret", "set", "a b"],
    ] {
        let output = daemon.cli(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    }
    let data_dir = daemon.data_dir().display().to_string();
    let output = pilot(&["serve", "--data-dir", &data_dir]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
}
