"""A supervisor that keeps the address open restarts the daemon under load, as systemd does with a socket unit: no request fails."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pilot_daemon import PATIENCE, UnixConnection, binary, open_descriptors

pytestmark = pytest.mark.timeout(300)

HANDLER = """
import time

def handler(event, context):
    if event.get("what") == "open":
        import os

        links = {number: read(number) for number in os.listdir("/proc/self/fd")}
        told = {name: value for name, value in os.environ.items() if name.startswith(("LISTEN_", "NOTIFY_", "WATCHDOG_"))}
        return {"open": links, "told": told}
    return {"n": event["n"]}

def read(number):
    import os

    try:
        return os.readlink("/proc/self/fd/" + number)
    except OSError:
        return "gone"

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in range(5):
        await send({"type": "http.response.body", "body": b"part\\n", "more_body": True})
        time.sleep(0.05)
    await send({"type": "http.response.body", "body": b"end\\n", "more_body": False})
"""
# The number of the system call, the same on all processors.
PIDFD_GETFD = 438
CONFIG = """
[functions.quick]
handler = "app.handler"
[functions.slow]
handler = "app.app"
interface = "asgi"
"""


class Supervisor:
    """sd_listen_fds(3) and sd_notify(3), as systemd has them."""

    def __init__(self, home: Path) -> None:
        self.home, self.data = home, home / "data"
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = "{}:{}".format(*self.listener.getsockname())
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(home / "notify"))
        self.notified.settimeout(60)

    def start(self, address: str | None = None) -> None:
        # Only a shell knows the process id before the program begins.
        number = fcntl.fcntl(self.listener, fcntl.F_DUPFD_CLOEXEC, 20)
        given = f'LISTEN_PID=$$ exec "$@" 3<&{number} {number}<&-'
        serve = [binary(), "serve", "--listen", address or self.address, "--data-dir", self.data]
        told = {"LISTEN_FDS": "1", "NOTIFY_SOCKET": str(self.home / "notify"), "WATCHDOG_USEC": "3000000"}
        with (self.home / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", given, "bash", *map(str, serve)],
                env={**os.environ, **told},
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(number)

    def hear(self, word: bytes) -> None:
        while word not in self.notified.recv(4096):
            pass

    def upgrade(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.hear(b"STOPPING=1")
        assert self.process.wait(60) == 0
        self.start()
        self.hear(b"READY=1")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self.listener.close()
        self.notified.close()


class Load:
    """Requests one after the other, each kind in threads of its own. None is sent twice."""

    def __init__(self, address: str) -> None:
        self.address, self.failures = address, list[str]()
        self.done = dict.fromkeys(["kept", "fresh", "streamed"], 0)
        self.lock, self.ends = threading.Lock(), threading.Event()
        kinds: list[tuple[str, Callable[[http.client.HTTPConnection, int], bool]]] = [
            ("kept", self.kept),
            ("kept", self.kept),
            ("kept", self.kept),
            ("fresh", self.fresh),
            ("fresh", self.fresh),
            ("streamed", self.streamed),
            ("streamed", self.streamed),
        ]
        self.threads = [threading.Thread(target=self.run, args=kind) for kind in kinds]
        for thread in self.threads:
            thread.start()

    def run(self, kind: str, once: Callable[[http.client.HTTPConnection, int], bool]) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=90 * PATIENCE)
        while not self.ends.is_set():
            try:
                is_kept = once(connection, self.done[kind])
                with self.lock:
                    self.done[kind] += 1
            except Exception as error:
                is_kept = False
                with self.lock:
                    self.failures.append(f"{kind}: {error!r}")
            if not is_kept:
                connection.close()
        connection.close()

    def kept(self, connection: http.client.HTTPConnection, number: int) -> bool:
        connection.request("POST", "/2015-03-31/functions/quick/invocations", b'{"n": %d}' % number)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200 and json.loads(body) == {"n": number}, (response.status, body)
        return not response.will_close

    def fresh(self, connection: http.client.HTTPConnection, number: int) -> bool:
        self.kept(connection, number)
        return False

    def streamed(self, connection: http.client.HTTPConnection, _: int) -> bool:
        connection.request("GET", "/fn/slow/")
        response = connection.getresponse()
        body = response.read()
        assert (response.status, body) == (200, b"part\n" * 5 + b"end\n"), (response.status, body)
        return not response.will_close

    def more(self, count: int) -> None:
        """Waits until each kind has had so many more answers."""
        wanted = {kind: done + count for kind, done in self.done.items()}
        deadline = time.monotonic() + 120 * PATIENCE
        while any(self.done[kind] < least for kind, least in wanted.items()):
            assert time.monotonic() < deadline, (self.done, wanted, self.failures)
            time.sleep(0.05)

    def end(self) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join(120 * PATIENCE)


def test_an_upgrade_under_load_fails_no_request(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(HANDLER)
    (project / "pilot.toml").write_text(CONFIG)
    supervisor = Supervisor(tmp_path)
    supervisor.start()
    try:
        supervisor.hear(b"READY=1")
        control = f"unix:{supervisor.data / 'control.sock'}"
        done = subprocess.run([binary(), "up", project, "--endpoint", control], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        # It lives.
        supervisor.hear(b"WATCHDOG=1")
        load = Load(supervisor.address)
        try:
            for _ in range(3):
                load.more(10)
                supervisor.upgrade()
            load.more(10)
        finally:
            load.end()
        assert load.failures == [], load.failures
        print(f"answered: {load.done}")
    finally:
        supervisor.stop()


def test_the_supervisors_sockets_do_not_reach_workers(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(HANDLER)
    fresh = '[functions.fresh]\nhandler = "app.handler"\ntemplate = "off"\n'
    (project / "index.js").write_text(
        """const fs = require("node:fs");
