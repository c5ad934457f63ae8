//! The environment of the attempts: a daemon with hostile functions, a victim, and secrets in places that only their owner may see.

use std::path::PathBuf;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use pilot_harness::{Daemon, DaemonOptions, Machine, Request, Response, patience};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Verdict;
use crate::hostile::{deploy, deploy_with};

/// A secret in the victim's code, environment, memory and /tmp.
pub(crate) const VICTIMS_SECRET: &str = "VICTIM-SECRET-1f0c77";
/// A secret in a world-readable file of the host.
pub(crate) const HOSTS_SECRET: &str = "HOST-SECRET-93be21";

/// Memory limit of the hostile functions, MiB.
pub(crate) const MEMORY_MB: u64 = 128;
/// CPU limit of the function `slow`.
pub(crate) const SLOW_CPU: f64 = 0.25;

/// Limit of processes of a build.
pub(crate) const BUILD_PIDS: u64 = 128;

/// The daemon and its environment.
pub(crate) struct Ground {
    pub(crate) daemon: Daemon,
    pub(crate) machine: Machine,
    /// A folder of the host with a readable secret.
    pub(crate) host_files: TempDir,
    /// Mounted before the daemon has started, because one that is not root has a copy of the host's mounts.
    pub(crate) below_usr: Submount,
}

impl Ground {
    /// Starts the daemon and deploys: `hostile` (forked), `spawned` (no template), `once`, `slow` (little CPU), `roomy`
    /// (much memory), `victim`.
    pub(crate) fn prepare(machine: Machine) -> Self {
        let host_files = tempfile::Builder::new()
            .prefix("pilot-isolation-")
            .tempdir()
            .unwrap();
        std::fs::write(host_files.path().join("secret.txt"), HOSTS_SECRET).unwrap();
        open_to_all(host_files.path());
        let below_usr = Submount::mount();
        let options = DaemonOptions {
            machine,
            config: Some(format!(
                "[build]\nmemory_mb = 512\ndisk_mb = 300\ntime_s = {}\npids = {BUILD_PIDS}\n",
                60 * patience()
            )),
            ..DaemonOptions::default()
        };
        let daemon = Daemon::start_with(env!("CARGO_BIN_EXE_pilot"), options);
        let keys = |more: Value| {
            let mut keys = json!({"memory_mb": MEMORY_MB, "timeout_s": 25 * patience(), "network": "none", "scale": {"max": 4}});
            for (key, value) in more.as_object().unwrap() {
                keys[key] = value.clone();
            }
            keys
        };
        // The victim's secrets are also a secret's value: a variable and a file. The hostile ones have a file of their own.
        set_secret(&daemon, "victims", VICTIMS_SECRET);
        set_secret(&daemon, "own", "the hostile function's own");
        let own = json!({
            "secrets": {"OWN": {"secret": "own", "file": "own"}},
            "invokes": ["victim"],
        });
        let mut spawned = own.clone();
        spawned["template"] = json!("off");
        deploy_with(
            &daemon,
            "victim",
            &keys(json!({
                "environment": {"SECRET": VICTIMS_SECRET},
                "secrets": {"GIVEN": "victims", "GIVEN_FILE": {"secret": "victims", "file": "victims"}},
            })),
            &format!("SECRET = \"{VICTIMS_SECRET}\"\n"),
        );
        deploy(&daemon, "hostile", &keys(own));
        deploy(&daemon, "spawned", &keys(spawned));
        deploy(&daemon, "once", &keys(json!({"reuse": "once"})));
        deploy(&daemon, "slow", &keys(json!({"cpu": SLOW_CPU})));
        deploy(&daemon, "roomy", &keys(json!({"memory_mb": 1024})));
        deploy(
            &daemon,
            "roomy-spawned",
            &keys(json!({"memory_mb": 1024, "template": "off"})),
        );
        let ground = Self {
            daemon,
            machine,
            host_files,
            below_usr,
        };
        // The victim must run while the others try to reach it.
        ground.ask("victim", "tmp_write", json!(["secret", VICTIMS_SECRET]));
        ground.ask("victim", "bind_abstract", json!(["victim"]));
        ground.ask("victim", "make_shm", json!([7_177_177]));
        ground
    }

    /// One attempt: whether it succeeded, and what it saw.
    pub(crate) fn attempt(&self, function: &str, what: &str, with: Value) -> (bool, Value) {
        let said = self.ask(function, what, with);
        (said[0].as_bool().unwrap_or(true), said[1].clone())
    }

    /// The raw result of an attempt, which must not be an error.
    pub(crate) fn ask(&self, function: &str, what: &str, with: Value) -> Value {
        let response = self.raw(function, what, with);
        assert!(
            response.status == 200 && response.header("x-amz-function-error").is_none(),
            "{what} in {function}: {} {}",
            response.status,
            response.text()
        );
        response.json()
    }

    /// The response of an attempt.
    pub(crate) fn raw(&self, function: &str, what: &str, with: Value) -> Response {
        self.daemon
            .invoke(function, &json!({"try": what, "with": with}))
    }

    /// Runs an attempt and trusts its own report.
    pub(crate) fn holds(&self, function: &str, what: &str, with: Value) -> Verdict {
        let (escaped, seen) = self.attempt(function, what, with);
        if escaped {
            Verdict::Fail(seen.to_string())
        } else {
            Verdict::Pass(seen.to_string())
        }
    }

    /// Whether a writable place is the sandbox's own. Without separate users, its processes may raise the OOM score of the sandbox's
    /// init (proc(5), `oom_score_adj`), which can only end themselves.
    pub(crate) fn is_own_init(&self, place: &str) -> bool {
        self.machine == Machine::WithoutRoot && place == "/proc/1/oom_score_adj"
    }

    /// The victim's count, which shows that it still answers from the same worker.
    pub(crate) fn victim_count(&self) -> u64 {
        self.ask("victim", "count", json!([]))[1].as_u64().unwrap()
    }
}

fn set_secret(daemon: &Daemon, name: &str, value: &str) {
    let target = format!("/_pilot/v1/secrets/{name}");
    daemon.send(&Request::new("PUT", &target).body(value)).ok();
}

/// A file system below `/usr` that everybody may write to.
pub(crate) struct Submount(pub(crate) PathBuf);

impl Submount {
    fn mount() -> Self {
        let place = PathBuf::from(format!("/usr/pilot-isolation-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let made = Self(place);
        let kind = Some("tmpfs");
        mount(
            kind,
            &made.0,
            kind,
            MsFlags::empty(),
            Some("mode=0777,size=1m"),
        )
        .unwrap();
        std::fs::write(made.0.join("of-the-host"), "x").unwrap();
        made
    }
}

impl Drop for Submount {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}
