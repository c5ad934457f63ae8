//! Triggers: what invokes functions besides requests, and what becomes of it when the daemon ends in between.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use pilot_harness::{ArchiveEntry, Daemon, DaemonOptions, archive, eventually, eventually_within};
use serde_json::{Value, json};

use crate::{ECHO, daemon, daemon_with, plain};

/// A debug build on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The records of successful invocations of `lab`, which go to a file.
fn records(daemon: &Daemon) -> Vec<Value> {
    let file = daemon.data_dir().join("destinations/lab/runs.jsonl");
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.split_inclusive('\n');
    let whole = whole.filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The keys of a function with one trigger, whose runs are recorded.
fn with_trigger(trigger: &Value) -> Value {
    json!({"triggers": [trigger], "async": {"retries": 0, "on_success": "file:runs.jsonl"}})
}

fn trigger(daemon: &Daemon) -> Value {
    daemon.describe("lab")["triggers"][0].clone()
}

#[test]
fn a_schedule_invokes_its_function_with_the_event_of_eventbridge() {
    let daemon = daemon();
    let every_second = json!({"type": "schedule", "cron": "* * * * * *", "timezone": "Asia/Tokyo"});
    daemon.upload_code("lab", &with_trigger(&every_second), ECHO);
    let records = eventually_within(SOON, "two runs", || {
        let records = records(&daemon);
        (records.len() >= 2).then_some(records)
    });
    let event = &records[0]["requestPayload"];
    assert_eq!(event["detail-type"], "Scheduled Event");
    assert_eq!(event["source"], "aws.events");
    assert_eq!(event["id"], records[0]["requestContext"]["requestId"]);
    assert_eq!(event["time"].as_str().map(str::len), Some(20), "{event}");
    let shown = trigger(&daemon);
    assert_eq!(shown["state"], "active", "{shown}");
    assert_eq!(shown["source"], "* * * * * * Asia/Tokyo");
    assert!(shown["received"].as_u64() >= Some(2), "{shown}");
    assert!(shown["last_run_unix_ms"].is_u64(), "{shown}");
    let text = daemon.cli_ok(&["describe", "lab"]);
    assert!(text.contains("* * * * * * Asia/Tokyo"), "{text}");
    let metrics = daemon.get("/metrics").text();
    assert!(metrics.contains("pilot_trigger_received_total{function=\"lab\",type=\"schedule\""));

    // A version without it ends it.
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(trigger(&daemon), Value::Null);
    eventually("its series are gone", || {
        let metrics = daemon.get("/metrics").text();
        (!metrics.contains("pilot_trigger_received_total{function")).then_some(())
    });
}

#[test]
fn missed_runs_are_made_up_for_once_each_after_a_kill() {
    let mut daemon = daemon();
    let every_second = json!({"type": "schedule", "cron": "* * * * * *", "missed": "all"});
    daemon.upload_code("lab", &with_trigger(&every_second), ECHO);
    let times = |daemon: &Daemon| {
        let mut times: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in records(daemon) {
            let event = &record["requestPayload"];
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            let ids = times.entry(text("time")).or_default();
            if !ids.contains(&text("id")) {
                ids.push(text("id"));
            }
        }
        times
    };
    eventually_within(SOON, "the first runs", || {
        (times(&daemon).len() >= 2).then_some(())
    });
    daemon.kill();
    let before = times(&daemon).len();
    daemon.resume();
    let all = eventually_within(SOON, "runs after the kill", || {
        let times = times(&daemon);
        (times.len() >= before + 3).then_some(times)
    });
    // Attempts run beside each other: only the newest ones may still be missing between others.
    eventually_within(SOON, "every second up to here", || {
        let times = times(&daemon);
        let seconds = |times: &BTreeMap<String, _>| times.keys().map(|time| second(time)).collect();
        let (here, known): (Vec<u64>, Vec<u64>) = (seconds(&all), seconds(&times));
        let (first, last) = (here[0], here[here.len() - 1]);
        (first..=last).all(|one| known.contains(&one)).then_some(())
    });
    for (time, ids) in times(&daemon) {
        assert_eq!(ids.len(), 1, "{time} ran as {ids:?}");
    }
}

/// The second of the month, of `YYYY-MM-DDTHH:MM:SSZ`.
fn second(time: &str) -> u64 {
    let part = |at: usize| time[at..at + 2].parse::<u64>().unwrap();
    part(8) * 86_400 + part(11) * 3600 + part(14) * 60 + part(17)
}

/// A daemon that lets `lab` use this folder.
fn daemon_for(folder: &Path) -> Daemon {
    daemon_with(DaemonOptions {
        config: Some(format!(
            "[connections.inbox]\nkind = \"folder\"\npath = \"{}\"\nfunctions = [\"lab\"]\n",
            folder.display()
        )),
        ..DaemonOptions::default()
    })
}

fn keys_of(daemon: &Daemon) -> Vec<String> {
    // A record can be delivered twice around a kill. It has the same request id then.
    let records = records(daemon);
    let keys: BTreeSet<(String, String)> = records
        .iter()
        .map(|record| {
            let object = &record["requestPayload"]["Records"][0]["s3"]["object"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (
                text(&object["key"]),
                text(&record["requestContext"]["requestId"]),
            )
        })
        .collect();
    keys.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn a_folder_invokes_its_function_once_for_each_file() {
    let inbox = tempfile::tempdir().unwrap();
    let folder = inbox.path().join("in");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("before.csv"), "1").unwrap();
    let mut daemon = daemon_for(inbox.path());
    let watched = json!({"type": "folder", "path": folder, "suffix": ".csv"});
    daemon.upload_code("lab", &with_trigger(&watched), ECHO);
    let is = |daemon: &Daemon, keys: &[&str]| {
        eventually_within(SOON, &format!("{keys:?}"), || {
            (keys_of(daemon) == keys).then_some(())
        });
    };
    is(&daemon, &["in/before.csv"]);

    fs::write(folder.join("a b.csv"), "23").unwrap();
    fs::write(folder.join("other.txt"), "").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("link.csv")).unwrap();
    fs::write(inbox.path().join("moved"), "4").unwrap();
    fs::rename(inbox.path().join("moved"), folder.join("moved.csv")).unwrap();
    is(&daemon, &["in/a+b.csv", "in/before.csv", "in/moved.csv"]);
    let records = records(&daemon);
    let s3 = records
        .iter()
        .map(|record| &record["requestPayload"]["Records"][0])
        .find(|event| event["s3"]["object"]["key"] == "in/a+b.csv")
        .unwrap();
    assert_eq!(s3["eventName"], "ObjectCreated:Put");
    assert_eq!(s3["s3"]["bucket"]["name"], "inbox");
    assert_eq!(s3["s3"]["object"]["size"], 2);
    assert_eq!(s3["pilot"]["path"], json!(folder.join("a b.csv")));

    // While nobody listens, one file comes, one changes, and the others stay.
    daemon.kill();
    fs::write(folder.join("meanwhile.csv"), "5").unwrap();
    fs::write(folder.join("moved.csv"), "changed").unwrap();
    daemon.resume();
    let all = [
        "in/a+b.csv",
        "in/before.csv",
        "in/meanwhile.csv",
        "in/moved.csv",
        "in/moved.csv",
    ];
    is(&daemon, &all);

    // A folder that is gone is an error that is shown, and it is found again.
    let away = inbox.path().join("away");
    fs::rename(&folder, &away).unwrap();
    eventually("the folder is missed", || {
        (trigger(&daemon)["state"] == "failing").then_some(())
    });
    let shown = trigger(&daemon);
    assert!(shown["last_error"].is_string(), "{shown}");
    fs::rename(&away, &folder).unwrap();
    eventually_within(SOON, "it listens again", || {
        (trigger(&daemon)["state"] == "active").then_some(())
    });
    assert_eq!(keys_of(&daemon), all);
}

#[test]
fn a_folder_that_is_deleted_and_made_again_is_watched_again() {
    let inbox = tempfile::tempdir().unwrap();
    let folder = inbox.path().join("in");
    fs::create_dir(&folder).unwrap();
    let daemon = daemon_for(inbox.path());
    let watched = json!({"type": "folder", "path": folder});
    daemon.upload_code("lab", &with_trigger(&watched), ECHO);
    eventually("it is watched", || {
        (trigger(&daemon)["state"] == "active").then_some(())
    });
    fs::remove_dir(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("again.csv"), "1").unwrap();
    eventually_within(SOON, "the file of the new folder", || {
        (keys_of(&daemon) == ["in/again.csv"]).then_some(())
    });
}

#[test]
fn files_of_a_folder_that_was_away_do_not_run_again() {
    let inbox = tempfile::tempdir().unwrap();
    let (parent, folder) = (inbox.path().join("srv"), inbox.path().join("srv/in"));
    fs::create_dir_all(&folder).unwrap();
    let mut daemon = daemon_for(inbox.path());
    let watched = json!({"type": "folder", "path": folder});
    daemon.upload_code("lab", &with_trigger(&watched), ECHO);
    let is = |daemon: &Daemon, keys: &[&str]| {
        eventually_within(SOON, &format!("{keys:?}"), || {
            (keys_of(daemon) == keys).then_some(())
        });
    };
    fs::write(folder.join("a"), "1").unwrap();
    is(&daemon, &["srv/in/a"]);

    // Another folder is there when the daemon starts, as below a disk that is not mounted yet.
    daemon.kill();
    let away = inbox.path().join("away");
    fs::rename(&parent, &away).unwrap();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("b"), "1").unwrap();
    daemon.resume();
    is(&daemon, &["srv/in/a", "srv/in/b"]);
    fs::rename(&parent, inbox.path().join("below")).unwrap();
    fs::rename(&away, &parent).unwrap();
    fs::write(folder.join("c"), "1").unwrap();
    let all = ["srv/in/a", "srv/in/b", "srv/in/c"];
    is(&daemon, &all);
    daemon.kill();
    daemon.resume();
    eventually_within(SOON, "it listens again", || {
        (trigger(&daemon)["state"] == "active").then_some(())
    });
    assert_eq!(keys_of(&daemon), all);
}

