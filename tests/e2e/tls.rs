//! TLS on the daemon's addresses, and the command line over https.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::{Daemon, DaemonOptions, Project, Request, eventually, eventually_within};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::access::{free_port, said};
use crate::{ECHO, daemon, daemon_with, plain};

/// An authority, and the files of certificates that it signed.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Each authority has a name of its own, and none that it signs for has that name.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("authority {number} of {}", std::process::id());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Writes a certificate for this name, and its key.
    pub(crate) fn sign(&self, name: &str, files: &Files) {
        self.sign_until(name, files, 4096);
    }

    /// The same for one that ends with the begin of this year.
    fn sign_until(&self, name: &str, files: &Files, year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        files.write(&certificate.pem(), &key.serialize_pem());
    }
}

/// A certificate's file and its key's.
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.0.path().join("cert.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }

    fn write(&self, certificate: &str, key: &str) {
        fs::write(self.certificate(), certificate).unwrap();
        fs::write(self.key(), key).unwrap();
        fs::set_permissions(self.key(), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// The keys of a configuration with these files.
    pub(crate) fn keys(&self, prefix: &str) -> String {
        format!(
            "{prefix}tls_certificate = {:?}\n{prefix}tls_key = {:?}\n",
            self.certificate(),
            self.key()
        )
    }
}

fn options(config: &str) -> DaemonOptions {
    DaemonOptions {
        config: Some(config.to_owned()),
        ..DaemonOptions::default()
    }
}

/// A daemon with TLS on its address, an authority that signed its certificate for `localhost`, and the files.
fn with_tls() -> (Daemon, Authority, Files) {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign("localhost", &files);
    let daemon = daemon_with(options(&files.keys("")));
    (daemon, authority, files)
}

/// `https://localhost:PORT`.
fn https(daemon: &Daemon) -> String {
    format!("https://localhost:{}", daemon.address().port())
}

/// curl, without a proxy and a configuration. Prints the body, then the version of HTTP and the status.
pub(crate) fn curl(authority: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command
        .args([
            "--disable",
            "--noproxy",
            "*",
            "--silent",
            "--show-error",
            "--max-time",
            "30",
        ])
        .args(["--write-out", "\n%{http_version} %{http_code}"]);
    if let Some(file) = authority {
        command.arg("--cacert").arg(file);
    }
    command.args(arguments).output().unwrap()
}

/// What curl got: the body, and the version of HTTP with the status.
#[track_caller]
pub(crate) fn got(output: &Output) -> (String, String) {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let (body, how) = text.rsplit_once('\n').unwrap();
    (body.to_owned(), how.to_owned())
}

#[test]
fn functions_are_called_over_tls_with_http2_and_with_http1() {
    let (daemon, authority, _files) = with_tls();
    daemon.upload_code("lab", &plain(), ECHO);
    let invoke = format!("{}/2015-03-31/functions/lab/invocations", https(&daemon));
    let page = format!("{}/fn/lab/a?b=c", https(&daemon));
    for (option, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let ca = authority.file();
        let output = curl(Some(&ca), &[option, "--data", "{\"n\": 7}", &invoke]);
        let (body, how) = got(&output);
        assert_eq!(
            (body.as_str(), how),
            ("{\"n\": 7}", format!("{version} 200"))
        );
        let (body, how) = got(&curl(Some(&ca), &[option, &page]));
        assert_eq!(how, format!("{version} 200"), "{body}");
        let event: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(event["headers"]["x-forwarded-proto"], "https", "{event}");
        let host = format!("localhost:{}", daemon.address().port());
        assert_eq!(event["headers"]["host"], host.as_str(), "{event}");
    }
    let described = daemon.cli_ok(&["describe", "lab"]);
    assert!(described.contains("https://127.0.0.1:"), "{described}");
}

/// A daemon whose control API has an address with TLS. Returns that address' port, too.
fn with_control_tls(files: &Files) -> (Daemon, u16) {
    let port = free_port();
    let config = format!(
        "control_listen = \"127.0.0.1:{port}\"\n{}",
        files.keys("control_")
    );
    (daemon_with(options(&config)), port)
}

fn pilot(endpoint: &str, token: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilot"));
    command
        .args(arguments)
        .env("PILOT_ENDPOINT", endpoint)
        .env("PILOT_TOKEN", token)
        .env_remove("PILOT_CACERT")
        .env("NO_COLOR", "1");
    command
}

#[test]
fn the_command_line_speaks_https_and_trusts_whom_it_is_told() {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign("localhost", &files);
    let (daemon, port) = with_control_tls(&files);
    daemon.upload_code("lab", &plain(), ECHO);
    let token = daemon.admin_token();
    let endpoint = format!("https://localhost:{port}");
    let ca = authority.file();
    let ca = ca.to_str().unwrap();
    let output = pilot(&endpoint, &token, &["list", "--cacert", ca])
        .output()
        .unwrap();
    assert!(
        output.status.success() && said(&output).contains("lab"),
        "{}",
        said(&output)
    );
    let mut by_variable = pilot(&endpoint, &token, &["invoke", "lab", "--data", "7"]);
    let output = by_variable.env("PILOT_CACERT", ca).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "7");
    // A deployment: an upload and a stream of lines.
    let project = Project::function("more", ECHO, "");
    let folder = project.path().to_str().unwrap();
    let output = pilot(&endpoint, &token, &["deploy", folder, "--cacert", ca])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));

    // As with curl, the system's authorities are one file.
    let mut by_system = pilot(&endpoint, &token, &["list"]);
    let output = by_system
        .env("SSL_CERT_FILE", ca)
        .env("SSL_CERT_DIR", "/nonexistent")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn what_is_wrong_with_a_connection_over_tls_is_said_with_what_to_do() {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign("localhost", &files);
    let (daemon, port) = with_control_tls(&files);
    let token = daemon.admin_token();
    let stranger = Authority::new();
    let ca = authority.file().display().to_string();
    let plain = daemon.address().port();
    for (endpoint, ca, wanted) in [
        (
            format!("https://localhost:{port}"),
            stranger.file().display().to_string(),
            "not trusted here: name the authority's",
        ),
        (
            format!("https://127.0.0.1:{port}"),
            ca.clone(),
            "is for another name",
        ),
        (
            format!("http://localhost:{port}"),
            ca.clone(),
            "use https:// instead of http://",
        ),
        (
            format!("https://localhost:{plain}"),
            ca.clone(),
            "does not speak TLS: use http://",
        ),
        (
            format!("https://localhost:{port}"),
            "/nonexistent".to_owned(),
            "/nonexistent cannot be read",
        ),
    ] {
        let output = pilot(&endpoint, &token, &["list", "--cacert", &ca])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let text = said(&output);
        assert!(text.contains(wanted), "{endpoint}: {text}");
        assert!(!text.contains(&token));
    }
    for wanted in [
        "a client spoke plain HTTP to an address with TLS: it must use https://",
        "a client spoke TLS to an address without it",
    ] {
        eventually(wanted, || daemon.log().contains(wanted).then_some(()));
    }
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not() {
    let (daemon, authority, files) = with_tls();
    let health = format!("{}/healthz", https(&daemon));
    let answers =
        |authority: &Authority| curl(Some(&authority.file()), &[&health]).status.success();
    assert!(answers(&authority));
    // A connection from before goes on.
    let renewed = Authority::new();
    renewed.sign("localhost", &files);
    eventually("the new certificate", || answers(&renewed).then_some(()));
    assert!(!answers(&authority));

    fs::write(files.certificate(), "-----BEGIN CERTIFICATE-----\nbroken").unwrap();
    let reason = format!("tls_certificate: {}", files.certificate().display());
    eventually("the reason in the log", || {
        let log = daemon.log();
        (log.contains("the old one stays in use") && log.contains(&reason)).then_some(())
    });
    assert!(answers(&renewed));

    // On SIGHUP, also what has not changed is read.
    let before = daemon.log().matches("the old one stays in use").count();
    kill(Pid::from_raw(daemon.pid()), Signal::SIGHUP).unwrap();
    eventually("another try", || {
        let now = daemon.log().matches("the old one stays in use").count();
        (now > before).then_some(())
    });
    assert!(answers(&renewed));
}

#[test]
fn bench_measures_over_tls_and_trusts_the_same_authorities() {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign("localhost", &files);
    let config = format!("hosts = [\"localhost\"]\n{}", files.keys(""));
    let daemon = daemon_with(options(&config));
    let long = "def handler(event, context):\n    return 'x' * event\n";
    daemon.upload_code("lab", &plain(), long);
    let profile = files.0.path().join("load.toml");
    fs::write(
        &profile,
        "[[phases]]\nname = \"only\"\nduration_s = 0.5\nrate = 40\n",
    )
    .unwrap();
    let profile = profile.display().to_string();
    let authorities = authority.file().display().to_string();
    let bench = |words: &[&str]| -> Value {
        let words = [&["bench"], words, &["--json", "--cacert", &authorities]].concat();
        serde_json::from_str(&daemon.cli_ok(&words)).unwrap()
    };
    // Answers of several TLS records, and longer than the client's buffer; on one connection, on several, and in a burst.
    for (size, connections) in [("2", "1"), ("2", "4"), ("1000000", "1"), ("1000000", "3")] {
        let warm = bench(&["warm", "lab", "-n", "12", "-c", connections, "--data", size]);
        assert_eq!(warm["status"]["200"], 12, "{warm}");
    }
    let burst = bench(&["burst", "lab", "-c", "3", "-n", "2", "--data", "100000"]);
    assert_eq!(burst["status"]["200"], 6, "{burst}");
    let words = ["load", &profile, "--target", "lab", "--body-text", "100000"];
    let load = bench(&words);
    assert_eq!(load["total"]["answered"], 20, "{load}");

    let other = Authority::new();
    let other_file = other.file().display().to_string();
    let url = format!("{}/healthz", https(&daemon));
    for words in [
        &[
            "bench",
            "warm",
            "--url",
            &url,
            "-n",
            "1",
            "--cacert",
            &other_file,
        ][..],
        &[
            "bench",
            "load",
            &profile,
            "--target",
            &url,
            "--cacert",
            &other_file,
        ],
    ] {
        let output = daemon.cli(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("authority that is not trusted"), "{said}");
    }
}

#[test]
fn the_end_of_a_certificate_is_told_and_refuses_nothing() {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign_until("localhost", &files, 2020);
    let daemon = daemon_with(options(&files.keys("")));
    eventually("the end in the log", || {
        let log = daemon.log();
        log.contains("ended on 2020-01-01 00:00 UTC").then_some(())
    });
    // 2020-01-01.
    let metric = "pilot_tls_certificate_expiry_timestamp_seconds{key=\"tls_certificate\"}";
    let scraped = || {
        let metrics = format!("{}/metrics", https(&daemon));
        let output = curl(None, &["--insecure", &metrics]);
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |value: &str| scraped().contains(&format!("{metric} {value}\n"));
    assert!(has("1577836800"), "{}", scraped());
    let health = format!("{}/healthz", https(&daemon));
    assert!(!curl(Some(&authority.file()), &[&health]).status.success());
    assert!(curl(None, &["--insecure", &health]).status.success());

    let config = daemon.data_dir().with_file_name("doctor.toml");
    fs::write(&config, files.keys("")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["doctor", "--json", "--config"])
        .arg(&config)
        .arg("--data-dir")
        .arg(daemon.data_dir())
        .output()
        .unwrap();
    let checks: Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_certificate = |check: &&Value| check["what"] == "certificate";
    let check = checks.as_array().unwrap().iter().find(is_certificate);
    let check = check.unwrap();
    assert_eq!(check["state"], "absent", "{check}");
    let found = check["found"].as_str().unwrap();
    assert!(found.contains("ended on 2020-01-01"), "{check}");

    authority.sign_until("localhost", &files, 4000);
    eventually("the new end", || {
        let log = daemon.log();
        log.contains("on 4000-01-01 00:00 UTC").then_some(())
    });
    assert!(curl(Some(&authority.file()), &[&health]).status.success());
    assert!(has("64060588800"), "{}", scraped());
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let (authority, files, other) = (Authority::new(), Files::new(), Files::new());
    authority.sign("localhost", &files);
    authority.sign("localhost", &other);
    let refusal = |config: &str| {
        let (code, output) = Daemon::refuses_to_start(env!("CARGO_BIN_EXE_pilot"), options(config));
        assert_ne!(code, Some(0));
        output
    };
    let both = |certificate: &Path, key: &Path| {
        format!("tls_certificate = {certificate:?}\ntls_key = {key:?}\n")
    };
    let missing = Path::new("/nonexistent/key.pem");
    for (config, wanted) in [
        (
            both(&files.certificate(), missing),
            vec!["tls_key: /nonexistent/key.pem", "cannot be read"],
        ),
        (
            both(&files.key(), &files.key()),
            vec!["tls_certificate: ", "has no certificate"],
        ),
        (
            both(&files.certificate(), &other.key()),
            vec!["tls_key: ", "is not the key of the certificate in"],
        ),
        (
            format!("tls_certificate = {:?}\n", files.certificate()),
            vec!["tls_key is not"],
        ),
        (files.keys("control_"), vec!["control_listen is not"]),
    ] {
        let output = refusal(&config);
        for part in wanted {
            assert!(output.contains(part), "{part}: {output}");
        }
    }
    let config = other.0.path().join("pilotd.toml");
    fs::write(&config, both(&files.certificate(), missing)).unwrap();
    let config = config.to_str().unwrap();
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_pilot"));
    let output = doctor
        .args(["doctor", "--config", config])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("tls_key: "), "{}", said(&output));
    fs::set_permissions(files.key(), fs::Permissions::from_mode(0o644)).unwrap();
    let output = refusal(&files.keys(""));
    assert!(output.contains("other users may read it"), "{output}");
}

#[test]
fn a_handshake_that_trickles_is_cut_off_and_counts_as_a_connection() {
    let (authority, files) = (Authority::new(), Files::new());
    authority.sign("localhost", &files);
    let config = format!(
        "{}[limits]\nconnections = 8\nconnections_per_address = 100\n",
        files.keys("")
    );
    let daemon = daemon_with(options(&config));
    // The head of a record of 512 bytes, which does not come.
    let begun = Instant::now();
    let mut trickling: Vec<_> = (0..8)
        .map(|_| {
            // The connection on which the daemon said that it is ready may still count.
            eventually("a place", || {
                let mut stream = TcpStream::connect(daemon.address()).unwrap();
                stream.write_all(&[0x16, 3, 1, 2, 0, 1]).ok()?;
                let short = Duration::from_millis(20);
                stream.set_read_timeout(Some(short)).unwrap();
                let read = stream.read(&mut [0; 64]);
                read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
                    .then_some(stream)
            })
        })
        .collect();
    // All places are taken, and one is given to an honest client.
    let health = format!("{}/healthz", https(&daemon));
    eventually("an answer", || {
        curl(Some(&authority.file()), &[&health])
            .status
            .success()
            .then_some(())
    });
    assert!(begun.elapsed() < Duration::from_secs(8));
    let last = trickling.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let end = last.read(&mut [0; 64]);
    assert!(
        matches!(end, Ok(0))
            || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    );
    let took = begun.elapsed();
    assert!(
        took > Duration::from_secs(9) && took < Duration::from_secs(16),
        "{took:?}"
    );
    let slow = eventually_within(Duration::from_secs(5), "the count", || {
        let request = Request::new("GET", "/metrics");
        let metrics = daemon.connect_control().exchange(&request).text();
        let line = metrics
            .lines()
            .find(|line| line.contains("reason=\"too_slow\""))?
            .to_owned();
        let count: u64 = line.rsplit_once(' ')?.1.parse().ok()?;
        (count >= 8).then_some(count)
    });
    assert!(slow >= 8);
}

/// A connection with TLS, of a client that offers HTTP/1 alone.
fn connect(daemon: &Daemon, authority: &Authority) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(authority.file()).unwrap();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(daemon.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    StreamOwned::new(session, stream)
}

/// Answers 101, and then each line in capitals.
const CAPITALS: &str = r#"
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "capitals")
        self.end_headers()
        self.wfile.flush()
        while line := self.rfile.readline():
            self.wfile.write(line.upper())
            self.wfile.flush()
        self.close_connection = True

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[test]
fn an_upgraded_connection_is_a_tunnel_over_tls_too() {
    let (daemon, authority, _files) = with_tls();
    let project = Project::empty()
        .manifest(
            "web",
            "runtime = \"http\"\ncommand = [\"python3\", \"server.py\"]\n",
        )
        .file("server.py", CAPITALS);
    daemon.deploy(&project);
    let mut client = BufReader::new(connect(&daemon, &authority));
    let request = "GET /fn/web/ HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: capitals\r\n\r\n";
    client.get_mut().write_all(request.as_bytes()).unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(client.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    // More than one record, and more than one buffer.
    let long = "x".repeat(100_000);
    for line in ["hello", &long, "bye"] {
        let stream = client.get_mut();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        stream.flush().unwrap();
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim_end().len(), line.len());
        assert!(answer.trim_end() == line.to_uppercase());
    }
}

#[test]
fn without_a_certificate_nothing_is_different() {
    let daemon = daemon();
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(daemon.invoke("lab", &json!(1)).ok().json(), json!(1));
    // HTTP/2 is not spoken unless it is configured.
    let health = format!("{}/healthz", daemon.endpoint());
    let output = curl(None, &["--http2-prior-knowledge", &health]);
    assert!(!output.status.success(), "{}", said(&output));
}
