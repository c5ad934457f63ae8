//! Files of the host, of the daemon and of other functions; writable places; the size and the lifetime of /tmp.

use serde_json::json;

use crate::ground::{Ground, HOSTS_SECRET, VICTIMS_SECRET};
use crate::{Attempt, Verdict};

const WRITABLE: [&str; 6] = [
    "/tmp",
    "/dev/shm",
    "/var/tmp",
    "/dev",
    "/dev/mqueue",
    "/run/lock",
];

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in ["hostile", "spawned"] {
        attempts.push(Attempt::new(
            format!("{worker}: cannot read the host's files"),
            move |ground| ground.holds(worker, "read", json!([host_paths(ground)])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: cannot find another's secret anywhere"),
            move |ground| ground.holds(worker, "find", json!([[VICTIMS_SECRET, HOSTS_SECRET]])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: can write to its own /tmp alone"),
            move |ground| {
                let places = ground.ask(worker, "write", json!([]));
                let beyond: Vec<String> = places
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(|place| place.as_str())
                    .filter(|place| {
                        !WRITABLE
                            .iter()
                            .any(|known| place == known || place.starts_with("/tmp/"))
                            && !ground.is_own_init(place)
                    })
                    .map(str::to_owned)
                    .collect();
                if beyond.is_empty() {
                    Verdict::Pass(places.to_string())
                } else {
                    Verdict::Fail(beyond.join(", "))
                }
            },
        ));
        attempts.push(Attempt::new(
            format!("{worker}: has its own secret and can neither change it nor its folder"),
            move |ground| ground.holds(worker, "change_secret", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: no devices but the harmless ones"),
            move |ground| ground.holds(worker, "devices", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: /proc/locks cannot be read"),
            move |ground| ground.holds(worker, "read_locks", json!([])),
        ));
        attempts.push(Attempt::new(
            format!("{worker}: mounts are read-only, or nosuid"),
            move |ground| ground.holds(worker, "mounts", json!([])),
        ));
    }
    attempts.push(Attempt::new(
        "what is mounted below /usr on the host is read-only",
        below_usr,
    ));
    attempts_on_tmp(&mut attempts);
    attempts
}

/// The size and the lifetime of /tmp.
fn attempts_on_tmp(attempts: &mut Vec<Attempt>) {
    attempts.push(Attempt::new("/tmp has a limit in bytes", |ground| {
        let response = ground.raw("hostile", "tmp_fill", json!([1024]));
        // /tmp counts as memory, so being killed at the memory limit is correct, too.
        if response.text().to_lowercase().contains("memory")
            && response.header("x-amz-function-error").is_some()
        {
            return Verdict::Pass("ended at its memory limit".to_owned());
        }
        verdict_of(&response.json())
    }));
    attempts.push(Attempt::new("/tmp has a limit in files", |ground| {
        let response = ground.raw("hostile", "tmp_inodes", json!([2_000_000]));
        if response.header("x-amz-function-error").is_some() {
            let text = response.text();
            return if text.contains("memory") {
                Verdict::Pass(text)
            } else {
                Verdict::Fail(text)
            };
        }
        verdict_of(&response.json())
    }));
    attempts.push(Attempt::new("a new worker's /tmp is empty", |ground| {
        ground.daemon.scale("hostile", 0);
        ground.ask("hostile", "tmp_write", json!(["left", "x"]));
        ground.daemon.scale("hostile", 0);
        ground.holds("hostile", "tmp_list", json!([]))
    }));
    attempts.push(Attempt::new(
        "once-only workers never meet a file of the one before",
        |ground| {
            for _ in 0..3 {
                let (seen, files) = ground.attempt("once", "tmp_list", json!([]));
                if seen {
                    return Verdict::Fail(files.to_string());
                }
                ground.ask("once", "tmp_write", json!(["left", "x"]));
            }
            Verdict::Pass(String::new())
        },
    ));
}

fn below_usr(ground: &Ground) -> Verdict {
    let keys = json!({"memory_mb": 128, "network": "none"});
    let place = ground.below_usr.0.display();
    let code = format!(
        "import os\n\
         def handler(event, context):\n    \
             seen, got = os.listdir('{place}'), []\n    \
             options = [line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '{place}']\n    \
             try:\n        \
                 open('{place}/escaped', 'w').close()\n        \
                 got.append('written')\n    \
             except OSError as error:\n        \
                 seen.append(str(error))\n    \
             for flag in ('ro', 'nosuid', 'nodev'):\n        \
                 if not options or flag not in options[0].split(','):\n            \
                     got.append('not ' + flag)\n    \
             return [bool(got), [seen, options, got]]\n"
    );
    ground.daemon.upload_code("below-usr", &keys, &code);
    let response = ground.daemon.invoke("below-usr", &json!({})).ok();
    ground.daemon.cli_ok(&["remove", "below-usr"]);
    verdict_of(&response.json())
}

fn verdict_of(said: &serde_json::Value) -> Verdict {
    if said[0] == true {
        Verdict::Fail(said[1].to_string())
    } else {
        Verdict::Pass(said[1].to_string())
    }
}

fn host_paths(ground: &Ground) -> Vec<String> {
    let data = ground.daemon.data_dir().display().to_string();
    let host = ground.host_files.path().display().to_string();
    let daemon = ground.daemon.pid();
    let mut paths: Vec<String> = [
        "/etc/shadow",
        "/etc/gshadow",
        "/root/.bashrc",
        "/root/.profile",
        "/root/.ssh",
        "/root/.cargo",
        "/home",
        "/boot",
        "/var/lib",
        "/var/log",
        "/mnt",
        "/srv",
        "/media",
        "/sys/fs/cgroup",
        "/sys/kernel/debug",
        "/proc/kcore",
        "/proc/1/root/etc",
        "/proc/1/cwd/etc",
        "/dev/mem",
        "/dev/vda",
        "/dev/sda",
        "/dev/kmsg",
    ]
    .map(str::to_owned)
    .into();
    paths.push(format!("{host}/secret.txt"));
    paths.push(data.clone());
    paths.push(format!("/proc/{daemon}/root"));
    paths.push(format!("/proc/{daemon}/environ"));
    for entry in std::fs::read_dir(&data).into_iter().flatten().flatten() {
        paths.push(entry.path().display().to_string());
    }
    paths
}
