"""The Debian package with real systemd: the unit's limits, its watchdog, the socket unit, and upgrades under load."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from functions import project
from groups import MOUNT, daemons_groups, eventually, folder_of, group_of, lacking, processes_below, with_limit
from pilot_daemon import PATIENCE
from test_upgrade import CONFIG, HANDLER, Load

UNIT = "pilotlight.service"
ADDRESS = "127.0.0.1:8080"
DROP_IN = Path("/etc/systemd/system/pilotlight.service.d/test.conf")
OWN_GROUP = MOUNT / "system.slice" / UNIT


def systemctl(*arguments: str, may_fail: bool = False) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=120 * PATIENCE)
    if done.returncode != 0 and not may_fail:
        journal = subprocess.run(["journalctl", "--no-pager", "-n", "60", "-u", UNIT], capture_output=True, text=True)
        pytest.fail(f"systemctl {arguments}: {done.stderr}\n{journal.stdout}")
    return done.stdout.strip()


def shown(name: str) -> str:
    return systemctl("show", UNIT, f"--property={name}", "--value")


def main_pid() -> int:
    return int(shown("MainPID"))


def log_since_start() -> str:
    identity = shown("InvocationID")
    command = ["journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={identity}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def invoke(function: str, event: object) -> object:
    connection = http.client.HTTPConnection(ADDRESS, timeout=60 * PATIENCE)
    connection.request("POST", f"/2015-03-31/functions/{function}/invocations", json.dumps(event))
    return json.loads(connection.getresponse().read())


def up(folder: Path) -> None:
    # The command line finds the socket of the service by itself.
    done = subprocess.run(["pilot", "up", folder], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def package() -> Iterator[Path]:
    (file,) = Path(os.environ["PILOT_VM_PACKAGE"]).glob("*.deb")
    done = subprocess.run(["dpkg", "--install", file], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown("ActiveState") == "inactive", "an installation starts nothing"
    yield file
    done = subprocess.run(["dpkg", "--purge", "pilotlight"], capture_output=True, text=True, timeout=120 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    # A purge leaves nothing, and nothing that runs.
    assert systemctl("is-active", UNIT, "pilotlight.socket", may_fail=True) != "active"
    assert not Path("/var/lib/pilotlight").exists() and daemons_groups() == []


@pytest.fixture
def service(package: Path, tmp_path: Path) -> Iterator[None]:
    systemctl("start", UNIT)
    up(project(tmp_path))
    yield
    DROP_IN.unlink(missing_ok=True)
    systemctl("daemon-reload")
    systemctl("disable", "--now", "pilotlight.socket")
    systemctl("stop", UNIT)
    systemctl("reset-failed", UNIT, may_fail=True)
    # What the daemon leaves, systemd would have removed; so nothing is left in any case.
    assert not OWN_GROUP.exists() and daemons_groups() == []


def with_setting(setting: str) -> None:
    DROP_IN.parent.mkdir(exist_ok=True)
    DROP_IN.write_text(f"[Service]\n{setting}\n")
    systemctl("daemon-reload")
    systemctl("restart", UNIT)


def test_the_service_limits_functions_below_its_own_group(service: None) -> None:
    # `systemctl start` has waited for READY=1.
    assert (shown("ActiveState"), shown("SubState"), shown("Type")) == ("active", "running", "notify")
    pid = main_pid()
    folder = folder_of(pid)
    assert folder.parent == OWN_GROUP
    assert group_of(pid).is_relative_to(OWN_GROUP)
    assert invoke("echo", {"n": 1}) == {"n": 1}
    groups = with_limit(folder, 161)
    assert groups and all((group / "pids.max").read_text().strip() != "max" for group in groups)
    assert "50000 100000" in {(group / "cpu.max").read_text().strip() for group in groups}
    error = invoke("eat", None)
    assert isinstance(error, dict) and "raise memory_mb" in error["errorMessage"], error
    count = invoke("count", None)
    assert isinstance(count, int) and count < 5000
    # The kernel has killed a process below the service, and the service goes on (OOMPolicy=continue).
    assert main_pid() == pid and invoke("echo", 2) == 2
    missing = [line for line in log_since_start().splitlines() if "not enforced" in line]
    assert [line for line in missing if not any(f": {name}:" in line for name in lacking())] == []


def test_precise_limits_have_their_thread_with_priority(service: None) -> None:
    if (
        subprocess.run(["systemd-run", "--quiet", "--scope", "chrt", "--fifo", "1", "true"], capture_output=True).returncode
        != 0
    ):
        pytest.skip("the kernel gives no real-time priority to control groups (CONFIG_RT_GROUP_SCHED)")
    assert invoke("paced", 1) == 1
    tasks = Path(f"/proc/{main_pid()}/task").iterdir()
    (pacer,) = [task for task in tasks if (task / "comm").read_text().strip() == "pacer"]
    assert os.sched_getscheduler(int(pacer.name)) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO


def test_functions_are_killed_before_the_service_if_memory_is_short(service: None) -> None:
    assert invoke("echo", 1) == 1
    daemon = int(Path(f"/proc/{main_pid()}/oom_score_adj").read_text())
    workers = [pid for group in with_limit(folder_of(main_pid()), 161) for pid in (group / "cgroup.procs").read_text().split()]
    assert daemon < 0 and all(int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > 0 for pid in workers)


def test_a_daemon_that_hangs_is_started_anew_by_the_watchdog(service: None) -> None:
    with_setting("WatchdogSec=3")
    pid = main_pid()
    # It says that it lives: it outlives the time.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        assert main_pid() == pid
        time.sleep(0.2)
    assert invoke("echo", 1) == 1
    old = folder_of(pid)
    os.kill(pid, signal.SIGSTOP)
    eventually("another daemon runs", lambda: shown("ActiveState") == "active" and main_pid() not in (0, pid))
    assert shown("NRestarts") == "1"
    assert invoke("echo", 2) == 2
    assert not old.exists()


def test_a_daemon_that_is_killed_is_started_anew_and_leaves_nothing(service: None) -> None:
    assert invoke("echo", 1) == 1
    pid = main_pid()
    old = folder_of(pid)
    processes = processes_below(OWN_GROUP)
    assert pid in processes and len(processes) > 3
    os.kill(pid, signal.SIGKILL)
    eventually("another daemon runs", lambda: shown("ActiveState") == "active" and main_pid() not in (0, pid))
    assert invoke("echo", 2) == 2
    assert not old.exists()
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists()] == []


def test_a_connection_to_the_socket_unit_starts_the_daemon(service: None) -> None:
    systemctl("stop", UNIT)
    systemctl("start", "pilotlight.socket")
    assert shown("ActiveState") == "inactive"
    assert invoke("echo", 5) == 5
    assert shown("ActiveState") == "active"


def test_an_upgrade_of_the_package_under_load_fails_no_request(service: None, package: Path, tmp_path: Path) -> None:
    systemctl("stop", UNIT)
    systemctl("enable", "--now", "pilotlight.socket")
    systemctl("start", UNIT)
    folder = tmp_path / "load"
    folder.mkdir()
    (folder / "app.py").write_text(HANDLER)
    (folder / "pilot.toml").write_text(CONFIG)
    up(folder)
    upgrades = [["dpkg", "--install", str(package)], ["systemctl", "restart", UNIT], ["dpkg", "--install", str(package)]]
    load = Load(ADDRESS)
    more = 10 if PATIENCE == 1 else 2
    try:
        for command in upgrades:
            load.more(more)
            before = main_pid()
            done = subprocess.run(command, capture_output=True, text=True, timeout=120 * PATIENCE)
            assert done.returncode == 0, done.stdout + done.stderr
            assert main_pid() != before
        load.more(more)
    finally:
        load.end()
    assert load.failures == [], load.failures
    print(f"answered: {load.done}")
