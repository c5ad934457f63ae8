"""The power fails: what the daemon acknowledged is there after the next start.

The data directory is on a file system whose disk is a file. A copy of that file, made while the daemon is stopped, is the disk as a power
failure at that moment leaves it: what was written and not flushed is still in the kernel's memory, and not in the copy. (That the disk
keeps what was flushed is its own promise.)
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pilot_daemon import Daemon, binary

pytestmark = pytest.mark.timeout(300)

# It does not end before the power fails, so every accepted event is still in the queue.
WAITS = "import time\n\ndef handler(event, context):\n    time.sleep(event)\n"
ANSWERS = "def handler(event, context):\n    return {}\n"
DISK_BYTES = 512 << 20
CUTS = 4


class Machine:
    """A disk, and the daemon on it."""

    def __init__(self, home: Path) -> None:
        self.home, self.disk = home, home / "disk"
        with self.disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.disk], check=True)
        self.starts = itertools.count()
        self.start()

    def start(self) -> None:
        self.place = self.home / str(next(self.starts))
        data = self.place / "data"
        data.mkdir(parents=True)
        # The file system itself flushes nothing for five minutes, so only what the daemon flushes is on the disk.
        subprocess.run(["mount", "-o", "loop,commit=300", self.disk, data], check=True)
        data.chmod(0o700)
        self.daemon = Daemon(self.place)

    def cut(self) -> None:
        """The power fails."""
        self.daemon.process.send_signal(signal.SIGSTOP)
        left = self.home / "left"
        subprocess.run(["cp", "--sparse=always", self.disk, left], check=True)
        self.end()
        left.rename(self.disk)

    def end(self) -> None:
        self.daemon.process.kill()
        self.daemon.process.wait()
        deadline = time.monotonic() + 30
        # Sandboxes of the daemon end a moment after it.
        while subprocess.run(["umount", self.daemon.data], capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, "the disk is in use"
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        response = self.daemon.request(method, path, body)
        said = response.read()
        assert response.status < 300, said
        return json.loads(said) if said else None

    def has(self, event: str) -> bool:
        response = self.daemon.request("GET", f"/_pilot/v1/async/{event}")
        response.read()
        return response.status == 200

    def deploy(self, name: str, code: str, keys: str = "") -> None:
        project = self.place / name
        project.mkdir()
        (project / "app.py").write_text(code)
        (project / "pilot.toml").write_text(f'[functions.{name}]\nhandler = "app.handler"\n{keys}')
        done = self.daemon.up(project)
        assert done.returncode == 0, done.stdout + done.stderr + self.daemon.log.read_text()

    def pilot(self, *words: str, told: str = "") -> str:
        command = [binary(), *words, "--endpoint", f"unix:{self.daemon.data / 'control.sock'}"]
        done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Senders:
    """Events, one after the other from each of several threads, until the daemon answers no more."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.accepted, self.others = daemon, list[str](), list[int]()
        self.threads = [threading.Thread(target=self.send) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def send(self) -> None:
        path, kind = "/2015-03-31/functions/waits/invocations", {"X-Amz-Invocation-Type": "Event"}
        while True:
            try:
                response = self.daemon.request("POST", path, 600, timeout_s=2, **kind)
            except OSError:
                return
            if response.status == 202:
                self.accepted.append(response.headers["x-amzn-requestid"])
            else:
                self.others.append(response.status)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("only root mounts a disk that is a file")
    machine = Machine(tmp_path)
    yield machine
    machine.end()


def test_a_power_failure_loses_nothing_that_was_acknowledged(machine: Machine) -> None:
    machine.deploy("waits", WAITS, "timeout_s = 900\n")
    accepted, functions, secrets = set[str](), {"waits"}, set[str]()
    for turn in range(CUTS):
        senders = Senders(machine.daemon)
        machine.deploy(f"new{turn}", ANSWERS)
        machine.deploy("same", ANSWERS.replace("{}", str(turn)))
        machine.pilot("secret", "set", f"secret{turn}", told="hidden")
        functions |= {f"new{turn}", "same"}
        secrets.add(f"secret{turn}")
        if turn:
            machine.pilot("remove", f"new{turn - 1}")
            functions.remove(f"new{turn - 1}")
        machine.cut()
        senders.join()
        assert senders.accepted and not senders.others, senders.others
        accepted.update(senders.accepted)
        machine.start()
        assert {one["name"] for one in machine.ask("GET", "/_pilot/v1/functions")} == functions
        assert secrets <= {one["name"] for one in machine.ask("GET", "/_pilot/v1/secrets")}
        lost = [event for event in accepted if not machine.has(event)]
        assert not lost, f"{len(lost)} of {len(accepted)} events are lost"
        assert machine.ask("POST", "/2015-03-31/functions/same/invocations", {}) == turn
        assert machine.ask("POST", f"/2015-03-31/functions/new{turn}/invocations", {}) == {}


def test_a_token_that_was_revoked_stays_so_after_a_power_failure(machine: Machine) -> None:
    machine.pilot("token", "create", "left", "--role", "invoke")
    machine.cut()
    machine.start()
    assert [token["grant"]["name"] for token in machine.ask("GET", "/_pilot/v1/tokens")] == ["left"]
    machine.pilot("token", "create", "new", "--role", "invoke")
    machine.pilot("token", "revoke", "left")
    machine.cut()
    machine.start()
    assert [token["grant"]["name"] for token in machine.ask("GET", "/_pilot/v1/tokens")] == ["new"]
