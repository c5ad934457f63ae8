//! Tests the real shim without an engine, as process 1 of namespaces made with unshare(1). Skipped without root.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command};

use tokio::net::UnixListener;

use super::*;

/// A shim and the process that contains it.
struct Started {
    shim: Shim,
    unshare: Child,
}

/// `None` if no namespaces can be made; reports that the test is skipped.
async fn started(dir: &Path, test: &str) -> Option<Started> {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root || pilot_sys::shim::BINARY.is_empty() {
        eprintln!("SKIPPED {test}: it needs root, unshare(1) and a static C library");
        return None;
    }
    let program = dir.join("shim");
    std::fs::write(&program, pilot_sys::shim::BINARY).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir_all(dir.join("place")).unwrap();
    let door = pilot_sys::shim::door(dir, "socket").unwrap();
    let door = UnixListener::from_std(door.into()).unwrap();
    let unshare = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--mount",
            "--mount-proc",
            "--ipc",
            "--net",
        ])
        .args(["--kill-child", "--"])
        .arg(&program)
        .arg(dir.join("socket"))
        .spawn()
        .unwrap();
    let (caller, _) = tokio::time::timeout(Duration::from_secs(10), door.accept())
        .await
        .unwrap()
        .unwrap();
    Some(Started {
        shim: Shim::greet(caller).await.unwrap(),
        unshare,
    })
}

/// Runs a shell script as this user and returns a pipe with its output.
async fn run(shim: &Shim, uid: u32, script: &str) -> Result<(Process, io::PipeReader), ShimError> {
    let user = User {
        uid,
        gid: uid,
        groups: Vec::new(),
        home: "/".to_owned(),
    };
    let argv = ["sh", "-c", script].map(str::to_owned);
    let program = Program {
        user: &user,
        dir: "/",
        argv: &argv,
        environment: &[("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
    };
    let (reader, writer) = io::pipe().unwrap();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    let fds = [nothing.as_fd(), writer.as_fd(), writer.as_fd()];
    Ok((shim.exec(&program, fds).await?, reader))
}

fn printed(mut pipe: io::PipeReader) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_are_run_as_asked_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let Some(started) = started(dir.path(), "programs_are_run_as_asked_and_reported").await else {
        return;
    };
    let shim = &started.shim;
    let (process, output) = run(shim, 12345, "id -u; id -g; exit 5").await.unwrap();
    assert_eq!(process.ended().await, Ended::Exited(5));
    assert_eq!(printed(output), "12345\n12345\n");
    let (process, output) = run(shim, 0, "grep CapEff: /proc/self/status; kill -9 $$")
        .await
        .unwrap();
    assert_eq!(process.ended().await, Ended::Signalled(9));
    assert_eq!(printed(output), "CapEff:\t0000000000000000\n");
    let (process, _output) = run(shim, 0, "exec sleep 1000").await.unwrap();
    shim.signal(&process, 15, Whom::Process);
    assert_eq!(process.ended().await, Ended::Signalled(15));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_looked_up_in_the_files_that_it_sees() {
    let dir = tempfile::tempdir().unwrap();
    let test = "a_user_is_looked_up_in_the_files_that_it_sees";
    let Some(started) = started(dir.path(), test).await else {
        return;
    };
    let root = started.shim.user("").await.unwrap();
    assert_eq!((root.uid, root.gid, root.home.as_str()), (0, 0, "/root"));
    let number = started.shim.user("4711:42").await.unwrap();
    assert_eq!(
        (number.uid, number.gid, number.home.as_str()),
        (4711, 42, "/")
    );
    let error = started.shim.user("nobody-has-this-name").await.unwrap_err();
    assert!(error.to_string().contains("/etc/passwd"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cleaning_ends_everything_and_empties_the_places() {
    let dir = tempfile::tempdir().unwrap();
    let test = "a_cleaning_ends_everything_and_empties_the_places";
    let Some(started) = started(dir.path(), test).await else {
        return;
    };
    let (shim, place) = (&started.shim, dir.path().join("place"));
    shim.seal(&[place.display().to_string()]).await.unwrap();
    let script = format!(
        "cd {}; for i in $(seq 300); do mkdir d && cd d && : >f; done; chmod 700 {0}; setsid sleep 1000 & ipcmk -Q >/dev/null; echo done; wait",
        place.display()
    );
    let (process, output) = run(shim, 0, &script).await.unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(output));
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    shim.clean(Duration::from_secs(5)).await.unwrap();
    assert_eq!(process.end(), Some(Ended::Signalled(9)));
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    assert_eq!(std::fs::metadata(&place).unwrap().mode() & 0o777, 0o755);
    let (_, output) = run(
        shim,
        0,
        "tail -qn +2 /proc/sysvipc/*; ls -d /proc/[0-9]* | wc -l",
    )
    .await
    .unwrap();
    // At most process 1, the shell, ls and wc.
    let left: u32 = printed(output).trim().parse().unwrap();
    assert!(left <= 4, "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_is_when_the_last_that_a_program_left_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let test = "rest_is_when_the_last_that_a_program_left_has_ended";
    let Some(started) = started(dir.path(), test).await else {
        return;
    };
    let (shim, within) = (&started.shim, Duration::from_secs(20));
    shim.at_rest(within).await.unwrap();
    let leave = "setsid sleep 1000 >/dev/null 2>&1 & echo $!";
    let (process, output) = run(shim, 0, leave).await.unwrap();
    assert_eq!(process.ended().await, Ended::Exited(0));
    let mut rest = std::pin::pin!(shim.at_rest(within));
    // The request has been sent by now, and is not answered.
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut rest)
            .await
            .is_err()
    );
    let kill = format!("kill {}", printed(output));
    let (killer, _output) = run(shim, 0, &kill).await.unwrap();
    rest.await.unwrap();
    assert_eq!(killer.end(), Some(Ended::Exited(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_with_the_connection_and_takes_everything_along() {
    let dir = tempfile::tempdir().unwrap();
    let test = "it_ends_with_the_connection_and_takes_everything_along";
    let Some(mut started) = started(dir.path(), test).await else {
        return;
    };
    let (_, output) = run(&started.shim, 0, "exec sleep 1000").await.unwrap();
    drop(started.shim);
    // The pipe is at its end: all writers have ended.
    assert_eq!(printed(output), "");
    let status = tokio::task::spawn_blocking(move || started.unshare.wait().unwrap());
    assert!(status.await.unwrap().success());
}

#[test]
fn it_refuses_to_be_anything_but_process_1() {
    if pilot_sys::shim::BINARY.is_empty() {
        eprintln!("SKIPPED it_refuses_to_be_anything_but_process_1: there is no static C library");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("shim");
    std::fs::write(&program, pilot_sys::shim::BINARY).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(program).arg("/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(111));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not process 1"));
}
