//! Packages run code while they are installed. A hostile build back end tries the same as a hostile function, and to leave something
//! behind. The attempts are in `backend.py`.

use std::time::{Duration, Instant};

use pilot_harness::{ArchiveEntry, Machine, archive, descendants, patience};
use serde_json::{Value, json};

use crate::ground::{BUILD_PIDS, Ground, HOSTS_SECRET};
use crate::{Attempt, Verdict};

const BACKEND: &str = include_str!("backend.py");
/// The lines of the back end that say which attack.
const UNCHOSEN: &str = "ATTACK = \"\"\nWITH = None\n";
const PROJECT: &str = "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n\
                       [project]\nname = \"built\"\nversion = \"1\"\n";
const APP: &str = "import built\ndef handler(event, context):\n    return built.SEEN\n";

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = vec![
        Attempt::new("a build: cannot write outside its folders", |ground| {
            let own = ground
                .host_files
                .path()
                .join("written")
                .display()
                .to_string();
            let mut places = vec!["/usr/x", "/etc/x", "/root/x", "/var/task/x", &own];
            // Without separate users, the build owns its staging folder.
            if ground.machine == Machine::AsItIs {
                places.push("/build/x");
            }
            none(&seen(ground, "write", &json!(places)))
        }),
        Attempt::new("a build: cannot read the host's files", |ground| {
            let secret = ground.host_files.path().join("secret.txt");
            let data = ground.daemon.data_dir();
            let with = json!(["/etc/shadow", "/root/.ssh", secret, data, "/home"]);
            let said = seen(ground, "read", &with);
            if said.to_string().contains(HOSTS_SECRET) {
                return Verdict::Fail(said.to_string());
            }
            none(&said)
        }),
        Attempt::new(
            "a build: cannot connect to the daemon or elsewhere",
            |ground| {
                let address = ground.daemon.address().to_string();
                none(&seen(ground, "connect", &json!(address)))
            },
        ),
        Attempt::new("a build: has no rights", |ground| {
            let said = seen(ground, "identity", &json!(null));
            let none = "0000000000000000";
            let confined = ["CapPrm", "CapEff", "CapBnd"]
                .iter()
                .all(|key| said[*key] == none)
                && said["NoNewPrivs"] == "1"
                && said["Seccomp"] == "2"
                && said["processes"].as_u64() < Some(10);
            match confined {
                true => Verdict::Pass(said.to_string()),
                false => Verdict::Fail(said.to_string()),
            }
        }),
    ];
    attempts.extend(leavings());
    attempts.extend(limited());
    attempts
}

/// They try to leave something behind, or to end no more.
fn leavings() -> Vec<Attempt> {
    vec![
        Attempt::new("a build: leaves no process behind", |ground| {
            let said = seen(ground, "stay", &json!("71771"));
            let left = descendants(ground.daemon.pid()).into_iter().find(|pid| {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                command.windows(5).any(|word| word == b"71771")
            });
            match left {
                None => Verdict::Pass(said.to_string()),
                Some(pid) => Verdict::Fail(format!("process {pid} is left")),
            }
        }),
        Attempt::new(
            "a build: does not wait for who holds its output",
            |ground| is_not_held(ground, "hold"),
        ),
        Attempt::new(
            "a build: does not wait for who holds its output and has no first thread",
            |ground| is_not_held(ground, "hold_without_first_thread"),
        ),
        Attempt::new(
            "a build: its links out of the folder are refused",
            |ground| {
                refused(
                    ground,
                    "link",
                    &json!("/etc/passwd"),
                    "is a link that leads out",
                )
            },
        ),
        Attempt::new(
            "a build: what it leaves beside its packages is not used",
            |ground| {
                let victim = ground.host_files.path().join("victim");
                std::fs::write(&victim, "as it was").expect("a file of the host");
                let _ = seen(ground, "beside", &json!(victim.display().to_string()));
                match std::fs::read_to_string(&victim) {
                    Ok(text) if text == "as it was" => Verdict::Pass(text),
                    other => Verdict::Fail(format!("{other:?}")),
                }
            },
        ),
        Attempt::new("a build: its sockets are refused", |ground| {
            refused(ground, "socket", &json!(null), "is a socket")
        }),
        Attempt::new("a build: its set-user-id bits are removed", |ground| {
            let _ = deploy(ground, "setuid", &json!(null));
            let found = set_user_id(&ground.daemon.data_dir());
            match found {
                None => Verdict::Pass(String::new()),
                Some(path) => Verdict::Fail(path.display().to_string()),
            }
        }),
        Attempt::new("a build: cannot fill the disk", |ground| {
            refused(ground, "fill", &json!(null), "wrote more than its limit")
        }),
        Attempt::new(
            "a build: cannot fill the disk with removed files that it only maps",
            |ground| {
                let seconds = json!(20 * patience());
                refused(ground, "fill_unseen", &seconds, "wrote more than its limit")
            },
        ),
        Attempt::new("a build: cannot print for ever", |ground| {
            refused(
                ground,
                "print",
                &json!(null),
                "printed more than|used more memory",
            )
        }),
    ]
}

