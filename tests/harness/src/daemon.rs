//! `pilot serve` as a child process with a free port and its own data directory. Dropping it ends it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::compiled_worker;
use crate::{Connection, Project, Request, Response, archive, multipart, patience};

/// The options of a daemon.
#[derive(Debug, Clone, Default)]
pub struct DaemonOptions {
    /// Further arguments after `serve --listen … --data-dir …`.
    pub arguments: Vec<String>,
    /// Content of a `pilotd.toml`.
    pub config: Option<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Sent with every request.
    pub token: Option<String>,
    /// The machine that the daemon finds.
    pub machine: Machine,
    /// The data directory is a file system of its own of this size. Needs root.
    pub data_disk_mb: Option<u32>,
    /// The daemon's own log cannot be written, as on a full disk.
    pub full_log: bool,
}

/// The machine that a daemon finds. Those without a part of it need root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Machine {
    /// The machine without changes.
    #[default]
    AsItIs,
    /// The daemon's user is not root. The interpreter is the system's, because that user may not reach another one.
    WithoutRoot,
    /// No cgroup file system is mounted.
    WithoutCgroups,
    /// A process has at most 64 GiB of address space.
    LittleAddressSpace,
    /// A process has at most 1,024 open files.
    FewFiles,
}

impl Machine {
    /// The command that runs this program there, in the process of the command.
    fn command(self, program: &Path) -> Command {
        match self {
            Self::AsItIs => Command::new(program),
            Self::WithoutRoot => {
                let mut command = Command::new(program);
                command
                    .uid(NOBODY)
                    .gid(NOBODY)
                    .env("PATH", "/usr/local/bin:/usr/bin:/bin")
                    .env("HOME", "/nonexistent");
                command
            }
            Self::WithoutCgroups => {
                let mut command = Command::new("unshare");
                command
                    .args(["--mount", "--propagation", "private", "sh", "-c"])
                    .args([WITHOUT_CGROUPS, "sh"])
                    .arg(program);
                command
            }
            Self::LittleAddressSpace => limited(LITTLE_ADDRESS_SPACE, program),
            Self::FewFiles => limited(FEW_FILES, program),
        }
    }
}

/// Unmounts all cgroup file systems in a new mount namespace, the inner ones first.
const WITHOUT_CGROUPS: &str = "awk '$3 ~ /^cgroup/ { print $2 }' /proc/self/mounts | sort -r | while read -r mount; do \
                               umount -l \"$mount\"; done; exec \"$@\"";

fn limited(script: &str, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program);
    command
}

const FEW_FILES: &str = "ulimit -n 1024 && exec \"$@\"";

/// The unit is 1 KiB.
const LITTLE_ADDRESS_SPACE: &str = "ulimit -v 67108864 && exec \"$@\"";

/// The user that owns nothing.
const NOBODY: u32 = 65_534;

/// For how long a daemon may take until it serves or has ended, on a machine of the usual speed.
const READY_MAX: Duration = Duration::from_secs(20);

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    binary: PathBuf,
    options: DaemonOptions,
    /// Before `home`, which it is mounted in.
    _disk: Option<Disk>,
    home: TempDir,
    address: SocketAddr,
    child: Option<Child>,
    started_in: Duration,
}

