//! A daemon that is killed while it starts, cleans and evicts runtimes leaves nothing of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use pilot_harness::{
    Daemon, DaemonOptions, descendants, eventually, groups_of, is_gone, needs_root,
};
use pilot_testkit::namespaces;
use serde_json::json;

use super::provided;
use crate::{answer, daemon_with};

const CODE: &str = "import os\ndef handler(event, headers):\n    open('/tmp/x', 'w').write('x' * 100000)\n    if os.fork() == 0:\n        import time; time.sleep(100)\n    return 1\n";

/// The machine's mounts and network devices that may be ours. Network namespaces have no names and are counted separately.
fn remains() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
        let place = line.split(' ').nth(4).unwrap();
        if place.contains("pilot") {
            found.insert(format!("mount {place}"));
        }
    }
    for device in fs::read_dir("/sys/class/net").unwrap().flatten() {
        found.insert(format!("device {}", device.file_name().display()));
    }
    found
}

/// Invokes the function repeatedly until the daemon has ended.
fn invoke_until_it_ends(address: SocketAddr, name: &str) {
    let request = format!(
        "POST /2015-03-31/functions/{name}/invocations HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    let mut answer = [0; 4096];
    while stream.write_all(request.as_bytes()).is_ok() {
        if !matches!(stream.read(&mut answer), Ok(1..)) {
            return;
        }
    }
}

/// `namespaces_before`: the number of network namespaces without the daemon.
fn kill_after(daemon: &mut Daemon, busy_for: Duration, namespaces_before: usize) {
    let pid = daemon.pid();
    let groups = groups_of(pid);
    thread::scope(|scope| {
        for name in ["lab", "other"] {
            let address = daemon.address();
            scope.spawn(move || invoke_until_it_ends(address, name));
        }
        thread::sleep(busy_for);
        let children = descendants(pid);
        daemon.kill();
        for child in children {
            eventually("every process of the killed daemon is gone", || {
                is_gone(child).then_some(())
            });
        }
    });
    no_more_namespaces_than(namespaces_before);
    daemon.resume();
    let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
    assert!(!groups.is_empty() && left.is_empty(), "{left:?}");
}

#[track_caller]
fn no_more_namespaces_than(before: usize) {
    eventually("no network namespace is left", || {
        (namespaces::network().len() <= before).then_some(())
    });
}

#[test]
fn a_daemon_killed_at_any_step_leaves_nothing() {
    needs_root!();
    let before = remains();
    let namespaces_before = namespaces::network().len();
    // The limit is so low that most runtimes are evicted.
    let mut daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\nruntimes = 3\n".to_owned()),
        ..DaemonOptions::default()
    });
    for name in ["lab", "other"] {
        let keys = "runtime = \"provided\"\ncommand = [\"python3\", \"bootstrap.py\"]\nreuse = \"once\"\nscale.max = 3";
        daemon.deploy(&provided(CODE, "").manifest(name, keys));
    }
    for round in 0..8_u64 {
        // The kill hits different steps in each round: a start takes some 50 ms, cleaning a few.
        let busy_for = Duration::from_millis(3 + 17 * round);
        kill_after(&mut daemon, busy_for, namespaces_before);
        assert_eq!(answer(&daemon, "lab", json!({})), 1);
        // The remains of a running daemon are visible.
        assert!(namespaces::network().len() > namespaces_before);
    }
    daemon.stop();
    let after = eventually("no mount and no device is left", || {
        let after = remains();
        after.is_subset(&before).then_some(after)
    });
    assert!(after.is_subset(&before));
    no_more_namespaces_than(namespaces_before);
}