#[test]
fn a_folder_that_the_operator_did_not_name_is_refused_at_the_deployment() {
    let (allowed, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = daemon_for(allowed.path());
    let code = archive(&[ArchiveEntry::text("app.py", ECHO)]);
    for (function, folder) in [("lab", other.path()), ("foreign", allowed.path())] {
        let keys = with_trigger(&json!({"type": "folder", "path": folder}));
        let (status, answer) = daemon.upload(function, &keys, &code);
        let answer = format!("{status} {answer}");
        assert!(!answer.contains("\"done\""), "{answer}");
        assert!(answer.contains("[connections.NAME]"), "{answer}");
    }
    std::os::unix::fs::symlink(other.path(), allowed.path().join("out")).unwrap();
    fs::write(other.path().join("secret"), "").unwrap();
    let keys = with_trigger(&json!({"type": "folder", "path": allowed.path().join("out")}));
    daemon.upload_code("lab", &keys, ECHO);
    let shown = eventually("the link is refused", || {
        let shown = trigger(&daemon);
        (shown["state"] == "failing").then_some(shown)
    });
    let error = shown["last_error"].to_string();
    assert!(error.contains("leads out of the connection"), "{error}");
}

#[test]
fn metrics_say_what_invocations_came_from() {
    let inbox = tempfile::tempdir().unwrap();
    let daemon = daemon_for(inbox.path());
    let count = |function: &str, trigger: &str| {
        let name = format!(
            "faas_invocations_total{{faas_name=\"{function}\",faas_trigger=\"{trigger}\"}} "
        );
        let metrics = daemon.get("/metrics").text();
        let mut lines = metrics.lines();
        let found = lines.find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        found.unwrap_or(0)
    };
    let reaches = |function: &str, trigger: &str| {
        eventually_within(SOON, &format!("{function} from {trigger}"), || {
            (count(function, trigger) > 0).then_some(())
        });
    };
    // What a schedule begins, and the function that gets the record of its end.
    daemon.upload_code("after", &plain(), ECHO);
    let every_second = json!({"type": "schedule", "cron": "* * * * * *"});
    let timed = json!({"triggers": [every_second], "async": {"on_success": "after"}});
    daemon.upload_code("timed", &timed, ECHO);
    reaches("timed", "timer");
    reaches("after", "other");
    assert_eq!((count("timed", "http"), count("after", "timer")), (0, 0));
    daemon.invoke("timed", &json!({}));
    reaches("timed", "http");

    let watched = json!({"type": "folder", "path": inbox.path()});
    daemon.upload_code("lab", &with_trigger(&watched), ECHO);
    fs::write(inbox.path().join("file"), "1").unwrap();
    reaches("lab", "datasource");
    assert_eq!((count("lab", "datasource"), count("lab", "http")), (1, 0));

    daemon.cli_ok(&["remove", "timed"]);
    eventually("its series are gone", || {
        let metrics = daemon.get("/metrics").text();
        (!metrics.contains("faas_name=\"timed\"")).then_some(())
    });
}