impl Daemon {
    /// Starts this binary with default options and waits until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start(binary: impl AsRef<Path>) -> Self {
        Self::start_with(binary, DaemonOptions::default())
    }

    /// Starts this binary and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready within 20 seconds. Its output is printed.
    #[must_use]
    #[track_caller]
    pub fn start_with(binary: impl AsRef<Path>, options: DaemonOptions) -> Self {
        let home = tempfile::Builder::new()
            .prefix("pilot-test-")
            .tempdir()
            .unwrap();
        let disk = options.data_disk_mb;
        let mut daemon = Self {
            binary: binary.as_ref().to_owned(),
            _disk: disk.map(|mb| Disk::mount(home.path().join("data"), mb)),
            options,
            home,
            address: free_address(),
            child: None,
            started_in: Duration::ZERO,
        };
        if daemon.options.machine == Machine::WithoutRoot {
            daemon.give_to_nobody();
        } else {
            compiled_worker::give(&daemon.binary, &daemon.data_dir());
        }
        daemon.resume();
        daemon
    }

    /// Runs `serve`, which must refuse to start. Returns its exit code and its output.
    ///
    /// # Panics
    /// If it has not ended after 20 seconds times [`patience`].
    #[track_caller]
    pub fn refuses_to_start(
        binary: impl AsRef<Path>,
        options: DaemonOptions,
    ) -> (Option<i32>, String) {
        let daemon = Self {
            binary: binary.as_ref().to_owned(),
            options,
            _disk: None,
            home: tempfile::tempdir().unwrap(),
            address: free_address(),
            child: None,
            started_in: Duration::ZERO,
        };
        if daemon.options.machine == Machine::WithoutRoot {
            daemon.give_to_nobody();
        }
        daemon.refuses_to_resume()
    }

    /// Runs `serve` on the same data, which must refuse to start. Returns its exit code and its output.
    ///
    /// # Panics
    /// If it has not ended after 20 seconds times [`patience`].
    #[track_caller]
    pub fn refuses_to_resume(&self) -> (Option<i32>, String) {
        let mut child = self.spawn();
        let deadline = Instant::now() + READY_MAX * patience();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return (status.code(), self.log());
            }
            if Instant::now() > deadline {
                terminate(&mut child);
                panic!("it serves, and should not: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether nothing but the test itself can have made the daemon's files different from those of any other.
    fn is_ordinary(&self) -> bool {
        self.options.machine == Machine::AsItIs && self._disk.is_none()
    }

    /// Makes the program and the folder accessible for another user.
    fn give_to_nobody(&self) {
        std::fs::copy(&self.binary, self.copied_binary()).unwrap();
        let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY));
        own(self.home.path()).unwrap();
    }

    fn copied_binary(&self) -> PathBuf {
        self.home.path().join("pilot")
    }

    /// Starts it again on the same data, after [`Daemon::kill`] or [`Daemon::stop`].
    ///
    /// # Panics
    /// As [`Daemon::start_with`].
    #[track_caller]
    pub fn resume(&mut self) {
        let started = Instant::now();
        let mut child = self.spawn();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                panic!(
                    "the daemon ended ({status}) before it was ready:\n{}",
                    self.log()
                );
            }
            if TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok()
                && self.is_ready()
            {
                break;
            }
            if started.elapsed() > READY_MAX * patience() {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the daemon was not ready in time:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.started_in = started.elapsed();
        self.child = Some(child);
    }

    /// Asks on the control socket, which is bound before the address, because that one may have TLS. A test may have put the socket
    /// somewhere else.
    fn is_ready(&self) -> bool {
        let request = Request::new("GET", "/readyz").header("connection", "close");
        if self.control_socket().exists() {
            self.connect_control().exchange(&request).status == 200
        } else {
            self.send(&request).status == 200
        }
    }

    fn spawn(&self) -> Child {
        let log = if self.options.full_log {
            File::options().write(true).open("/dev/full")
        } else {
            let mut options = File::options();
            options.create(true).append(true).open(self.log_path())
        };
        let log = log.unwrap();
        let program = match self.options.machine {
            Machine::WithoutRoot => self.copied_binary(),
            Machine::AsItIs
            | Machine::WithoutCgroups
            | Machine::LittleAddressSpace
            | Machine::FewFiles => self.binary.clone(),
        };
        let mut command = self.options.machine.command(&program);
        command
            .arg("serve")
            .args(["--listen", &self.address.to_string()])
            .arg("--data-dir")
            .arg(self.data_dir());
        if let Some(config) = &self.options.config {
            let path = self.home.path().join("pilotd.toml");
            std::fs::write(&path, config).unwrap();
            command.arg("--config").arg(path);
        }
        command
            .args(&self.options.arguments)
            .env_remove("RUNTIME_DIRECTORY")
            .envs(
                self.options
                    .environment
                    .iter()
                    .map(|(key, value)| (key, value)),
            )
            .env_remove("PILOT_ENDPOINT")
            .env_remove("PILOT_TOKEN")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()))
    }

    /// The time from the start of the process until it was ready.
    #[must_use]
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The control socket, as the command line takes it.
    #[must_use]
    pub fn control_endpoint(&self) -> String {
        format!("unix:{}", self.control_socket().display())
    }

    /// The address for functions: `http://…`, without a slash at the end.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process id.
    ///
    /// # Panics
    /// If it is not running.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().unwrap().id()).unwrap()
    }

    /// Its data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Its output on stdout and stderr.
    #[must_use]
    pub fn log(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.log_path()) {
            let _ = file.seek(SeekFrom::Start(0));
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("daemon.log")
    }

    /// Sends SIGKILL, which is like a power failure for the program.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends SIGTERM and waits for the end. Returns the exit code.
    ///
    /// # Panics
    /// If it still runs after 20 seconds times [`patience`].
    #[track_caller]
    pub fn stop(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.child.as_ref()?.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        self.ends_by_itself()
    }

    /// Waits for the end. Returns the exit code.
    ///
    /// # Panics
    /// If it still runs after 20 seconds times [`patience`].
    #[track_caller]
    pub fn ends_by_itself(&mut self) -> Option<i32> {
        let mut child = self.child.take()?;
        let deadline = Instant::now() + READY_MAX * patience();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the daemon did not end in time:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A new connection.
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    /// A new connection to the control socket.
    #[must_use]
    #[track_caller]
    pub fn connect_control(&self) -> Connection {
        Connection::open_unix(&self.control_socket())
    }

    /// The control socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.data_dir().join("control.sock")
    }

    /// The administrator's token, which the daemon has made.
    ///
    /// # Panics
    /// If it has made none.
    #[must_use]
    pub fn admin_token(&self) -> String {
        let text = std::fs::read_to_string(self.data_dir().join("admin.token")).unwrap();
        text.trim().to_owned()
    }

    /// One request on its own connection: to the control socket if it is for the control API, and to the address for functions
    /// otherwise.
    #[track_caller]
    pub fn send(&self, request: &Request) -> Response {
        let mut request = request.clone().header("connection", "close");
        if let Some(token) = &self.options.token {
            request = request.header("authorization", &format!("Bearer {token}"));
        }
        let mut connection = if request.target.starts_with("/_pilot/") {
            self.connect_control()
        } else {
            self.connect()
        };
        connection.exchange(&request)
    }

    /// `GET`.
    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        self.send(&Request::new("GET", target))
    }

    /// `GET` from the server at this address.
    #[must_use]
    #[track_caller]
    pub fn get_at(address: SocketAddr, target: &str) -> Response {
        Connection::open(address)
            .exchange(&Request::new("GET", target).header("connection", "close"))
    }

    /// `POST` of JSON.
    #[track_caller]
    pub fn post(&self, target: &str, body: &Value) -> Response {
        self.send(
            &Request::new("POST", target)
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
    }

    /// The Invoke API.
    #[track_caller]
    pub fn invoke(&self, function: &str, event: &Value) -> Response {
        self.post(&invocations(function), event)
    }

    /// The Invoke API with `X-Amz-Log-Type: Tail`: the response and the log's tail.
    ///
    /// # Panics
    /// If the response has no log.
    #[track_caller]
    pub fn invoke_tail(&self, function: &str, event: &Value) -> (Response, String) {
        let response = self.send(
            &Request::new("POST", &invocations(function))
                .header("x-amz-log-type", "Tail")
                .body(event.to_string()),
        );
        let encoded = response
            .header("x-amz-log-result")
            .unwrap_or_else(|| panic!("no X-Amz-Log-Result: {response:?}"));
        let log = String::from_utf8_lossy(&STANDARD.decode(encoded).unwrap()).into_owned();
        (response, log)
    }

    /// Deploys a project's folder through the command line, which must succeed.
    #[track_caller]
    pub fn deploy(&self, project: &Project) -> String {
        self.deploy_dir(project.path())
    }

    /// Deploys a folder through the command line, which must succeed.
    ///
    /// # Panics
    /// If it fails. The output of the command and of the daemon is printed.
    #[track_caller]
    pub fn deploy_dir(&self, folder: &Path) -> String {
        let output = self.cli(&["deploy", &folder.display().to_string()]);
        assert!(
            output.status.success(),
            "deploy failed: {}\n--- daemon:\n{}",
            both(&output),
            self.log()
        );
        both(&output)
    }

    /// Deploys a project, which must fail. Returns the command's output.
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub fn deploy_fails(&self, project: &Project) -> String {
        let output = self.cli(&["deploy", &project.path().display().to_string()]);
        assert!(
            !output.status.success(),
            "this deploy should fail, but: {}",
            both(&output)
        );
        both(&output)
    }

    /// Uploads an archive through the control API. Returns the status, and the last line of the response or the error.
    ///
    /// # Panics
    /// If the response is not JSON.
    #[track_caller]
    pub fn upload(&self, name: &str, spec: &Value, code: &[u8]) -> (u16, Value) {
        let spec = spec.to_string();
        let (kind, body) = multipart(&[
            ("spec", "application/json", spec.as_bytes()),
            ("code", "application/gzip", code),
        ]);
        let response = self.send(
            &Request::new("PUT", &format!("/_pilot/v1/functions/{name}"))
                .header("content-type", &kind)
                .body(body),
        );
        let text = response.text();
        let last = text.lines().last().unwrap_or("");
        let event = serde_json::from_str(last)
            .unwrap_or_else(|error| panic!("{error}: {} {text:?}", response.status));
        (response.status, event)
    }

    /// Uploads one file, `app.py`, through the control API, which must succeed. Returns the report.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn upload_code(&self, name: &str, spec: &Value, code: &str) -> Value {
        self.upload_archive(
            name,
            spec,
            &archive(&[crate::ArchiveEntry::text("app.py", code)]),
        )
    }

    /// Uploads an archive through the control API, which must succeed. Returns the report.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn upload_archive(&self, name: &str, spec: &Value, archive: &[u8]) -> Value {
        let (status, event) = self.upload(name, spec, archive);
        assert!(
            status == 200 && event["event"] == "done",
            "deploy of {name}: {status} {event}\n--- daemon:\n{}",
            self.log()
        );
        event
    }

    /// Scales to this number of workers, and returns the pool's state.
    #[track_caller]
    pub fn scale(&self, function: &str, workers: u32) -> Value {
        self.post(
            &format!("/_pilot/v1/functions/{function}/scale"),
            &serde_json::json!({ "workers": workers }),
        )
        .ok()
        .json()
    }

    /// `describe`, as JSON.
    #[track_caller]
    pub fn describe(&self, function: &str) -> Value {
        self.get(&format!("/_pilot/v1/functions/{function}"))
            .ok()
            .json()
    }

    /// One of the function's worker counts: `starting`, `idle`, `busy`, `waiting`.
    #[track_caller]
    pub fn workers(&self, function: &str, state: &str) -> u64 {
        self.describe(function)["workers"][state]
            .as_u64()
            .unwrap_or_else(|| panic!("no count of {state} workers"))
    }

    /// The function's log lines.
    #[track_caller]
    pub fn logs(&self, function: &str) -> String {
        self.get(&format!("/_pilot/v1/functions/{function}/logs?lines=1000"))
            .ok()
            .text()
    }

    /// The texts of the function's log lines, without time and source.
    #[track_caller]
    pub fn log_texts(&self, function: &str) -> String {
        // The text begins at a fixed column.
        let log = self.logs(function);
        let texts = log.lines().map(|line| line.get(34..).unwrap_or_default());
        texts.flat_map(|text| [text, "\n"]).collect()
    }

    /// Runs a command of the command line against this daemon.
    ///
    /// # Panics
    /// If the binary cannot be run.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A command of the command line for this daemon.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(arguments)
            .env("PILOT_ENDPOINT", self.control_endpoint())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        if let Some(token) = &self.options.token {
            command.env("PILOT_TOKEN", token);
        }
        command
    }

    /// Runs a command, which must succeed. Returns its stdout.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn cli_ok(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments);
        assert!(
            output.status.success(),
            "pilot {}: {}\n--- daemon:\n{}",
            arguments.join(" "),
            both(&output),
            self.log()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A mounted file system in memory. Dropping it unmounts it.
#[derive(Debug)]
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf, mb: u32) -> Self {
        std::fs::create_dir(&at).unwrap();
        let size = format!("size={mb}m");
        let flags = MsFlags::empty();
        mount(Some("tmpfs"), &at, Some("tmpfs"), flags, Some(&*size)).unwrap();
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(8000);
            let from = (from..=log.len())
                .find(|at| log.is_char_boundary(*at))
                .unwrap_or(0);
            eprintln!("--- the daemon's log:\n{}\n---", &log[from..]);
        }
        let Some(mut child) = self.child.take() else {
            return;
        };
        terminate(&mut child);
        if self.is_ordinary() && !std::thread::panicking() {
            compiled_worker::keep(&self.binary, &self.data_dir());
        }
    }
}

/// Ends a child: first with SIGTERM, so that it can remove its cgroups and mounts, then with SIGKILL after five seconds.
pub fn terminate(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id())
        && matches!(child.try_wait(), Ok(None))
    {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let deadline = Instant::now() + Duration::from_secs(5) * patience();
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The Invoke API's path.
fn invocations(function: &str) -> String {
    format!("/2015-03-31/functions/{function}/invocations")
}

fn both(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A port that is free at the moment, below those that the kernel gives to clients (`ip_local_port_range`, ip(7)): a connection of another
/// test cannot take it before the daemon does. Each process has ten of its own.
#[must_use]
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let block = (std::process::id() + number / 10) % 2000;
        let port = u16::try_from(10_000 + block * 10 + number % 10).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
