"""A daemon that is started from a shell on a machine with cgroup v2: in a control group that has other processes, and that nobody has
delegated to it. The process of these tests is such a neighbour."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from functions import project
from groups import IS_UML, MOUNT, daemons_groups, eventually, folder_of, group_of, lacking, with_limit
from pilot_daemon import PATIENCE, Daemon, binary

CONTAINER = """
# The kernel mounts no file system twice on one folder.
umount --lazy /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit
# As in a container, other processes are in the group that the daemon finds itself in.
sleep 1000 &
"$@" &
daemon=$!
echo started $daemon
wait $daemon
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(tmp_path)
    yield running
    running.stop()


def answer(daemon: Daemon, function: str, event: object) -> object:
    response = daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event, 60 * PATIENCE)
    return json.loads(response.read())


def check_limits(daemon: Daemon, folder: Path) -> None:
    """The workers of functions are in groups of their own below `folder`, and the kernel holds them to their limits."""
    assert answer(daemon, "echo", {"n": 1}) == {"n": 1}
    groups = with_limit(folder, 161)
    assert groups, "no group has the limit of the function"
    quotas = {(group / "cpu.max").read_text().strip() for group in groups}
    assert "50000 100000" in quotas, quotas
    assert all((group / "pids.max").read_text().strip() != "max" for group in groups)
    error = answer(daemon, "eat", None)
    assert isinstance(error, dict) and error["errorType"] == "Runtime.OutOfMemory", error
    assert "raise memory_mb" in error["errorMessage"], error
    count = answer(daemon, "count", None)
    assert isinstance(count, int) and count < 5000, "no limit of threads"
    assert answer(daemon, "echo", 2) == 2


def reasons(daemon: Daemon) -> list[str]:
    said: list[str] = json.loads(daemon.request("GET", "/readyz").read())["reasons"]
    return said


def test_the_machine_is_what_these_tests_are_for() -> None:
    mounted = [line for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2].startswith("cgroup")]
    assert [line.split()[1:3] for line in mounted] == [[str(MOUNT), "cgroup2"]]
    controllers = (MOUNT / "cgroup.controllers").read_text().split()
    assert {"cpu", "memory", "pids"} <= set(controllers)
    assert (Path("/proc/1/comm").read_text().strip(), os.getuid()) == ("systemd", 0)
    own = group_of(os.getpid())
    assert len((own / "cgroup.procs").read_text().split()) > 1, "nobody else is in this group"


def test_functions_are_limited_although_others_are_in_the_daemons_group(daemon: Daemon, tmp_path: Path) -> None:
    done = daemon.up(project(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [reason for reason in reasons(daemon) if "limits" in reason], reasons(daemon)
    # The daemon stays where its parent is.
    assert group_of(daemon.process.pid) == group_of(os.getpid())
    check_limits(daemon, folder_of(daemon.process.pid))
    daemon.stop()
    assert daemons_groups() == []


def test_a_daemon_removes_the_groups_of_one_that_was_killed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    killed, beside = Daemon(first), Daemon(second)
    try:
        assert killed.up(project(first)).returncode == 0
        assert answer(killed, "echo", 1) == 1
        left = folder_of(killed.process.pid)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        assert left.is_dir()
        resumed = Daemon(first)
        eventually("the groups of the killed daemon are gone", lambda: not left.exists() or resumed.retire("echo"))
        assert folder_of(beside.process.pid).is_dir(), "that of a daemon that runs"
        assert answer(resumed, "echo", 3) == 3
        resumed.stop()
    finally:
        beside.stop()
    assert daemons_groups() == []


def test_the_doctor_finds_version_2_and_leaves_the_group_as_it_is() -> None:
    own = group_of(os.getpid())
    before = sorted(path.name for path in own.iterdir() if path.is_dir())
    done = subprocess.run([binary(), "doctor", "--json"], capture_output=True, text=True, timeout=60 * PATIENCE)
    found = {check["what"]: check for check in json.loads(done.stdout)}
    limits = found["memory, CPU and pids limits"]
    assert limits["state"] == "ok" and "v2" in limits["found"], limits
    missing = {what for what, check in found.items() if check["state"] == "missing"}
    assert missing <= lacking(), done.stdout
    # Debian builds User Mode Linux without CONFIG_NF_TABLES_INET.
    assert found["outbound network"]["state"] == ("absent" if IS_UML else "ok"), found["outbound network"]
    assert sorted(path.name for path in own.iterdir() if path.is_dir()) == before
    assert daemons_groups() == []


def test_in_a_container_everything_moves_out_of_the_daemons_way(tmp_path: Path) -> None:
    """With a cgroup namespace whose root the daemon and others are in, and which they cannot leave."""
    data = tmp_path / "data"
    serve = [binary(), "serve", "--listen", "127.0.0.1:0", "--data-dir", data]
    inside = ["unshare", "--cgroup", "--mount", "sh", "-c", CONTAINER, "sh", *map(str, serve)]
    # systemd makes the group and leaves it alone, as a container engine does.
    scope = ["systemd-run", "--scope", "--quiet", "--collect", "--property=Delegate=yes", *inside]
    with (tmp_path / "log").open("wb") as log:
        container = subprocess.Popen(scope, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def serves() -> bool:
        assert container.poll() is None, (tmp_path / "log").read_text()
        return (data / "control.sock").exists()

    try:
        control = f"unix:{data / 'control.sock'}"
        eventually("the daemon serves", serves)
        done = subprocess.run(
            [binary(), "up", project(tmp_path), "--endpoint", control], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
        invoke = [binary(), "invoke", "eat", "--data", "1", "--endpoint", control]
        said = subprocess.run(invoke, capture_output=True, text=True, timeout=120 * PATIENCE)
        assert "raise memory_mb" in said.stdout + said.stderr, said
        (folder,) = daemons_groups()
        scope_group = group_of(container.pid).parent
        assert folder.parent == scope_group and scope_group.name.endswith(".scope"), folder
    finally:
        subprocess.run(["pkill", "--signal", "TERM", "--full", f"^{binary()} serve .*{data}$"])
        # Its shell ends with it, and with the shell what waits beside it.
        try:
            container.wait(60 * PATIENCE)
        finally:
            subprocess.run(["pkill", "--full", "^sleep 1000$"])
