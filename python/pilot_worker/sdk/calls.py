"""The socket over which a handler invokes other functions (PROTOCOL.md, section 1, "Calls"). `pilotlight.py` is what
functions see.

Several threads of a handler may use it at the same time. Whoever waits for an answer reads for all others, and whoever cannot
send reads meanwhile. So the daemon, which may wait until an answer is read, can never wait for a handler that waits for the
daemon.
"""

from __future__ import annotations

import json
import posix
import select
import socket
import struct
import threading
from collections import deque

from .. import output
from ..protocol import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Deque, Dict, Optional, Set, Tuple

    from ..inputs.received import Input

    Answer = Tuple[Dict[str, Any], bytes]

NAME = ":calls"
CALLS_MAX = 16  # as many as the daemon runs at a time for one invocation

_HEADER = struct.Struct("<II")
_READ_LEN = 256 * 1024
_ANCILLARY_LEN = rights.space(1)

# By request id, of invocations that run.
_open: Dict[str, Calls] = {}


class Closed(Exception):
    """The daemon has closed the socket: the invocation is over."""


class Calls:
    """The calls of one invocation."""

    def __init__(self, fd: int, given: Dict[str, Input]) -> None:
        self.given = given
        self.dropped: Deque[int] = deque()  # buffers to be released with the next request
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(None)  # whatever the function's default is
        self._writing = threading.Lock()
        self._changed = threading.Condition()  # guards what follows
        self._is_reading = False
        self._is_closed = False
        self._next = 1
        self._running: Set[int] = set()  # calls without an answer, at most CALLS_MAX
        self._answers: Dict[int, Answer] = {}
        self._held = bytearray()  # only the thread that reads uses these two
        self._descriptors: Deque[int] = deque()

    def begin(self, body: bytes = b"", **ask: Any) -> int:
        """Sends a request. Returns its id, for `wait`. Closed if the invocation is over."""
        while self.dropped:
            self.tell(op="release", buffer=self.dropped.popleft())
        with self._changed:
            number, self._next = self._next, self._next + 1
        self._ask({**ask, "id": number}, body)
        return number

    def call(self, body: bytes, **ask: Any) -> int:
        """As `begin`, of a function, when fewer than CALLS_MAX calls run. Whoever waits for that reads meanwhile, because the
        answers to its own calls may be what it waits for."""
        while True:
            with self._changed:
                if self._is_closed:
                    raise Closed
                if len(self._running) < CALLS_MAX:
                    number, self._next = self._next, self._next + 1
                    self._running.add(number)
                    break
                if self._is_reading:
                    self._changed.wait()
                    continue
                self._is_reading = True
            self._read(select.POLLIN)
        try:
            self._ask({**ask, "op": "call", "id": number}, body)
        except BaseException:
            with self._changed:
                self._running.discard(number)
            raise
        return number

    def tell(self, **ask: Any) -> None:
        """Sends a request that has no answer."""
        self._ask(ask, b"")

    def wait(self, numbers: Collection[int]) -> Tuple[int, Dict[str, Any], bytes]:
        """The first answer to one of these requests: its id, what it says, and its body."""
        while True:
            with self._changed:
                for number in numbers:
                    answer = self._answers.pop(number, None)
                    if answer is not None:
                        return number, answer[0], answer[1]
                if self._is_closed:
                    raise Closed
                if self._is_reading:
                    self._changed.wait()
                    continue
                self._is_reading = True
            self._read(select.POLLIN)

    def _ask(self, ask: Dict[str, Any], body: bytes) -> None:
        meta = json.dumps(ask).encode()
        rest = memoryview(_HEADER.pack(len(meta), len(body)) + meta + body)
        with self._writing:
            while rest:
                try:
                    rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    self._wait_for_room()
                except OSError as error:
                    raise Closed from error

    def _wait_for_room(self) -> None:
        with self._changed:
            reads = not self._is_reading
            if reads:
                self._is_reading = True
        if reads:
            self._read(select.POLLIN | select.POLLOUT)
        else:
            self._poll(select.POLLOUT)

    def _poll(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._socket, events)
        return poll.poll()[0][1]

    def _read(self, events: int) -> None:
        """Waits for one of the events, and takes what has arrived. Only for the thread that has set `_is_reading`."""
        answers: Dict[int, Answer] = {}
        is_closed = False
        try:
            if self._poll(events) & ~select.POLLOUT:
                answers, is_closed = self._receive()
        finally:
            with self._changed:
                self._answers.update(answers)
                self._running.difference_update(answers)
                self._is_closed = self._is_closed or is_closed
                self._is_reading = False
                self._changed.notify_all()

    def _receive(self) -> Tuple[Dict[int, Answer], bool]:
        """The answers that are complete now, and whether the socket is closed."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_LEN, _ANCILLARY_LEN, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return {}, True
        self._descriptors.extend(rights.descriptors(ancillary))
        self._held += data
        answers = {}
        while len(self._held) >= _HEADER.size:
            meta_len, body_len = _HEADER.unpack_from(self._held)
            body_at = _HEADER.size + meta_len
            end = body_at + body_len
            if len(self._held) < end:
                break
            meta = json.loads(self._held[_HEADER.size : body_at])
            if meta.get("descriptor"):
                meta["descriptor"] = self._descriptors.popleft()
            answers[meta["id"]] = meta, bytes(self._held[body_at:end])
            del self._held[:end]
        return answers, not data

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            posix.close(descriptor)


def begin(meta: Dict[str, Any]) -> None:
    """Takes the socket from the inputs of an invocation, of which it is not one. It belongs to the invocation's meta."""
    given: Dict[str, Input] = meta["inputs"]
    calls = Calls(given.pop(NAME).detach(), given)
    meta["calls"] = _open[meta["id"]] = calls


def current() -> Optional[Calls]:
    """The calls of the invocation that this thread or task belongs to."""
    return output.of_invocation(_open)


def end(meta: Dict[str, Any]) -> None:
    """The invocation has ended, also if something still refers to it."""
    _open.pop(meta["id"], None)
