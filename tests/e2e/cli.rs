//! The command line, command by command.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pilot_harness::{Daemon, Project, eventually, eventually_within, free_address};
use serde_json::{Value, json};

use crate::{ECHO, answer, daemon, lab, plain};

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn version_prints_the_version_without_a_daemon() {
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .arg("version")
        .env("PILOT_ENDPOINT", "http://127.0.0.1:1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains(env!("CARGO_PKG_VERSION")),
        "{}",
        text(&output)
    );
}

#[test]
fn new_makes_a_project_that_deploys_and_answers() {
    let daemon = daemon();
    let home = Project::empty();
    let folder = home.path().join("greeter");
    daemon.cli_ok(&["new", &folder.display().to_string()]);
    assert!(folder.join("pilot.toml").exists());
    daemon.deploy_dir(&folder);
    let name = daemon.get("/_pilot/v1/functions").ok().json()[0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(name, "greeter");
    daemon.invoke(&name, &json!({})).ok();
}

#[test]
fn new_names_the_address_at_which_the_daemon_serves_functions() {
    let daemon = daemon();
    let home = Project::empty();
    let folder = home.path().join("pages");
    let said = daemon.cli_ok(&["new", "--template", "asgi", &folder.display().to_string()]);
    let wanted = format!("curl http://{}/fn/pages/", daemon.address());
    assert!(said.contains(&wanted), "{wanted}: {said}");
}

#[test]
fn a_request_without_lines_in_the_log_is_an_error() {
    let daemon = lab(ECHO, plain());
    let output = daemon.cli(&["logs", "lab", "--request", "none"]);
    assert_eq!(output.status.code(), Some(1));
    let wanted = "error: the log of 'lab' has no lines of request none\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), wanted);
}

#[test]
fn a_token_for_a_function_that_is_not_deployed_comes_with_a_warning() {
    let daemon = lab(ECHO, plain());
    let create = |token: &str, function: &str| {
        let all = [
            "token",
            "create",
            token,
            "--role",
            "invoke",
            "--function",
            function,
        ];
        let output = daemon.cli(&all);
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let warned = create("one", "lap");
    let wanted = "warning: function 'lap' is not deployed; did you mean 'lab'?";
    assert!(warned.contains(wanted), "{warned}");
    assert!(!create("two", "lab").contains("warning"));
}

#[test]
fn lists_of_a_function_that_is_not_deployed_come_with_a_warning() {
    let daemon = lab(ECHO, plain());
    for arguments in [
        &["async", "list", "--function", "lap"][..],
        &["dlq", "list", "--function", "lap"],
        &["dlq", "redrive", "--function", "lap"],
        &["dlq", "purge", "--function", "lap"],
    ] {
        let output = daemon.cli(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let wanted = "warning: function 'lap' is not deployed; did you mean 'lab'?";
        assert!(said.contains(wanted), "{arguments:?}: {said}");
        assert!(output.status.success(), "{arguments:?}");
    }
    let output = daemon.cli(&["dlq", "list", "--function", "lab"]);
    assert!(output.stderr.is_empty(), "{}", text(&output));
}

#[test]
fn new_refuses_a_name_that_commands_would_read_as_an_option() {
    let home = Project::empty();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["new", "--", "-x"])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(
        text(&output).contains("read as an option"),
        "{}",
        text(&output)
    );
    assert!(!home.path().join("-x").exists());
}

#[test]
fn deploying_a_file_of_code_names_its_folder() {
    let daemon = daemon();
    let project = Project::function("lab", ECHO, "");
    let file = project.path().join("app.py");
    let output = daemon.cli(&["deploy", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let wanted = format!("for example {}", project.path().display());
    assert!(text(&output).contains(&wanted), "{}", text(&output));
}

#[test]
fn new_does_not_write_over_a_project() {
    let daemon = daemon();
    let project = Project::function("lab", ECHO, "");
    let output = daemon.cli(&["new", &project.path().display().to_string()]);
    assert!(!output.status.success(), "{}", text(&output));
    assert_eq!(
        std::fs::read_to_string(project.path().join("app.py")).unwrap(),
        ECHO
    );
}

#[test]
fn a_help_that_cannot_be_written_is_a_failure() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut help = Command::new(env!("CARGO_BIN_EXE_pilot"));
    let status = help.arg("--help").stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn invoke_takes_data_and_files_and_prints_the_answer_alone_on_stdout() {
    let daemon = lab(ECHO, plain());
    let printed: Value =
        serde_json::from_str(&daemon.cli_ok(&["invoke", "lab", "--data", "{\"a\": 1}"])).unwrap();
    assert_eq!(printed, json!({"a": 1}));
    let files = Project::empty().file("event.json", "[1, 2]");
    let path = files.path().join("event.json").display().to_string();
    let printed: Value =
        serde_json::from_str(&daemon.cli_ok(&["invoke", "lab", "--file", &path])).unwrap();
    assert_eq!(printed, json!([1, 2]));
}

#[test]
fn invoke_fails_when_the_function_does() {
    let daemon = lab(
        "def handler(event, context):\n    raise ValueError('as told')\n",
        plain(),
    );
    let output = daemon.cli(&["invoke", "lab", "--data", "{}"]);
    assert!(!output.status.success());
    assert!(
        text(&output).contains("ValueError") && text(&output).contains("as told"),
        "{}",
        text(&output)
    );
    let output = daemon.cli(&["invoke", "nobody"]);
    assert!(!output.status.success());
    assert!(text(&output).contains("nobody"), "{}", text(&output));
}

#[test]
fn whoever_asks_for_the_bytes_of_an_answer_gets_those_of_an_exception() {
    let daemon = lab(
        "def handler(event, context):\n    raise ValueError('as told')\n",
        plain(),
    );
    let kind = |bytes: &[u8]| {
        let body: Value = serde_json::from_slice(bytes).unwrap();
        body["errorType"].clone()
    };
    let files = Project::empty().file("answer", "OLD");
    let path = files.path().join("answer");
    let output = daemon.cli(&["invoke", "lab", "-o", &path.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("as told"), "{}", text(&output));
    assert_eq!(kind(&std::fs::read(&path).unwrap()), "ValueError");
    let output = daemon.cli(&["invoke", "lab", "--raw"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(kind(&output.stdout), "ValueError");
    let output = daemon.cli(&["invoke", "lab"]);
    assert_eq!(output.stdout, b"");
}

#[test]
fn invoking_a_version_that_is_not_there_names_those_that_are() {
    let daemon = lab(ECHO, plain());
    daemon.upload_code("lab", &json!({"memory_mb": 128}), ECHO);
    for target in [
        "lab:7",
        "arn:aws:lambda:us-east-1:000000000000:function:lab:7",
    ] {
        let output = daemon.cli(&["invoke", target]);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            printed.contains("function 'lab' has no version '7': there are 1, 2 (the live one)"),
            "{printed}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
    let output = daemon.cli(&["invoke", "lap:7"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("did you mean 'lab'?"), "{printed}");
}

#[test]
fn list_and_describe_print_for_people_and_for_programs() {
    let daemon = lab(ECHO, plain());
    answer(&daemon, "lab", json!({}));
    let list = daemon.cli_ok(&["list"]);
    assert!(
        list.contains("lab") && list.contains("app.handler"),
        "{list}"
    );
    let list: Value = serde_json::from_str(&daemon.cli_ok(&["list", "--json"])).unwrap();
    assert_eq!(list[0]["name"], "lab");
    let described = daemon.cli_ok(&["describe", "lab"]);
    for word in ["lab", "app.handler", "fork", "sandbox", "init"] {
        assert!(described.contains(word), "no {word} in {described}");
    }
    let described: Value =
        serde_json::from_str(&daemon.cli_ok(&["describe", "lab", "--json"])).unwrap();
    assert_eq!(described["name"], "lab");
    assert!(!daemon.cli(&["describe", "nobody"]).status.success());
}

#[test]
fn a_followed_log_ends_with_its_reader() {
    let daemon = lab(ECHO, plain());
    daemon.invoke("lab", &json!(1));
    eventually("the log is there", || {
        daemon
            .cli_ok(&["logs", "lab"])
            .contains("REPORT")
            .then_some(())
    });
    let mut follower = Ended(
        daemon
            .command(&["logs", "-f", "lab"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut reader = BufReader::new(follower.0.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    // Nothing is written any more.
    drop(reader);
    let status = eventually("it ends", || follower.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

/// `pilot up | true`.
#[test]
fn a_closed_output_changes_neither_what_a_command_does_nor_whether_it_fails() {
    let daemon = daemon();
    let project = Project::empty()
        .file("app.py", ECHO)
        .file("bad.py", "import nothing_of_this_name\n");
    project.write(
        "pilot.toml",
        "[functions.first]\npath = \".\"\nhandler = \"app.handler\"\n[functions.last]\npath = \".\"\nhandler = \"app.handler\"\n",
    );
    let folder = project.path().display().to_string();
    // Ends with an exit code, and nobody reads what it prints.
    let unread = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = daemon.command(arguments);
        let command = command.stdout(writer).stderr(Stdio::null());
        command.status().unwrap().code()
    };
    assert_eq!(unread(&["up", &folder]), Some(0));
    for name in ["first", "last"] {
        assert_eq!(answer(&daemon, name, json!(1)), json!(1), "{name}");
    }
    project.write(
        "pilot.toml",
        "[functions.first]\npath = \".\"\nhandler = \"app.handler\"\nmemory_mb = 200\n[functions.last]\npath = \".\"\nhandler = \"bad.handler\"\n",
    );
    assert_eq!(unread(&["up", &folder]), Some(1));
    assert_eq!(unread(&["up", "--json", &folder]), Some(1));
    for json in [&[][..], &["--json"]] {
        let deploy = ["deploy", &folder, "--function", "last"];
        assert_eq!(unread(&[&deploy[..], json].concat()), Some(1));
    }
    let raises = "def handler(event, context):\n    raise ValueError\n";
    daemon.upload_code("raises", &plain(), raises);
    assert_eq!(unread(&["invoke", "raises", "--json"]), Some(1));
    assert_eq!(unread(&["list"]), Some(0));
}

#[test]
fn logs_print_and_follow() {
    let daemon = lab(
        "def handler(event, context):\n    print('said', event)\n",
        plain(),
    );
    daemon.invoke("lab", &json!("before"));
    pilot_harness::eventually("the log is there", || {
        daemon
            .cli_ok(&["logs", "lab"])
            .contains("said before")
            .then_some(())
    });
    let mut follower = Ended(
        daemon
            .command(&["logs", "-f", "lab"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    // The followed log must show an invocation that came later. It may begin after the first one, so invoke again.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut number = 0;
    loop {
        number += 1;
        daemon.invoke("lab", &json!(format!("after {number}")));
        if receive
            .recv_timeout(Duration::from_millis(300))
            .is_ok_and(|line| line.contains("said after"))
            || receive.try_iter().any(|line| line.contains("said after"))
        {
            break;
        }
        assert!(Instant::now() < deadline, "logs -f shows nothing new");
    }
}

#[test]
fn no_daemon_is_said_plainly_with_the_address_tried() {
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["list", "--endpoint", "http://127.0.0.1:9"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = text(&output);
    assert!(
        said.contains("127.0.0.1:9") && said.contains("serve"),
        "{said}"
    );
}

#[test]
fn the_endpoint_option_goes_before_the_environment() {
    let daemon = lab(ECHO, plain());
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["list", "--endpoint", &daemon.control_endpoint()])
        .env("PILOT_ENDPOINT", "http://127.0.0.1:9")
        .output()
        .unwrap();
    assert!(
        output.status.success() && text(&output).contains("lab"),
        "{}",
        text(&output)
    );
}

#[test]
fn an_unknown_verb_or_option_is_refused_with_help() {
    for arguments in [&["dance"][..], &["list", "--loud"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    }
}

/// A child that ends with the test, first with SIGTERM.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        pilot_harness::terminate(&mut self.0);
    }
}

#[test]
fn dev_serves_and_answers_an_edit_within_a_second() {
    let project = Project::function(
        "lab",
        "def handler(event, context):\n    return 'one'\n",
        "",
    );
    let home = tempfile::tempdir().unwrap();
    let (_dev, address) = dev(project.path(), home.path());
    let ask = || answer_at(address);
    eventually_within(Duration::from_secs(20), "dev answers", || {
        ask().filter(|said| said.contains("one"))
    });
    for word in ["two", "three"] {
        project.write(
            "app.py",
            format!("def handler(event, context):\n    return '{word}'\n"),
        );
        let edited = Instant::now();
        eventually_within(Duration::from_secs(10), "the edit answers", || {
            ask().filter(|said| said.contains(word))
        });
        // The promise is one second for a release build; a debug build on a shared machine gets a margin.
        assert!(
            edited.elapsed() < Duration::from_secs(4),
            "{:?}",
            edited.elapsed()
        );
    }
    project.write("app.py", "def handler(event, context:\n");
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        ask().is_some_and(|said| said.contains("three")),
        "a broken edit leaves the version before"
    );
    project.write(
        "app.py",
        "def handler(event, context):\n    return 'mended'\n",
    );
    eventually_within(Duration::from_secs(10), "the mended edit answers", || {
        ask().filter(|said| said.contains("mended"))
    });
}

/// `pilot dev` for this folder, and its address.
fn dev(folder: &Path, home: &Path) -> (Ended, SocketAddr) {
    let address = free_address();
    let log = std::fs::File::create(home.join("dev.log")).unwrap();
    let dev = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .arg("dev")
        .arg(folder)
        .args(["--listen", &address.to_string(), "--data-dir"])
        .arg(home.join("data"))
        .env_remove("PILOT_ENDPOINT")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    (Ended(dev), address)
}

/// What the function `lab` answers, if it does.
fn answer_at(address: SocketAddr) -> Option<String> {
    std::net::TcpStream::connect(address).ok()?;
    let response = Daemon::get_at(address, "/fn/lab/");
    (response.status == 200).then(|| response.text())
}

#[test]
fn dev_reads_a_manifest_that_appears() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("lab");
    std::fs::create_dir(&folder).unwrap();
    let code = "def handler(event, context):\n    return 'default'\n\ndef other(event, context):\n    return 'chosen'\n";
    std::fs::write(folder.join("app.py"), code).unwrap();
    let (_dev, address) = dev(&folder, home.path());
    let answers = |word: &str| {
        eventually_within(Duration::from_secs(20), word, || {
            answer_at(address).filter(|said| said.contains(word))
        });
    };
    answers("default");
    let manifest = folder.join("pilot.toml");
    let text = "[functions.lab]\npath = \".\"\nhandler = \"app.other\"\n";
    for _ in 0..2 {
        std::fs::write(&manifest, text).unwrap();
        answers("chosen");
        std::fs::remove_file(&manifest).unwrap();
        answers("default");
    }
}

#[test]
fn describe_shows_the_figures_that_simulate_takes() {
    let daemon = lab(
        "import time\n\ndef handler(event, context):\n    time.sleep(0.05)\n",
        plain(),
    );
    assert!(!daemon.cli_ok(&["describe", "lab"]).contains("  newest "));
    answer(&daemon, "lab", json!({}));
    let line = eventually("its figures are described", || {
        let described = daemon.cli_ok(&["describe", "lab"]);
        let mut lines = described.lines();
        lines.find_map(|line| Some(line.strip_prefix("  newest       service ")?.to_owned()))
    });
    let (service, rest) = line.split_once(" ms, start ").unwrap();
    assert!(service.parse::<f64>().unwrap() >= 50.0, "{line}");
    let (start, _) = rest.split_once(" ms").unwrap();
    assert!(start.parse::<f64>().unwrap() > 0.0, "{line}");
}
