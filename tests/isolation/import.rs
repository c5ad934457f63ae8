//! User code also runs when a deployment imports it, in the template from which workers are forked. The template has the privileges
//! to join namespaces. The same attempts must fail there, and must not affect the templates of other functions.

use pilot_sys::seqpacket::descriptors_can_be_refused;
use serde_json::json;

use crate::ground::{Ground, VICTIMS_SECRET};
use crate::hostile::{code_with, deploy, deploy_with};
use crate::{Attempt, Verdict};

/// CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_CHROOT, CAP_SYS_ADMIN: the capabilities that a template needs for its workers
/// (setns(2), setresuid(2), PR_CAPBSET_DROP). The attempt "as root" checks that user 0 has no useful rights there.
const FOR_JOINING: u64 = 1 << 6 | 1 << 7 | 1 << 8 | 1 << 18 | 1 << 21;

const NAMES: [&str; 16] = [
    "host files",
    SEND,
    "namespaces",
    "memory of others",
    "mount",
    "devices",
    "network",
    "raw socket",
    "chroot",
    "bpf",
    "ptrace",
    "as root",
    "unshare",
    "mount calls",
    "keyrings and the like",
    "processes",
];

/// A template that has sent a descriptor where the kernel cannot refuse it has also sent a byte that the daemon does not expect.
const SEND: &str = "send descriptor";

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for name in NAMES {
        attempts.push(Attempt::new(format!("at import: {name}"), move |ground| {
            if name == SEND && !descriptors_can_be_refused() {
                return Verdict::Skip(
                    "the kernel cannot refuse them (before Linux 6.16)".to_owned(),
                );
            }
            let said = at_import(ground, name);
            match said[0].as_bool() {
                Some(false) => Verdict::Pass(said[1].to_string()),
                Some(true) => Verdict::Fail(said[1].to_string()),
                None => Verdict::Pass(format!("raised {}", said[1])),
            }
        }));
    }
    attempts.extend(users());
    attempts.push(Attempt::new(
        "at import: no capability but those for joining namespaces",
        |ground| {
            let said = at_import(ground, "identity");
            let text = said[0]["CapEff"].as_str().unwrap_or("?").trim().to_owned();
            let capabilities = u64::from_str_radix(&text, 16).unwrap_or(u64::MAX);
            let seen = format!(
                "CapEff {text}, NoNewPrivs {}, Seccomp {}, ids {}",
                said[0]["NoNewPrivs"], said[0]["Seccomp"], said[1]
            );
            let confined = said[0]["NoNewPrivs"] == "1" && said[0]["Seccomp"] == "2";
            if capabilities & !FOR_JOINING == 0 && confined {
                Verdict::Pass(seen)
            } else {
                Verdict::Fail(seen)
            }
        },
    ));
    attempts.push(Attempt::new(
        "at import: writes nowhere but /tmp",
        |ground| {
            let said = at_import(ground, "writes");
            let beyond: Vec<&str> = said[1]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|place| place.as_str())
                .filter(|place| !place.starts_with("/tmp") && !place.starts_with("/dev"))
                .filter(|place| !ground.is_own_init(place))
                .collect();
            if beyond.is_empty() {
                Verdict::Pass(said[1].to_string())
            } else {
                Verdict::Fail(beyond.join(", "))
            }
        },
    ));
    attempts.extend(for_others());
    attempts
}