/// They need cgroups, and so root.
fn limited() -> Vec<Attempt> {
    vec![
        Attempt::new(
            "a build: cannot start processes without end (limit)",
            |ground| {
                let said = seen(ground, "processes", &json!(null));
                let before = ground.victim_count();
                let calm = ground.victim_count() == before + 1;
                match said.as_u64() {
                    Some(1..BUILD_PIDS) if calm => Verdict::Pass(said.to_string()),
                    _ => Verdict::Fail(said.to_string()),
                }
            },
        ),
        Attempt::new("a build: cannot take more memory (limit)", |ground| {
            refused(
                ground,
                "memory",
                &json!(null),
                "used more memory than its limit",
            )
        }),
    ]
}

fn is_not_held(ground: &Ground, attack: &str) -> Verdict {
    let began = Instant::now();
    let said = seen(ground, attack, &json!("71772"));
    // The limit of a build is twice as long.
    let took = began.elapsed();
    if took < Duration::from_secs(30) * patience() {
        Verdict::Pass(said.to_string())
    } else {
        Verdict::Fail(format!("it took {took:.0?}"))
    }
}

/// What the attack saw, which the function that was built returns.
fn seen(ground: &Ground, attack: &str, with: &Value) -> Value {
    let (status, event) = deploy(ground, attack, with);
    assert!(
        status == 200 && event["event"] == "done",
        "{status} {event}"
    );
    let answer = ground.daemon.invoke("built", &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn deploy(ground: &Ground, attack: &str, with: &Value) -> (u16, Value) {
    let chosen = format!("ATTACK = {attack:?}\nWITH = {}\n", python(with));
    let backend = BACKEND.replace(UNCHOSEN, &chosen);
    assert!(backend.contains(&chosen), "backend.py has no {UNCHOSEN:?}");
    let files = archive(&[
        ArchiveEntry::text("app.py", APP),
        ArchiveEntry::text("requirements.txt", "./p\n"),
        ArchiveEntry::text("p/pyproject.toml", PROJECT),
        ArchiveEntry::text("p/backend.py", &backend),
    ]);
    let keys = json!({"memory_mb": 128, "network": "none"});
    ground.daemon.upload("built", &keys, &files)
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        other => other.to_string(),
    }
}

/// Passes if no attack of a list succeeded.
fn none(said: &Value) -> Verdict {
    let all = said.as_array().unwrap();
    match all.iter().any(|one| one[0] != json!(false)) {
        true => Verdict::Fail(said.to_string()),
        false => Verdict::Pass(said.to_string()),
    }
}

/// Passes if the deployment was refused with one of these words, and nothing is left of it.
fn refused(ground: &Ground, attack: &str, with: &Value, words: &str) -> Verdict {
    let (_, event) = deploy(ground, attack, with);
    let text = event.to_string();
    let staged = std::fs::read_dir(ground.daemon.data_dir().join("staging")).unwrap();
    let left: usize = staged
        .map(|run| std::fs::read_dir(run.unwrap().path()).unwrap().count())
        .sum();
    match words.split('|').any(|words| text.contains(words)) && left == 0 {
        true => Verdict::Pass(text),
        false => Verdict::Fail(format!("{text}; {left} staging folders are left")),
    }
}

fn set_user_id(folder: &std::path::Path) -> Option<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else {
                continue;
            };
            if metadata.is_dir() {
                open.push(entry.path());
            } else if metadata.is_file() && metadata.permissions().mode() & 0o6000 != 0 {
                return Some(entry.path());
            }
        }
    }
    None
}
