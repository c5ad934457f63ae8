"""An HTTP/1.1 client with many connections in one thread: a closed loop, or an open loop that sends at its times whatever is answered."""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchlib.daemon import invoke_path


@dataclass
class Answers:
    """What came back. Times are ms from the time at which a request was to be sent, in the order of the answers."""

    served_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    # Retry-After of the refused ones, seconds.
    retry_after_s: list[int] = field(default_factory=list)
    other: dict[str, int] = field(default_factory=dict)
    unsent: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.served_ms) / self.seconds


@dataclass
class Connection:
    socket: socket.socket
    due: float = 0.0
    received: bytes = b""


class Clients:
    """Connections to one port that invoke one function."""

    def __init__(self, port: int, function: str, count: int) -> None:
        body = b"{}"
        head = f"POST {invoke_path(function)} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        self.message = head.encode() + body
        self.port = port
        self.poll = select.epoll()
        self.free: deque[Connection] = deque()
        self.busy: dict[int, Connection] = {}
        for _ in range(count):
            self.free.append(self.open())

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in [*self.free, *self.busy.values()]:
            connection.socket.close()
        self.poll.close()

    def open(self) -> Connection:
        opened = socket.create_connection(("127.0.0.1", self.port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.poll.register(opened.fileno(), select.EPOLLIN)
        return Connection(opened)

    def closed_loop(self, seconds: float) -> Answers:
        """Every connection sends its next request after the answer to the one before."""
        answers = Answers(seconds=seconds)
        end = time.perf_counter() + seconds
        while self.free:
            self.send(time.perf_counter())
        while (now := time.perf_counter()) < end:
            self.receive(end - now, answers, lambda: self.send(time.perf_counter()))
        self.drain()
        return answers

    def open_loop(self, per_second: float, seconds: float) -> Answers:
        """Sends at even intervals for so long, and takes the answers that have come by then."""
        answers = Answers(seconds=seconds)
        began = time.perf_counter()
        sent = 0
        while (now := time.perf_counter()) < began + seconds:
            while (due := began + sent / per_second) <= now:
                sent += 1
                if self.free:
                    self.send(due)
                else:
                    answers.unsent += 1
            self.receive(min(due, began + seconds) - now, answers, lambda: None)
        self.drain()
        return answers

    def drain(self) -> None:
        """Waits for the answers that are still to come."""
        limit = time.perf_counter() + DRAIN_S
        while self.busy:
            if time.perf_counter() > limit:
                raise RuntimeError(f"{len(self.busy)} requests have no answer after {DRAIN_S:.0f} s")
            self.receive(1.0, Answers(), lambda: None)

    def send(self, due: float) -> None:
        connection = self.free.popleft()
        connection.due, connection.received = due, b""
        self.busy[connection.socket.fileno()] = connection
        connection.socket.sendall(self.message)

    def receive(self, wait_s: float, answers: Answers, then: Callable[[], None]) -> None:
        for number, _ in self.poll.poll(max(0.0, wait_s)):
            connection = self.busy.get(number)
            if connection is None:
                raise RuntimeError("the daemon closed a connection that had no request")
            piece = connection.socket.recv(65536)
            if not piece:
                raise RuntimeError(f"a connection broke off after {connection.received[:200]!r}")
            connection.received += piece
            if (answer := whole(connection.received)) is None:
                continue
            del self.busy[number]
            self.free.append(connection)
            took_ms = (time.perf_counter() - connection.due) * 1000
            note(answers, answer, took_ms)
            then()


def whole(received: bytes) -> tuple[int, dict[bytes, bytes], bytes] | None:
    """The status, headers and body of a complete answer."""
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return None
    first, *lines = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    if len(body) < int(headers.get(b"content-length", b"0")):
        return None
    return int(first.split()[1]), headers, body


def note(answers: Answers, answer: tuple[int, dict[bytes, bytes], bytes], took_ms: float) -> None:
    status, headers, body = answer
    if status == 200 and b"x-amz-function-error" not in headers:
        answers.served_ms.append(took_ms)
    elif status in (429, 503) and b"retry-after" in headers:
        answers.refused_ms.append(took_ms)
        answers.retry_after_s.append(int(headers[b"retry-after"]))
    else:
        kind = json.loads(body or b"{}")
        what = f"{status} {kind.get('errorType') or kind.get('Reason') or kind.get('Message')}"
        answers.other[what] = answers.other.get(what, 0) + 1


DRAIN_S = 60.0