/// Attempts of code at import to be another user.
fn users() -> [Attempt; 2] {
    let namespaces = Attempt::new(
        "at import: capabilities are valid in a user namespace of the function alone",
        |ground| {
            let users = |name: &str, first: &str| -> [String; 2] {
                let code = format!(
                    "import os, threading, time\n{first}\nAT_IMPORT = os.readlink('/proc/self/ns/user')\n\
                     def handler(event, context):\n    return [AT_IMPORT, os.readlink('/proc/self/ns/user')]\n"
                );
                ground.daemon.upload_code(name, &json!({}), &code);
                let seen = ground.daemon.invoke(name, &json!({})).ok().json();
                serde_json::from_value(seen).unwrap()
            };
            // The last one cannot be forked, so its worker is forked from the level above.
            let thread = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()";
            let all = [
                users("users-a", ""),
                users("users-b", ""),
                users("users-c", thread),
            ];
            // Not before: the kernel uses the number of a namespace that is gone again.
            for name in ["users-a", "users-b", "users-c"] {
                ground.daemon.cli_ok(&["remove", name]);
            }
            let mut distinct: Vec<&String> = all.iter().map(|[at_import, _]| at_import).collect();
            distinct.sort();
            distinct.dedup();
            let host = std::fs::read_link("/proc/self/ns/user").unwrap();
            let host = host.to_string_lossy().into_owned();
            let own = all
                .iter()
                .all(|[at_import, worker]| at_import == worker && *worker != host);
            match own && distinct.len() == all.len() {
                true => Verdict::Pass(format!("{all:?}")),
                false => Verdict::Fail(format!("{all:?}, and the host's {host}")),
            }
        },
    );
    let others = Attempt::new(
        "at import: cannot become another function's user",
        |ground| {
            let said = at_import(ground, "become any user");
            match said[0].as_bool() {
                Some(false) => Verdict::Pass(said[1].to_string()),
                _ => Verdict::Fail(said.to_string()),
            }
        },
    );
    [namespaces, others]
}

/// Attempts of code at import to affect others.
fn for_others() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    attempts.push(Attempt::new(
        "at import: what a template writes to /tmp is not seen by other functions",
        |ground| {
            let more = format!("open('/tmp/of-the-template', 'w').write('{VICTIMS_SECRET}')\n");
            deploy_with(&ground.daemon, "tmp-at-import", &json!({}), &more);
            deploy(&ground.daemon, "tmp-beside", &json!({"memory_mb": 64}));
            ground.holds("tmp-beside", "tmp_list", json!([]))
        },
    ));
    attempts.push(Attempt::new(
        "at import: killing the parent leaves the other functions working",
        |ground| {
            let (_, event) = ground.daemon.upload(
                "parricide",
                &json!({"environment": {"KILL_PARENT_AT_IMPORT": "1"}}),
                &code_with(""),
            );
            ground.daemon.scale("victim", 0);
            ground.daemon.scale("spawned", 0);
            let victim = ground.ask("victim", "count", json!([]));
            let spawned = ground.ask("spawned", "count", json!([]));
            deploy(&ground.daemon, "after", &json!({"memory_mb": 65}));
            let after = ground.ask("after", "count", json!([]));
            Verdict::Pass(format!(
                "deploy: {}; {victim} {spawned} {after}",
                event["event"]
            ))
        },
    ));
    attempts.push(Attempt::new("at import: a descriptor that was opened then gives a worker nothing", |ground| {
        let more =
            "KEPT = [os.open(path, os.O_RDONLY) for path in ('/', '/proc', '/var') if os.path.isdir(path)]\n\
             def try_kept():\n    got = []\n    for fd in KEPT:\n        for path in ('etc/shadow', '../etc/shadow', 'proc/1/root/etc/shadow', '1/root/etc/shadow'):\n            \
             try: got.append(os.open(path, os.O_RDONLY, dir_fd=fd))\n            except OSError: pass\n    return [bool(got), got]\n";
        deploy_with(&ground.daemon, "opened-at-import", &json!({}), more);
        ground.holds("opened-at-import", "kept", json!([]))
    }));
    attempts
}

/// The result of this attempt during the import of `importer`, which is deployed on first use.
fn at_import(ground: &Ground, name: &str) -> serde_json::Value {
    if ground.daemon.get("/_pilot/v1/functions/importer").status == 404 {
        let left_out = if descriptors_can_be_refused() {
            ""
        } else {
            SEND
        };
        deploy(
            &ground.daemon,
            "importer",
            &json!({"environment": {"TRY_AT_IMPORT": "1", "LEAVE_OUT": left_out}, "timeout_s": 20}),
        );
    }
    ground
        .daemon
        .invoke("importer", &json!({"try": "at_import", "name": name}))
        .ok()
        .json()
}
