"""Plays the daemon: starts the real worker process and uses both of its channels. Not a test itself."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterable

from pilot_worker.protocol import wire

WORKER = Path(__file__).parent.parent / "pilot_worker"
PYTHON = os.environ.get("PILOT_TEST_PYTHON", sys.executable)  # the worker supports versions that the tests do not
PATIENCE_S = 30.0  # an upper bound for a broken worker, never waited for otherwise


class Closed(Exception):
    pass


class Stream:
    """The daemon's end of an invocation channel."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self.socket = sock
        self._decoder = wire.Decoder()
        self._next = 1
        self.makes_room = False  # for more of a response as soon as there is a piece of it; with concurrency above 1

    def send(self, kind: int, stream: int, meta: dict[str, Any], body: bytes = b"") -> None:
        self.socket.sendall(wire.encode(kind, stream, json.dumps(meta).encode(), body))

    def frame(self) -> tuple[int, int, dict[str, Any], bytes]:
        while True:
            frame = self._decoder.next()
            if frame is not None:
                kind, stream, meta, body = frame
                if self.makes_room and kind in (wire.HEAD, wire.CHUNK) and b'"finished_ns"' not in meta:
                    self.make_room(stream, max(len(body), wire.WINDOW_COST_MIN))
                return kind, stream, json.loads(meta or b"{}"), body
            data = self.socket.recv(1 << 20)
            if not data:
                raise Closed
            self._decoder.feed(data)

    def make_room(self, stream: int, length: int) -> None:
        self.socket.sendall(wire.encode(wire.WINDOW, stream, b"", length.to_bytes(4, "little")))

    def cancel(self, stream: int) -> None:
        self.socket.sendall(wire.encode(wire.CANCEL, stream, b"", b""))

    def ready(self) -> dict[str, Any]:
        kind, stream, meta, body = self.frame()
        assert (kind, stream) == (wire.READY, 0), (kind, body)
        return meta

    def ask(self, event: Any, **meta: Any) -> int:
        stream, self._next = self._next, self._next + 1
        self.send(wire.INVOKE, stream, invoke_meta(**meta), json.dumps(event).encode())
        return stream

    def ask_http(self, **meta: Any) -> int:
        body = meta.pop("body", b"")
        stream, self._next = self._next, self._next + 1
        self.send(wire.HTTP, stream, http_meta(**meta), body)
        return stream

    def call(self, event: Any, **meta: Any) -> tuple[int, Any]:
        """(kind, decoded body) of one invocation."""
        stream = self.ask(event, **meta)
        kind, answered, _, body = self.frame()
        assert answered == stream
        return kind, json.loads(body)

    def result(self, event: Any, **meta: Any) -> Any:
        kind, body = self.call(event, **meta)
        assert kind == wire.RESULT, body
        return body

    def error(self, event: Any, **meta: Any) -> dict[str, Any]:
        kind, body = self.call(event, **meta)
        assert kind == wire.ERROR, body
        assert isinstance(body, dict)
        return body

    def http(self, **meta: Any) -> tuple[int, dict[str, str], bytes, int]:
        """(status, headers, body, number of frames) of one request."""
        stream = self.ask_http(**meta)
        return self.http_answer(stream)

    def http_answer(self, stream: int) -> tuple[int, dict[str, str], bytes, int]:
        kind, answered, head, body = self.frame()
        assert answered == stream and kind == wire.HEAD, (kind, body)
        frames = 1
        is_whole = "finished_ns" in head
        while kind != wire.END and not is_whole:
            kind, answered, _, more = self.frame()
            assert answered == stream and kind in (wire.CHUNK, wire.END), (kind, more)
            body += more
            frames += 1
        return head["status"], dict(head["headers"]), body, frames

    def is_closed(self) -> bool:
        try:
            self.frame()
        except (Closed, ConnectionError):
            return True
        return False

    def close(self) -> None:
        self.socket.close()


def invoke_meta(**meta: Any) -> dict[str, Any]:
    return {
        "id": "8f6e0a52-0d5a-4f0e-9c6b-0f9a1c2d3e4f",
        "arn": "arn:aws:lambda:us-east-1:000000000000:function:test",
        "version": "1",
        "deadline_ms": int(time.time() * 1000) + 30_000,
        **meta,
    }


def http_meta(**meta: Any) -> dict[str, Any]:
    return {
        **invoke_meta(),
        "method": "GET",
        "path": "/",
        "query": "",
        "root_path": "/fn/test",
        "headers": [["host", "localhost"]],
        "client": ["127.0.0.1", 40000],
        "scheme": "http",
        **meta,
    }


# PROTOCOL.md, the short form of a fork request.
SHORT_ROLES = {"channel": 0, "log": 1, "pid": 2, "mnt": 3, "ipc": 3, "uts": 3, "net": 3, "cgroup": 4}


