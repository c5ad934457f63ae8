"""A small client of HTTP/1.1 that sees what others hide: an answer that is cut, and a second answer to one request."""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field

HEAD_MAX = 64 << 10


class Cut(OSError):
    """The connection ended before the answer did."""


class Nonsense(Exception):
    """What came is not one answer of HTTP/1.1."""


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Connection:
    """One connection. After an error it must be closed."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self._socket = socket.create_connection(address, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def close(self) -> None:
        self._socket.close()

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """Sends a request and reads its answer."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        answer = self._answer()
        # Only the answer may have come: neither a second one nor the rest of another.
        if self._buffer or select.select([self._socket], [], [], 0)[0] and self._peek():
            raise Nonsense(f"more than one answer to {method} {path}: {self._buffer[:200]!r}")
        return answer

    def _peek(self) -> bytes:
        try:
            return self._socket.recv(200, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def _answer(self) -> Answer:
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, _, rest = head[0].partition(" ")
        if version != "HTTP/1.1" or not rest[:3].isdigit():
            raise Nonsense(f"no answer: {head[0][:200]!r}")
        answer = Answer(int(rest[:3]))
        for line in head[1:]:
            name, _, value = line.partition(":")
            answer.headers[name.strip().lower()] = value.strip()
        if answer.status < 200:
            return self._answer()
        if answer.headers.get("transfer-encoding", "").lower() == "chunked":
            while length := int(self._until(b"\r\n").split(b";")[0], 16):
                answer.body += self._exactly(length)
                if self._exactly(2) != b"\r\n":
                    raise Nonsense("a chunk that does not end")
            self._until(b"\r\n")
        elif answer.status not in (204, 304):
            answer.body = self._exactly(int(answer.headers.get("content-length", "0")))
        return answer

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise Cut("the connection ended in the middle of an answer" if self._buffer else "the connection ended")
        self._buffer += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > HEAD_MAX:
                raise Nonsense("a head without end")
            self._more()
        part, _, self._buffer = self._buffer.partition(mark)
        return part

    def _exactly(self, length: int) -> bytes:
        while len(self._buffer) < length:
            self._more()
        part, self._buffer = self._buffer[:length], self._buffer[length:]
        return part