const link = (number) => { try { return fs.readlinkSync("/proc/self/fd/" + number); } catch { return "gone"; } };
exports.handler = async () => ({
  open: Object.fromEntries(fs.readdirSync("/proc/self/fd").map((number) => [number, link(number)])),
  told: Object.fromEntries(Object.entries(process.env).filter(([name]) => /^(LISTEN|NOTIFY|WATCHDOG)_/.test(name))),
});
"""
    )
    node = '[functions.node]\nruntime = "node"\nhandler = "index.handler"\n'
    (project / "pilot.toml").write_text(CONFIG + fresh + node)
    supervisor = Supervisor(tmp_path)
    listener = os.readlink(f"/proc/self/fd/{supervisor.listener.fileno()}")
    supervisor.start()
    try:
        supervisor.hear(b"READY=1")
        assert listener in open_descriptors(supervisor.process.pid).values(), "the daemon has it"
        control = f"unix:{supervisor.data / 'control.sock'}"
        done = subprocess.run([binary(), "up", project, "--endpoint", control], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        for function in ("quick", "fresh", "node"):
            connection = http.client.HTTPConnection(supervisor.address, timeout=90)
            connection.request("POST", f"/2015-03-31/functions/{function}/invocations", b'{"what": "open"}')
            response = connection.getresponse()
            seen = json.loads(response.read())
            assert response.status == 200 and len(seen["open"]) >= 3, seen
            assert listener not in seen["open"].values(), (function, seen)
            assert seen["told"] == {}, (function, seen)
            connection.close()
    finally:
        supervisor.stop()


def test_a_socket_of_another_address_is_refused(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        other = "{}:{}".format(*free.getsockname())
    supervisor.start(other)
    assert supervisor.process.wait(60) != 0
    said = (tmp_path / "daemon.log").read_text()
    assert supervisor.address in said and "ListenStream" in said, said
    supervisor.stop()


def test_a_stopped_daemon_is_not_reported_alive(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start()
    try:
        supervisor.hear(b"READY=1")
        supervisor.hear(b"WATCHDOG=1")
        supervisor.process.send_signal(signal.SIGSTOP)
        # When all its threads have stopped (waitpid(2)).
        os.waitpid(supervisor.process.pid, os.WUNTRACED)
        # What it said before.
        supervisor.notified.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                supervisor.notified.recv(4096)
        supervisor.notified.settimeout(4)
        with pytest.raises(TimeoutError):
            supervisor.notified.recv(4096)
        supervisor.process.send_signal(signal.SIGCONT)
        supervisor.notified.settimeout(60)
        supervisor.hear(b"WATCHDOG=1")
        connection = UnixConnection(supervisor.data / "control.sock", 10)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
    finally:
        supervisor.process.send_signal(signal.SIGCONT)
        supervisor.stop()


def copies_of_sockets(pid: int) -> list[int]:
    """Copies of the sockets that a process has open, which stay open when it ends (pidfd_getfd(2))."""
    process = os.pidfd_open(pid)
    system = ctypes.CDLL(None, use_errno=True)
    sockets = [number for number, what in open_descriptors(pid).items() if what.startswith("socket:")]
    copies = []
    for number in sockets:
        copy = system.syscall(PIDFD_GETFD, process, number, 0)
        if copy >= 0:
            copies.append(copy)
        else:
            assert ctypes.get_errno() == errno.EBADF, os.strerror(ctypes.get_errno())  # closed meanwhile
    os.close(process)
    assert copies
    return copies


def test_a_spawner_that_ends_just_after_the_start_is_noticed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start()
    copies = []
    try:
        supervisor.hear(b"READY=1")
        daemon = supervisor.process.pid
        (spawner,) = map(int, Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split())
        # As a process has them that the spawner has just made, and that lives a moment longer.
        copies = copies_of_sockets(spawner)
        os.kill(spawner, signal.SIGKILL)
        # Long enough that the daemon has got the signal and looked, in vain.
        time.sleep(1)
        assert supervisor.process.poll() is None
        while copies:
            os.close(copies.pop())
        assert supervisor.process.wait(30) != 0
        assert "the spawner has ended" in (tmp_path / "daemon.log").read_text()
        supervisor.start()
        supervisor.hear(b"READY=1")
    finally:
        for copy in copies:
            os.close(copy)
        supervisor.stop()
