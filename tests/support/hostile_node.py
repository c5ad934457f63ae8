"""A node that does not answer as nodes do. It speaks HTTP/2 (RFC 9113) frame by frame, over TLS with a certificate that is right."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = 24
MAX = (1 << 31) - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def number(value: int, bits: int, first: int = 0) -> bytes:
    """An integer of HPACK (RFC 7541, section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    made, value = bytearray([first | most]), value - most
    while value >= 128:
        made.append(value % 128 + 128)
        value //= 128
    made.append(value)
    return bytes(made)


def block(status: int, **headers: str) -> bytes:
    """Headers, without compression."""
    made = b"\x08" + number(3, 7) + str(status).encode()
    for name, value in headers.items():
        text = name.replace("_", "-").encode()
        made += b"\x00" + number(len(text), 7) + text + number(len(value), 7) + value.encode()
    return made


class Link:
    """A connection of the node that calls."""

    def __init__(self, node: HostileNode, stream: ssl.SSLSocket) -> None:
        self.node, self.tls = node, stream
        self.lock = threading.Lock()
        self.calls = 0

    def send(self, *frames: bytes) -> None:
        with self.lock:
            self.tls.sendall(b"".join(frames))

    def head(self, stream: int, status: int = 200, flags: int = END_HEADERS, **headers: str) -> None:
        self.send(frame(HEADERS, flags, stream, block(status, **headers)))

    def data(self, stream: int, payload: bytes, flags: int = 0) -> None:
        self.send(frame(DATA, flags, stream, payload))

    def answer(self, stream: int, body: bytes, end: str = "done", length: int | None = None) -> None:
        self.head(stream, pilot_end=end, content_length=str(len(body) if length is None else length))
        for at in range(0, len(body), 16384):
            self.data(stream, body[at : at + 16384])
        self.data(stream, b"", END_STREAM)

    def refuse(self, stream: int, body: bytes, status: int = 503) -> None:
        self.head(stream, status)
        self.data(stream, body, END_STREAM)

    def forever(self, stream: int, *frames: bytes, pause_s: float = 0.0, seconds: float = 60) -> None:
        """The same frames again and again."""
        together = b"".join(frames)
        if not pause_s:
            together *= 1 + (1 << 17) // len(together)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.send(together)
            if pause_s:
                time.sleep(pause_s)

    def run(self) -> None:
        self.read(PREFACE)
        settings = struct.pack(">HI", 4, self.node.window)
        self.send(frame(SETTINGS, 0, 0, settings), frame(WINDOW, 0, 0, struct.pack(">I", 1 << 24)))
        while True:
            head = self.read(9)
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            stream = int.from_bytes(head[5:]) & MAX
            payload = self.read(length)
            if kind == SETTINGS and not flags & ACK:
                self.send(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))
            elif kind == DATA and length and self.node.window:
                update = struct.pack(">I", length)
                self.send(frame(WINDOW, 0, 0, update), frame(WINDOW, 0, stream, update))
            if kind == HEADERS and stream == 1:
                self.head(1, flags=END_HEADERS | END_STREAM)
            elif stream > 1 and ((kind in (DATA, HEADERS) and flags & END_STREAM) or (kind == HEADERS and not self.node.waits)):
                self.calls += 1
                threading.Thread(target=self.behave, args=(stream,), daemon=True).start()

    def behave(self, stream: int) -> None:
        try:
            self.node.does(self, stream)
        except OSError:
            pass

    def read(self, length: int) -> bytes:
        made = b""
        while len(made) < length:
            part = self.tls.recv(length - len(made))
            if not part:
                raise OSError("closed")
            made += part
        return made


class HostileNode:
    """Listens until it is closed. `does` is called for each call, with its connection and its stream. `waits`: after all of the call has
    come."""

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self.does: Callable[[Link, int], None] = lambda link, stream: link.answer(stream, b"{}")
        self.waits = True
        self.window = 1 << 24
        self.links: list[Link] = []
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        self.tls.load_verify_locations(authority)
        self.tls.verify_mode = ssl.CERT_REQUIRED
        self.tls.set_alpn_protocols(["h2"])
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(stream,), daemon=True).start()

    def serve(self, stream: socket.socket) -> None:
        try:
            link = Link(self, self.tls.wrap_socket(stream, server_side=True))
            self.links.append(link)
            link.run()
        except OSError:
            stream.close()

    def close(self) -> None:
        self.listener.close()
        self.reset()

    def reset(self) -> None:
        """Ends all connections."""
        for link in self.links:
            try:
                link.tls.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.links.clear()