class Template:
    """The daemon's end of a control channel. `logs` collects what the children print."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self.socket = sock
        self.report: dict[str, Any] = {}
        self._next = 1
        self._unread: list[dict[str, Any]] = []
        self._is_elsewhere = False

    def send(self, message: dict[str, Any] | bytes, fds: Iterable[int] = ()) -> None:
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self.socket, [text], list(fds))

    def message(self, op: str | None = None, fork_id: int | None = None) -> dict[str, Any]:
        """The next message; with `op` and `fork_id`, the next such one (others are kept)."""

        def is_meant(message: dict[str, Any]) -> bool:
            return op in (None, message["op"]) and fork_id in (None, message.get("id"))

        for index, kept in enumerate(self._unread):
            if is_meant(kept):
                return self._unread.pop(index)
        while True:
            text = self.socket.recv(1 << 16)
            if not text:
                raise Closed
            message: dict[str, Any] = json.loads(text)
            if is_meant(message):
                return message
            self._unread.append(message)

    def fork(self, role: str, spec: dict[str, Any] | None = None, **fds: int | list[int]) -> tuple[int, socket.socket]:
        """Requests a child. Returns the fork's id and the daemon's end of the child's channel."""
        kind = socket.SOCK_STREAM if role == "worker" else socket.SOCK_SEQPACKET
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        names, numbers = ["channel"], [theirs.fileno()]
        for name, value in fds.items():
            for fd in value if isinstance(value, list) else [value]:
                names.append(name)
                numbers.append(fd)
        fork_id, self._next = self._next, self._next + 1
        if self.takes_short_form(role, spec, names):
            roles = bytes(SHORT_ROLES[name] for name in names)
            self.send(b"FORK" + struct.pack("<IQ", len(names), fork_id) + roles, numbers)
            theirs.close()
            return fork_id, ours
        message: dict[str, Any] = {"op": "fork", "id": fork_id, "as": role, "fds": names}
        if spec is not None:
            message["spec"] = spec
        self.send(message, numbers)
        theirs.close()
        return fork_id, ours

    def takes_short_form(self, role: str, spec: dict[str, Any] | None, names: Iterable[str]) -> bool:
        """The daemon's rule: a worker of the template's own function, if its loop is the native one."""
        known = all(name in SHORT_ROLES for name in names)
        self._is_elsewhere = self._is_elsewhere or "pid" in names
        if self._is_elsewhere and "pid" not in names:
            return False  # back into the template's own PID namespace, which only the long form can request
        return role == "worker" and spec is None and bool(self.report.get("native")) and known

    def template(self, spec: dict[str, Any], **fds: int | list[int]) -> Template:
        """A child template that has said `ready` without an error."""
        fork_id, sock = self.fork("template", spec, **fds)
        self.message("forked", fork_id)
        child = Template(sock)
        child.report = child.message("ready")
        assert "error" not in child.report, child.report
        return child

    def worker(self, spec: dict[str, Any] | None = None, **fds: int | list[int]) -> Stream:
        """A worker that has been forked; its READY is yet to be read."""
        fork_id, sock = self.fork("worker", spec, **fds)
        if not self.takes_short_form("worker", spec, fds):
            self.message("forked", fork_id)
        return Stream(sock)

    def close(self) -> None:
        self.socket.close()


class Process:
    """A process started by exec: the interpreter's template, a function's, or a worker without one. `at_start` are variables that
    the interpreter reads when it starts."""

    def __init__(
        self, role: str, kind: socket.SocketKind, spec: dict[str, Any] | None = None, at_start: dict[str, str] | None = None
    ) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        spec_read, spec_write = os.pipe()
        with open(spec_write, "wb") as file:
            file.write(json.dumps(spec).encode())
        log_read, log_write = os.pipe()
        self._log_fd = log_read
        fds = (theirs.fileno(), spec_read)[: 1 if role == "template" else 2]

        def place() -> None:
            """Moves descriptors to the protocol's numbers, 3 and 4, via high numbers, because 3 and 4 may be the sources."""
            for number, fd in enumerate([os.dup2(fd, 200 + index) for index, fd in enumerate(fds)], start=3):
                os.dup2(fd, number)
            os.closerange(3 + len(fds), 1024)  # inherited by the test runner itself

        self.process = subprocess.Popen(
            [PYTHON, "-s" if at_start else "-I", "-S", str(WORKER), role],
            env={**os.environ, **(at_start or {})},
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            close_fds=False,  # everything else is close-on-exec already
            preexec_fn=place,  # noqa: PLW1509 - the tests start no threads before this
        )
        theirs.close()
        for fd in (spec_read, log_write):
            os.close(fd)

    def log(self) -> str:
        """Everything printed, once the process and its children have ended."""
        with open(self._log_fd, "rb", closefd=False) as file:
            return file.read().decode()

    def end(self) -> int:
        self.ours.close()
        return self.process.wait(PATIENCE_S)


class Log:
    """A pipe to be given as `log`."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()

    def read_now(self) -> str:
        """The bytes that are in the pipe now."""
        text = b""
        while select.select([self.read_fd], [], [], 0)[0]:
            more = os.read(self.read_fd, 1 << 16)
            if not more:
                break
            text += more
        return text.decode()

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)


def reported(above: Template, spec: dict[str, Any]) -> dict[str, Any]:
    """The `ready` message of a template that is forked from `above`, which may refuse to be one."""
    _, sock = above.fork("template", spec)
    template = Template(sock)
    report = template.message("ready")
    template.close()
    return report
