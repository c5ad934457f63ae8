use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use pilot_model::manifest::Manifest;
use pilot_model::runtime::http::HttpRuntime;
use pilot_model::runtime::provided::ProvidedRuntime;
use pilot_model::{FunctionConfig, Runtime};

use super::*;

#[test]
fn every_template_is_a_function_that_can_be_deployed() {
    for template in Template::value_variants() {
        let (folder, config) = written(*template);
        for (file, _) in template.files() {
            let path = folder.path().join("thing").join(file);
            // A template has no empty file.
            let text = fs::read_to_string(path).unwrap_or_default();
            assert!(!text.contains(NAME), "{template:?}");
        }
        let code = match &config.runtime {
            Runtime::Python(_) => "app.py",
            Runtime::Node(_) => "index.mjs",
            Runtime::Provided(ProvidedRuntime { command })
            | Runtime::Http(HttpRuntime { command, .. }) => &command[1],
            // Made by its build.
            Runtime::Wasm(_) => "src/lib.rs",
            _ => panic!("{template:?}"),
        };
        assert!(folder.path().join("thing").join(code).is_file());
    }
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let name: FunctionName = "thing".parse().unwrap();
    fs::write(folder.path().join("app.py"), "mine").unwrap();
    let problem = write(folder.path(), &name, Template::Event)
        .unwrap_err()
        .to_string();
    assert!(problem.contains("not empty"), "{problem}");
    assert_eq!(
        fs::read_to_string(folder.path().join("app.py")).unwrap(),
        "mine"
    );
}

#[test]
fn a_name_that_is_none_is_refused() {
    assert!(name_of(Path::new("functions/ok-1")).is_ok());
    let here = std::env::current_dir().unwrap();
    let here = here.file_name().unwrap().to_str().unwrap();
    assert_eq!(name_of(Path::new(".")).unwrap().as_str(), here);
    for wrong in ["..", "a b", "/", "ä"] {
        assert!(name_of(Path::new(wrong)).is_err(), "{wrong}");
    }
}

/// A template written to `thing`, and its configuration.
fn written(template: Template) -> (tempfile::TempDir, FunctionConfig) {
    let folder = tempfile::tempdir().unwrap();
    let name: FunctionName = "thing".parse().unwrap();
    let thing = folder.path().join("thing");
    write(&thing, &name, template).unwrap();
    let text = fs::read_to_string(thing.join("pilot.toml")).unwrap();
    let manifest = Manifest::parse(&text, "pilot.toml").unwrap();
    let config = manifest.functions[&name].check(&name).unwrap();
    (folder, config)
}

/// A running program of a template. Dropping it ends the program.
struct Running(Child);

impl Running {
    fn start(folder: &tempfile::TempDir, command: &[String], variable: (&str, String)) -> Self {
        let child = Command::new(&command[0])
            .args(&command[1..])
            .current_dir(folder.path().join("thing"))
            .env(variable.0, variable.1)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Head and body of the next message on a connection.
fn message(connection: &mut BufReader<TcpStream>) -> (String, String) {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

#[test]
fn the_provided_template_polls_the_runtime_api() {
    let (folder, config) = written(Template::Provided);
    let Runtime::Provided(ProvidedRuntime { command }) = &config.runtime else {
        panic!()
    };
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = api.local_addr().unwrap().to_string();
    let _program = Running::start(&folder, command, ("AWS_LAMBDA_RUNTIME_API", address));
    let mut connection = BufReader::new(api.accept().unwrap().0);
    for (event, path, told) in [
        (r#"{"name":"Ada"}"#, "id-1/response", "Hello, Ada!"),
        ("[]", "id-1/error", "AttributeError"),
    ] {
        let (head, _) = message(&mut connection);
        assert!(
            head.starts_with("GET /2018-06-01/runtime/invocation/next "),
            "{head}"
        );
        let answer = format!(
            "HTTP/1.1 200 OK\r\nLambda-Runtime-Aws-Request-Id: id-1\r\nContent-Length: {}\r\n\r\n{event}",
            event.len()
        );
        connection.get_mut().write_all(answer.as_bytes()).unwrap();
        let (head, body) = message(&mut connection);
        let wanted = format!("POST /2018-06-01/runtime/invocation/{path} ");
        assert!(head.starts_with(&wanted), "{head}");
        assert!(body.contains(told), "{body}");
        let accepted = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
        connection.get_mut().write_all(accepted).unwrap();
    }
}

#[test]
fn the_http_template_serves_on_its_port() {
    let (folder, config) = written(Template::Http);
    let Runtime::Http(HttpRuntime { command, ready }) = &config.runtime else {
        panic!()
    };
    // Free at this moment; no other test asks for this port.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut server = Running::start(&folder, command, ("PORT", port.to_string()));
    let connection = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(connection) => break connection,
            Err(_) => assert!(server.0.try_wait().unwrap().is_none(), "it ended"),
        }
        std::thread::yield_now();
    };
    let mut connection = BufReader::new(connection);
    for (path, told) in [
        (ready.as_deref().unwrap(), "ok"),
        ("/?name=Ada", "Hello, Ada!"),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        connection.get_mut().write_all(request.as_bytes()).unwrap();
        let (head, body) = message(&mut connection);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(body.contains(told), "{body}");
    }
}

#[test]
fn the_node_template_answers_events_and_requests() {
    let (folder, _) = written(Template::Node);
    let script = r#"
        const { handler } = await import(process.cwd() + "/index.mjs");
        console.log(JSON.stringify([
            await handler({ name: "Ada" }, { awsRequestId: "1" }),
            await handler(
                { requestContext: { http: {} }, queryStringParameters: { name: "Eve" }, rawPath: "/" },
                { awsRequestId: "2" },
            ),
        ]));
    "#;
    let output = Command::new("node")
        .args(["--input-type=module", "-e", script])
        .current_dir(folder.path().join("thing"))
        .output();
    let Ok(output) = output else {
        eprintln!("SKIPPED the_node_template_answers_events_and_requests: there is no Node.js");
        return;
    };
    let printed = String::from_utf8(output.stdout).unwrap();
    let answers = printed.lines().last().unwrap();
    let answers: serde_json::Value = serde_json::from_str(answers).unwrap();
    assert_eq!(answers[0]["message"], "Hello, Ada!");
    assert_eq!(answers[1]["statusCode"], 200);
    let body = answers[1]["body"].as_str().unwrap();
    assert!(body.contains("Hello, Eve!"), "{body}");
}

#[test]
fn a_path_is_printed_as_a_shell_reads_it() {
    assert_eq!(typed(Path::new("greet")), "greet");
    assert_eq!(typed(Path::new("/tmp/é/greet_1")), "/tmp/é/greet_1");
    assert_eq!(typed(Path::new("my files/greet")), "'my files/greet'");
    assert_eq!(typed(Path::new("it's/greet")), r"'it'\''s/greet'");
    assert_eq!(typed(Path::new("-x/greet")), "./-x/greet");
}
