//! Who may do what: the control socket, the addresses over TCP, tokens and their roles, and web pages of other sites.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pilot_harness::{
    Connection, Daemon, DaemonOptions, Request, Response, descendants, needs_root,
};
use serde_json::json;

use crate::{ECHO, daemon, daemon_with, lab, plain};

const FUNCTIONS: &str = "/_pilot/v1/functions";
const INVOKE: &str = "/2015-03-31/functions/lab/invocations";

/// The user that owns nothing.
const NOBODY: u32 = 65_534;

fn configured(config: &str) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(config.to_owned()),
        ..DaemonOptions::default()
    })
}

/// One request over TCP, with a token or without.
#[track_caller]
fn over(mut connection: Connection, request: &Request, token: Option<&str>) -> Response {
    let mut request = request.clone().header("connection", "close");
    if let Some(token) = token {
        request = request.header("authorization", &format!("Bearer {token}"));
    }
    connection.exchange(&request)
}

pub(crate) fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// A port that is free at the moment.
pub(crate) fn free_port() -> u16 {
    pilot_harness::free_address().port()
}

/// A daemon with an address for the control API, too.
pub(crate) fn with_control_address(config: &str) -> (Daemon, std::net::SocketAddr) {
    let control = format!("127.0.0.1:{}", free_port());
    let daemon = daemon_with(DaemonOptions {
        arguments: vec!["--control-listen".to_owned(), control.clone()],
        config: Some(config.to_owned()),
        ..DaemonOptions::default()
    });
    (daemon, control.parse().unwrap())
}

