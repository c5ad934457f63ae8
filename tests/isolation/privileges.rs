//! No function is root or can become root: users, capabilities, no_new_privs, the filter, set-user-id files, process limits. Tried in
//! forked, spawned and once-only workers.

use serde_json::{Value, json};

use crate::{Attempt, Verdict};

const WORKERS: [&str; 3] = ["hostile", "spawned", "once"];

pub(crate) fn attempts() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for worker in WORKERS {
        for field in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
            attempts.push(Attempt::new(
                format!("{worker}: no capability in {field}"),
                move |ground| {
                    let value = status(&ground.ask(worker, "identity", json!([])), field);
                    held(
                        value.chars().all(|digit| digit == '0') && !value.is_empty(),
                        value,
                    )
                },
            ));
        }
        for (field, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
            attempts.push(Attempt::new(
                format!("{worker}: {field} is {wanted}"),
                move |ground| {
                    let value = status(&ground.ask(worker, "identity", json!([])), field);
                    held(value == wanted, value)
                },
            ));
        }
        attempts.push(Attempt::new(
            format!("{worker}: neither root nor in a group of the host"),
            move |ground| {
                let said = ground.ask(worker, "identity", json!([]));
                let ids = &said[1];
                let root = ids[0]
                    .as_array()
                    .unwrap()
                    .iter()
                    .chain(ids[1].as_array().unwrap())
                    .any(|id| id == 0);
                let groups = ids[2].as_array().unwrap();
                let foreign = groups
                    .iter()
                    .any(|group| !ids[1].as_array().unwrap().contains(group));
                held(!root && !foreign, ids.to_string())
            },
        ));
        for kind in [
            "setuid",
            "setresuid",
            "seteuid",
            "setgid",
            "setgroups",
            "other_uid",
        ] {
            attempts.push(Attempt::new(
                format!("{worker}: cannot change user by {kind}"),
                move |ground| ground.holds(worker, "become", json!([kind])),
            ));
        }
        for (what, name) in [
            ("regain_capabilities", "cannot take capabilities back"),
            ("set_user_id", "a set-user-id program gives nothing"),
            ("rlimits", "limits of the process hold"),
            ("descriptors", "inherits no way out"),
        ] {
            attempts.push(Attempt::new(format!("{worker}: {name}"), move |ground| {
                ground.holds(worker, what, json!([]))
            }));
        }
    }
    attempts
}

fn status(said: &Value, field: &str) -> String {
    said[0][field].as_str().unwrap_or("").trim().to_owned()
}

fn held(holds: bool, seen: String) -> Verdict {
    if holds {
        Verdict::Pass(seen)
    } else {
        Verdict::Fail(seen)
    }
}
