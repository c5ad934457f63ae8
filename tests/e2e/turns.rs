//! Deployments that run at the same time: those of one owner delay no other owner's, and a removal ends those of its function.

use pilot_harness::{ArchiveEntry, Connection, Daemon, Request, archive, multipart};
use serde_json::json;

use crate::{ECHO, answer, daemon, lab, plain};

/// A module whose import does not end.
const HANGS: &str = "import time\ntime.sleep(1000)\n";

/// Begins a deployment of a function whose import does not end, and reads what it says up to this stage.
fn begin(daemon: &Daemon, function: &str, owner: &str, stage: &str) -> Connection {
    let code = archive(&[ArchiveEntry::text("app.py", HANGS)]);
    let spec = json!({"owner": owner}).to_string();
    let (kind, body) = multipart(&[
        ("spec", "application/json", spec.as_bytes()),
        ("code", "application/gzip", &code),
    ]);
    let path = format!("/_pilot/v1/functions/{function}");
    let mut connection = daemon.connect_control();
    let request = Request::new("PUT", &path).header("content-type", &kind);
    connection.send(&request.header("connection", "close").body(body));
    let wanted = format!("\"stage\":\"{stage}\"");
    while !connection.raw_line().contains(&wanted) {}
    connection
}

fn last_words(connection: Connection) -> String {
    String::from_utf8(connection.until_the_end()).unwrap()
}

#[test]
fn imports_of_one_owner_that_hang_delay_no_other_owner_and_a_removal_ends_them() {
    let daemon = daemon();
    let mut hanging = Vec::new();
    for number in 0..6 {
        let stage = if number < 4 { "template" } else { "wait" };
        hanging.push(begin(&daemon, &format!("evil-{number}"), "evil", stage));
    }
    let honest = daemon.upload_code("lab", &json!({"owner": "honest"}), ECHO);
    assert_eq!(honest["number"], 1);
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
    // None of them has ended by itself. One that is removed makes room for the next one.
    let printed = daemon.cli_ok(&["remove", "evil-0"]);
    assert!(printed.starts_with("evil-0 is removed"), "{printed}");
    let removed = last_words(hanging.remove(0));
    assert!(removed.contains("\"code\":\"overtaken\""), "{removed}");
    let mut next = hanging.remove(3);
    while !next.raw_line().contains("\"stage\":\"template\"") {}
    for (function, connection) in [("evil-4", next), ("evil-5", hanging.remove(3))] {
        daemon.cli_ok(&["remove", function]);
        let removed = last_words(connection);
        assert!(removed.contains("was removed meanwhile"), "{removed}");
    }
}

#[test]
fn a_rollback_does_not_wait_for_a_deployment_whose_import_hangs() {
    let daemon = lab("def handler(event, context):\n    return 'one'\n", plain());
    daemon.upload_code("lab", &plain(), ECHO);
    let hanging = begin(&daemon, "lab", "lab", "template");
    daemon.cli_ok(&["rollback", "lab"]);
    assert_eq!(answer(&daemon, "lab", json!(1)), "one");
    let given_up = last_words(hanging);
    assert!(given_up.contains("was rolled back meanwhile"), "{given_up}");
}