#[test]
fn the_control_api_is_not_on_the_address_for_functions() {
    let daemon = lab(ECHO, plain());
    let token = daemon.admin_token();
    for (method, path) in [
        ("GET", FUNCTIONS),
        ("DELETE", "/_pilot/v1/functions/lab"),
        ("POST", "/_pilot/v1/functions/lab/scale"),
        ("PUT", "/_pilot/v1/functions/new"),
        ("GET", "/_pilot/v1/tokens"),
        ("GET", "/_pilot/v1/openapi.json"),
    ] {
        for token in [None, Some(token.as_str())] {
            let response = over(daemon.connect(), &Request::new(method, path), token);
            assert_eq!(response.status, 404, "{method} {path}");
            assert_eq!(response.json()["code"], "not_here", "{method} {path}");
        }
    }
    // And no page of a function is on the control API's socket.
    let page = over(
        daemon.connect_control(),
        &Request::new("GET", "/fn/lab/"),
        None,
    );
    assert_eq!(page.status, 501, "{}", page.text());
    for path in ["/healthz", "/readyz"] {
        for connection in [daemon.connect(), daemon.connect_control()] {
            assert_eq!(
                over(connection, &Request::new("GET", path), None).status,
                200
            );
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["list", "--endpoint", &daemon.endpoint()])
        .output()
        .unwrap();
    assert!(
        said(&output).contains("PILOT_ENDPOINT"),
        "{}",
        said(&output)
    );
}

#[test]
fn the_control_socket_needs_no_token_and_only_its_user_reaches_it() {
    let daemon = lab(ECHO, plain());
    assert_eq!(mode(&daemon.data_dir()), 0o700);
    assert_eq!(mode(&daemon.control_socket()), 0o660);
    assert_eq!(mode(&daemon.data_dir().join("admin.token")), 0o600);
    assert!(daemon.cli_ok(&["list"]).contains("lab"));
    assert_eq!(daemon.cli_ok(&["invoke", "lab", "--data", "7"]).trim(), "7");
    // The folder is enough as an address.
    let folder = format!("unix:{}", daemon.data_dir().display());
    assert!(
        daemon
            .cli_ok(&["list", "--endpoint", &folder])
            .contains("lab")
    );
    let described = daemon.cli_ok(&["describe", "lab"]);
    let url = format!("{}/fn/lab/", daemon.endpoint());
    assert!(
        described.contains(&url),
        "the url is for functions: {described}"
    );
}

#[test]
fn an_old_data_directory_is_narrowed_and_a_foreign_folder_is_not() {
    let mut daemon = daemon();
    daemon.stop();
    fs::set_permissions(daemon.data_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    daemon.resume();
    assert_eq!(mode(&daemon.data_dir()), 0o700);
    let foreign = tempfile::tempdir().unwrap();
    fs::set_permissions(foreign.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(foreign.path().join("notes.txt"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(foreign.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("other files"), "{}", said(&output));
    assert_eq!(mode(foreign.path()), 0o755);
}

#[test]
fn a_data_directory_of_another_user_is_named() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let (program, of_root) = (home.path().join("pilot"), home.path().join("data"));
    fs::copy(env!("CARGO_BIN_EXE_pilot"), &program).unwrap();
    fs::create_dir(&of_root).unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&of_root, fs::Permissions::from_mode(0o700)).unwrap();
    let output = Command::new(&program)
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&of_root)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output()
        .unwrap();
    let problem = format!(
        "this user cannot read and write the data directory {}",
        of_root.display()
    );
    assert!(said(&output).contains(&problem), "{}", said(&output));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn pilot_finds_the_daemon_of_its_user_by_itself() {
    let home = tempfile::tempdir().unwrap();
    // Root's data directory is the system's, so the test is another user.
    let program = home.path().join("pilot");
    fs::copy(env!("CARGO_BIN_EXE_pilot"), &program).unwrap();
    if pilot_harness::is_root() {
        std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("XDG_DATA_HOME", home.path())
            .env("NO_COLOR", "1")
            .current_dir("/");
        if pilot_harness::is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    let output = as_user(&["list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("control.sock"), "{}", said(&output));
    let mut serving = as_user(&["serve", "--listen", "127.0.0.1:0"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let found = pilot_harness::eventually("list answers", || {
        let output = as_user(&["version"]).output().unwrap();
        let text = said(&output);
        let answers = text.contains(&format!("daemon  {}", env!("CARGO_PKG_VERSION")));
        answers.then_some(text)
    });
    pilot_harness::terminate(&mut serving);
    assert!(found.contains("unix:"), "{found}");
}

#[test]
fn a_token_is_required_over_tcp_always() {
    let (daemon, control) = with_control_address("");
    daemon.upload_code("lab", &plain(), ECHO);
    let token = daemon.admin_token();
    let list = Request::new("GET", FUNCTIONS);
    for authorization in [
        None,
        Some("Bearer wrong".to_owned()),
        Some(token.clone()),
        Some(format!("Bearer {}", &token[..token.len() - 1])),
        Some(format!("Bearer {token}x")),
        Some("Basic czNjcmV0".to_owned()),
    ] {
        let mut request = list.clone().header("connection", "close");
        if let Some(value) = &authorization {
            request = request.header("authorization", value);
        }
        let response = Connection::open(control).exchange(&request);
        assert_eq!(
            response.status,
            401,
            "{authorization:?}: {}",
            response.text()
        );
        assert!(
            !response.text().contains(&token[..20]),
            "{}",
            response.text()
        );
    }
    for path in ["/metrics", "/_pilot/v1/version", "/_pilot/v1/openapi.json"] {
        let response = over(Connection::open(control), &Request::new("GET", path), None);
        assert_eq!(response.status, 401, "{path}");
    }
    let invoke = Request::new("POST", INVOKE).body("{}");
    assert_eq!(over(Connection::open(control), &invoke, None).status, 403);
    assert_eq!(
        over(Connection::open(control), &invoke, Some(&token)).status,
        200
    );
    assert_eq!(
        over(Connection::open(control), &list, Some(&token)).status,
        200
    );
    assert_eq!(
        over(
            Connection::open(control),
            &Request::new("GET", "/healthz"),
            None
        )
        .status,
        200
    );
    let page = over(
        Connection::open(control),
        &Request::new("GET", "/fn/lab/"),
        Some(&token),
    );
    assert_eq!(page.status, 501, "{}", page.text());
    let endpoint = format!("http://{control}");
    let output = daemon
        .command(&["list", "--endpoint", &endpoint])
        .output()
        .unwrap();
    assert!(said(&output).contains("PILOT_TOKEN"), "{}", said(&output));
    let output = daemon
        .command(&["list", "--endpoint", &endpoint])
        .env("PILOT_TOKEN", &token)
        .output()
        .unwrap();
    assert!(said(&output).contains("lab"), "{}", said(&output));
}

#[test]
fn functions_and_the_control_api_share_an_address_only_if_told_to() {
    let home = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let log = fs::File::create(home.path().join("log")).unwrap();
    let mut serving = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args([
            "serve",
            "--listen",
            &address,
            "--control-listen",
            &address,
            "--data-dir",
        ])
        .arg(home.path().join("data"))
        .stderr(log)
        .spawn()
        .unwrap();
    let to = address.parse().unwrap();
    let token = pilot_harness::eventually("it serves", || {
        std::net::TcpStream::connect(&address).ok()?;
        fs::read_to_string(home.path().join("data/admin.token")).ok()
    });
    let list = Request::new("GET", FUNCTIONS);
    let refused = over(Connection::open(to), &list, None).status;
    let listed = over(Connection::open(to), &list, Some(token.trim())).status;
    let page = over(
        Connection::open(to),
        &Request::new("GET", "/fn/nobody/"),
        None,
    )
    .status;
    pilot_harness::terminate(&mut serving);
    assert_eq!((refused, listed, page), (401, 200, 404));
}

#[test]
fn a_socket_left_by_a_killed_daemon_is_replaced_and_a_live_ones_is_not() {
    let mut daemon = lab(ECHO, plain());
    daemon.kill();
    assert!(daemon.control_socket().exists());
    assert!(UnixStream::connect(daemon.control_socket()).is_err());
    daemon.resume();
    assert!(daemon.cli_ok(&["list"]).contains("lab"));
    let (code, log) = Daemon::refuses_to_start(
        env!("CARGO_BIN_EXE_pilot"),
        DaemonOptions {
            config: Some(format!(
                "control_socket = \"{}\"\n",
                daemon.control_socket().display()
            )),
            ..DaemonOptions::default()
        },
    );
    assert_eq!(code, Some(1));
    assert!(log.contains("another daemon listens on"), "{log}");
    assert!(daemon.cli_ok(&["list"]).contains("lab"));
    daemon.stop();
    assert!(!daemon.control_socket().exists());
}

#[test]
fn a_service_has_its_socket_in_its_runtime_directory_and_not_where_others_write() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("pilotlight");
    fs::create_dir(&folder).unwrap();
    let options = || DaemonOptions {
        environment: vec![("RUNTIME_DIRECTORY".to_owned(), folder.display().to_string())],
        ..DaemonOptions::default()
    };
    let daemon = daemon_with(options());
    let socket = folder.join("control.sock");
    assert_eq!(mode(&socket), 0o660);
    assert!(!daemon.control_socket().exists());
    let endpoint = format!("unix:{}", socket.display());
    assert!(
        daemon
            .cli(&["list", "--endpoint", &endpoint])
            .status
            .success()
    );
    drop(daemon);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let (code, log) = Daemon::refuses_to_start(env!("CARGO_BIN_EXE_pilot"), options());
    assert_eq!(code, Some(2));
    assert!(log.contains("other users may write to"), "{log}");
}

/// The machine's list of groups is replaced in a mount namespace.
#[test]
fn members_of_the_services_group_may_use_its_socket_and_nobody_else() {
    pilot_harness::needs_root!();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let groups = fs::read_to_string("/etc/group").unwrap();
    fs::write(
        folder.path().join("group"),
        groups + "pilotlight:x:64242:\n",
    )
    .unwrap();
    let program = folder.path().join("pilot");
    fs::copy(env!("CARGO_BIN_EXE_pilot"), &program).unwrap();
    let runtime = folder.path().join("pilotlight");
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let mut serving = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/group && exec \"$@\"")
        .arg(folder.path().join("group"))
        .arg(&program)
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .env("RUNTIME_DIRECTORY", &runtime)
        .stderr(log)
        .spawn()
        .unwrap();
    let socket = runtime.join("control.sock");
    let list = |group: u32| {
        Command::new(&program)
            .args(["list", "--endpoint", &format!("unix:{}", socket.display())])
            .current_dir("/")
            .uid(NOBODY)
            .gid(group)
            .output()
            .unwrap()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !socket.exists() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let found = fs::metadata(&socket).map(|found| (found.gid(), found.mode() & 0o777));
    let (member, other) = (list(64_242), list(NOBODY));
    pilot_harness::terminate(&mut serving);
    assert_eq!(found.unwrap(), (64_242, 0o660));
    assert!(member.status.success(), "{}", said(&member));
    assert!(!other.status.success());
    assert!(
        said(&other).contains("member of the group pilotlight"),
        "{}",
        said(&other)
    );
}

#[test]
fn a_token_has_only_its_roles_functions_and_owner() {
    let (daemon, control) = with_control_address("invocations = \"token\"\n");
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.upload_code("other", &plain(), ECHO);
    let create = |arguments: &[&str]| {
        let mut all = vec!["token", "create"];
        all.extend(arguments);
        daemon.cli_ok(&all).trim().to_owned()
    };
    let caller = create(&["app", "--role", "invoke", "--function", "lab"]);
    let deployer = create(&["ci", "--role", "deploy", "--function", "lab"]);
    let both = create(&["dev", "--role", "deploy", "--role", "invoke"]);
    let of_team = create(&["team", "--role", "deploy", "--owner", "team"]);
    let invoke = |function: &str, token: Option<&str>| {
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let api = over(
            daemon.connect(),
            &Request::new("POST", &path).body("{}"),
            token,
        )
        .status;
        let page = Request::new("GET", &format!("/fn/{function}/"));
        let page = over(daemon.connect(), &page, token).status;
        assert_eq!(api, page, "{function} {token:?}");
        api
    };
    assert_eq!(invoke("lab", None), 403);
    assert_eq!(invoke("lab", Some(&caller)), 200);
    assert_eq!(invoke("other", Some(&caller)), 403);
    assert_eq!(invoke("lab", Some(&deployer)), 403);
    assert_eq!(invoke("other", Some(&both)), 200);
    let pilot = |arguments: &[&str], token: &str| {
        let endpoint = format!("http://{control}");
        let mut command = daemon.command(arguments);
        command
            .args(["--endpoint", &endpoint])
            .env("PILOT_TOKEN", token);
        let output = command.output().unwrap();
        (output.status.success(), said(&output))
    };
    let may = |arguments: &[&str], token: &str| pilot(arguments, token).0;
    assert!(!may(&["scale", "lab", "0"], &caller));
    assert!(!may(&["list"], &caller));
    assert!(may(&["scale", "lab", "0"], &deployer));
    assert!(!may(&["scale", "other", "0"], &deployer));
    assert!(!may(&["remove", "other"], &deployer));
    assert!(!may(&["logs", "other"], &deployer));
    let (_, listed) = pilot(&["list"], &deployer);
    assert!(
        listed.contains("lab") && !listed.contains("other"),
        "{listed}"
    );
    for (token, name) in [(&deployer, "deployer"), (&both, "both"), (&of_team, "team")] {
        assert!(!may(&["token", "list"], token), "{name}");
        assert!(
            !may(&["token", "create", "x", "--role", "admin"], token),
            "{name}"
        );
    }
    assert!(!may(&["remove", "lab"], &of_team), "its owner is lab");
    let stored = fs::read_to_string(daemon.data_dir().join("tokens.json")).unwrap();
    for token in [&caller, &deployer, &both, &of_team] {
        assert!(!stored.contains(token.trim_start_matches("pilot_")));
        assert!(!daemon.log().contains(token.as_str()));
    }
    assert_eq!(mode(&daemon.data_dir().join("tokens.json")), 0o600);
    assert!(daemon.cli_ok(&["token", "list"]).contains("app"));
    daemon.cli_ok(&["token", "revoke", "app"]);
    assert_eq!(invoke("lab", Some(&caller)), 403);
}

#[test]
fn tokens_outlive_the_daemon_and_old_keys_still_work() {
    let config = "control_token = \"old-control\"\ninvoke_token = \"old-invoke\"\n";
    let mut daemon = configured(config);
    daemon.upload_code("lab", &plain(), ECHO);
    let made = daemon.cli_ok(&["token", "create", "app", "--role", "invoke"]);
    let admin = daemon.admin_token();
    daemon.kill();
    daemon.resume();
    assert_eq!(daemon.admin_token(), admin);
    let request = Request::new("POST", INVOKE).body("{}");
    for (token, status) in [
        (None, 403),
        (Some("wrong"), 403),
        (Some(made.trim()), 200),
        (Some("old-invoke"), 200),
        (Some("old-control"), 200),
        (Some(admin.as_str()), 200),
    ] {
        assert_eq!(
            over(daemon.connect(), &request, token).status,
            status,
            "{token:?}"
        );
    }
}

/// The spawner is a copy of the daemon before it has read the tokens.
#[test]
fn no_process_but_the_daemon_has_a_token_in_its_memory() {
    pilot_harness::needs_root!();
    let secret = "configured-7d41c2f0-only-for-the-daemon";
    let daemon = configured(&format!("control_token = \"{secret}\"\nstrict = false\n"));
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.invoke("lab", &json!({})).ok();
    let admin = daemon.admin_token();
    let others = descendants(daemon.pid());
    assert!(!others.is_empty());
    for pid in others {
        for token in [secret, admin.as_str()] {
            assert!(
                !has_in_memory(pid, token.as_bytes()),
                "process {pid} has a token"
            );
        }
    }
    // The search works: the daemon has read the file.
    assert!(has_in_memory(
        i32::try_from(std::process::id()).unwrap(),
        secret.as_bytes()
    ));
}

fn has_in_memory(pid: i32, wanted: &[u8]) -> bool {
    use std::os::unix::fs::FileExt as _;
    let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let memory = match fs::File::open(format!("/proc/{pid}/mem")) {
        Ok(memory) => memory,
        // It has ended meanwhile.
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => {
            return false;
        }
        Err(error) => panic!("process {pid}: {error}"),
    };
    maps.lines().any(|line| {
        let mut fields = line.split(' ');
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        if !rights.starts_with("rw") {
            return false;
        }
        let (from, to) = range.split_once('-').unwrap();
        let from = u64::from_str_radix(from, 16).unwrap();
        let to = u64::from_str_radix(to, 16).unwrap();
        let mut bytes = vec![0; usize::try_from(to - from).unwrap().min(64 << 20)];
        memory.read_at(&mut bytes, from).is_ok()
            && bytes.windows(wanted.len()).any(|window| window == wanted)
    })
}

/// Also with the host's network: it can connect to every port, but has no token, and the socket and the token's file are in no
/// folder that it sees.
#[test]
fn a_function_cannot_use_the_control_api() {
    let (daemon, control) = with_control_address("");
    let code = r#"
import http.client, os, socket

def ask(connection, path):
    try:
        connection.request("POST", path, "{}", {"content-type": "application/json"})
        return connection.getresponse().status
    except OSError as error:
        return type(error).__name__

def handler(event, context):
    found = {}
    for name, port in event["ports"].items():
        for path in event["paths"]:
            found[f"{name} {path}"] = ask(http.client.HTTPConnection("127.0.0.1", port, timeout=5), path)
    for name in ("control.sock", "admin.token", "tokens.json"):
        found[name] = os.path.exists(os.path.join(event["data"], name))
    try:
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(os.path.join(event["data"], "control.sock"))
        found["socket"] = "connected"
    except OSError as error:
        found["socket"] = type(error).__name__
    return found
"#;
    daemon.upload_code("spy", &json!({"network": "host"}), code);
    let event = json!({
        "ports": {"functions": daemon.address().port(), "control": control.port()},
        "paths": ["/_pilot/v1/functions/spy/scale", "/_pilot/v1/tokens"],
        "data": daemon.data_dir(),
    });
    let found = crate::answer(&daemon, "spy", event);
    let wanted = json!({
        "functions /_pilot/v1/functions/spy/scale": 404,
        "functions /_pilot/v1/tokens": 404,
        "control /_pilot/v1/functions/spy/scale": 401,
        "control /_pilot/v1/tokens": 401,
        "control.sock": false,
        "admin.token": false,
        "tokens.json": false,
        "socket": "FileNotFoundError",
    });
    assert_eq!(found, wanted);
}

#[test]
fn a_function_never_sees_the_callers_token() {
    let daemon = lab(
        "def handler(event, context):\n    return {'statusCode': 200, 'body': str(event['headers'])}\n",
        plain(),
    );
    let token = daemon.admin_token();
    // Without need of one, too.
    for header in ["authorization", "x-pilot-token", "x-amz-security-token"] {
        let value = if header == "authorization" {
            format!("Bearer {token}")
        } else {
            token.clone()
        };
        let request = Request::new("GET", "/fn/lab/").header(header, &value);
        let response = over(daemon.connect(), &request, None).ok();
        assert!(
            !response.text().contains(&token),
            "{header}: {}",
            response.text()
        );
    }
    let own = Request::new("GET", "/fn/lab/").header("authorization", "Bearer its-own");
    assert!(
        over(daemon.connect(), &own, None)
            .text()
            .contains("its-own")
    );
}

#[test]
fn a_web_page_of_another_site_can_neither_deploy_nor_invoke() {
    let daemon = configured("hosts = [\"pilot.example\"]\n");
    daemon.upload_code("lab", &plain(), ECHO);
    let own = format!("127.0.0.1:{}", daemon.address().port());
    let status = |method: &str, path: &str, host: &str, origin: &str| {
        let mut connection = daemon.connect();
        let origin = if origin.is_empty() {
            String::new()
        } else {
            format!("origin: {origin}\r\n")
        };
        connection.send_raw(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{origin}content-length: 2\r\n\r\n{{}}"
            )
            .as_bytes(),
        );
        connection.receive(method).status
    };
    for (host, origin) in [
        ("evil.example", ""),
        ("localhost", "https://evil.example"),
        ("localhost", "null"),
        (own.as_str(), "http://localhost:3000"),
    ] {
        for (method, path) in [("POST", INVOKE), ("GET", "/metrics")] {
            assert_eq!(
                status(method, path, host, origin),
                403,
                "{method} {path} {host} {origin}"
            );
        }
        for (method, path) in [
            ("GET", FUNCTIONS),
            ("DELETE", "/_pilot/v1/functions/lab"),
            ("POST", "/_pilot/v1/functions/lab/scale"),
        ] {
            assert_eq!(
                status(method, path, host, origin),
                404,
                "{method} {path} {host} {origin}"
            );
        }
    }
    for host in [own.as_str(), "localhost", "PILOT.example:80"] {
        assert_eq!(status("POST", INVOKE, host, &format!("http://{host}")), 200);
        assert_eq!(status("GET", "/metrics", host, ""), 200);
    }
    // A function's URL is a web page of its own, and health is for everyone.
    for path in ["/fn/lab/", "/healthz", "/readyz"] {
        assert_eq!(
            status("GET", path, "shop.example", "https://shop.example"),
            200,
            "{path}"
        );
    }
    assert!(daemon.cli_ok(&["list"]).contains("lab"));
}

#[test]
fn a_token_that_cannot_be_shown_is_named_with_what_revokes_it() {
    let daemon = daemon();
    for form in [&[][..], &["--json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
            .args(["token", "create", "lost", "--role", "invoke"])
            .args(form)
            .env("PILOT_ENDPOINT", daemon.control_endpoint())
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = said(&output);
        assert!(said.contains("cannot write to standard output: "), "{said}");
        let (_, revoke) = said.split_once("revoke it: pilot ").unwrap();
        let revoke: Vec<&str> = revoke.lines().next().unwrap().split(' ').collect();
        daemon.cli_ok(&revoke);
    }
}
