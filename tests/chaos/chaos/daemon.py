"""`pilot serve` under a supervisor: whenever it ends, it is started again on the same address and the same data."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .ledger import Ledger, Span
from .machine import Children

READY_S = 30


def free_address() -> tuple[str, int]:
    """One that is free at the moment, below the ports that the kernel gives to clients (`ip_local_port_range`, ip(7)): a client that
    tries again and again while the daemon is down cannot take it, or connect to itself."""
    while True:
        address = "127.0.0.1", random.randrange(30_000, 32_700)
        with suppress(OSError), socket.socket() as free:
            free.bind(address)
            return address


class Daemon:
    """The daemon and its supervisor, which is a thread."""

    def __init__(
        self, binary: Path, home: Path, config: str, environment: dict[str, str], ledger: Ledger, children: Children
    ) -> None:
        self.binary, self.home, self.data, self.ledger = binary, home, home / "data", ledger
        self.address = free_address()
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        (home / "pilotd.toml").write_text(config)
        self.environment = {**os.environ, **environment, "TMPDIR": str(self.temporary)}
        self.children = children
        self.pids: set[int] = set()  # of all its lives
        self.log = home / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._expected: Span | None = None
        self._lock = threading.Lock()
        self._is_wanted = False
        self._was_ready = False
        self._spawned = 0.0
        self._supervisor: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Of the life that runs, or of the last one."""
        assert self._process is not None, "the daemon was never started"
        return self._process.pid

    def start(self) -> None:
        """Starts it and its supervisor. Returns when it is ready."""
        self._is_wanted = True
        down = Span("start", time.monotonic())
        self._spawn()
        self._wait_until_ready(down)
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def stop(self) -> int:
        """Ends it in order. Returns its exit status."""
        self._is_wanted = False
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            self.ledger.breaks("it stops", "the daemon has not ended 60 s after SIGTERM")
            process.kill()
            process.wait()
        if self._supervisor is not None:
            self._supervisor.join(30)
        return process.returncode

    def abandon(self) -> None:
        """Ends it at once, for the end of a run that has failed."""
        self._is_wanted = False
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """kill -9."""
        self.expect_an_end("the daemon is killed")
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def expect_an_end(self, why: str) -> None:
        """The daemon will end because of a fault. From now on it counts as down."""
        with self._lock:
            if self._expected is None:
                self._expected = self.ledger.goes_down(why)

    def _spawn(self) -> None:
        command: list[str | Path] = [self.binary, "serve", "--listen", f"{self.address[0]}:{self.address[1]}"]
        command += ["--data-dir", self.data, "--config", self.home / "pilotd.toml"]
        with self.log.open("ab") as log:
            log.write(f"--- {self.ledger.now():.2f} s: started\n".encode())
            log.flush()
            self._process = self.children.start(command, stdout=log, stderr=log, env=self.environment)
        self.pids.add(self._process.pid)
        self._was_ready, self._spawned = False, time.monotonic()

    def _wait_until_ready(self, down: Span) -> None:
        deadline = time.monotonic() + READY_S
        while not self.is_ready():
            if time.monotonic() > deadline:
                self.ledger.breaks("it starts again", f"the daemon is not ready {READY_S} s after its start")
                self.kill()
                return
            if self.pid_has_ended():
                return
            time.sleep(0.02)
        self._was_ready = True
        down.until = time.monotonic()

    def pid_has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def is_ready(self) -> bool:
        try:
            status, _ = self.api("GET", "/readyz", timeout_s=5)
            socket.create_connection(self.address, 5).close()
        except OSError:
            return False
        return status == 200

    def _supervise(self) -> None:
        while True:
            assert self._process is not None
            self._process.wait()
            self.children.forget(self._process)
            with self._lock:
                down, self._expected = self._expected, None
            if not self._is_wanted:
                return
            if down is None:
                down = self.ledger.goes_down("an end of its own")
                self._judge_end(self._process.returncode)
            self._spawn()
            self._wait_until_ready(down)

    def _judge_end(self, status: int) -> None:
        """Nobody has ended the daemon. It may do so itself before it is ready, if the disk takes or gives nothing."""
        if not self._was_ready and self.ledger.has_no_disk(self._spawned):
            self.ledger.count("supervisor", "no start without a disk")
            time.sleep(0.5)
            return
        self.ledger.breaks("it lives", f"the daemon has ended with {status}, although nobody ended it")

    def api(self, method: str, path: str, body: object = None, timeout_s: float = 30) -> tuple[int, Any]:
        """A call of the control API, on its socket. Errors are OSErrors."""
        connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
        try:
            connection.sock.connect(str(self.data / "control.sock"))
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            response = connection.getresponse()
            data = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        try:
            return response.status, json.loads(data)
        except ValueError:
            return response.status, data.decode("utf-8", "replace")

    def cli(self, *words: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """A command of `pilot`."""
        environment = {**os.environ, "PILOT_ENDPOINT": f"unix:{self.data / 'control.sock'}"}
        command: list[str | Path] = [self.binary, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        program = self.children.start(command, text=True, env=environment, **pipes)
        try:
            output, errors = program.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            program.kill()
            program.communicate()
            raise
        finally:
            self.children.forget(program)
        return subprocess.CompletedProcess(command, program.returncode, output, errors)
