"""What an initscript sends while the handler runs: messages, and connections. And what the handler sends to the script.

See PROTOCOL.md, section 1, "Initscripts that go on".

Imported only if an invocation has such a script, or gets connections. Whoever waits reads the socket for all others, so nobody
polls. The daemon ends a script at its time, so a wait ends too.
"""

from __future__ import annotations

import json
import posix
import socket
import struct
import threading
from collections import deque

from ..protocol import rights
from . import received as _received

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, Optional, Set, Tuple

_LENGTH = struct.Struct("<I")
_HEADER = struct.Struct("<QI")  # of a message to the script
_SENT_LEN_MAX, _SENT_MAX, _SENT_TOTAL_MAX = 1 << 20, 16, 4 << 20
_READ_LEN = 64 * 1024
_ANCILLARY_LEN = rights.space(16)
_CLOEXEC = socket.MSG_CMSG_CLOEXEC
_INTERRUPTED = "the invocation ended before the initscript"


class Arriving:
    """The rest of what the script of one invocation sends. Threads may use it at the same time."""

    def __init__(self, fd: int, request_id: str = "") -> None:
        self._descriptors: Deque[int] = deque()  # before anything that may fail: `__del__` needs both
        self._connections: Dict[int, Tuple[str, Any]] = {}
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(None)  # whatever the function's default is
        self._request_id = request_id
        self._sending = threading.Lock()  # guards what was sent to the script, and its order
        self._sent: Set[int] = set()
        self._sent_len = 0
        self._is_cut = False
        self._held = bytearray()  # only the thread that reads uses this and the descriptors
        self._changed = threading.Condition()  # guards what follows
        self._is_reading = False
        self._has_ended = False
        self._problem = ""
        self._given: Dict[str, _received.Input] = {}
        self._failed: Dict[str, str] = {}

    def message(self, name: str) -> Tuple[Optional[_received.Input], str]:
        """Waits for a message, or for the end of the script. The message, or None and why there is none, if that is known."""
        with self._changed:
            self._wait(lambda: name in self._given or name in self._failed)
            return self._given.get(name), self._failed.get(name) or self._problem

    def names(self) -> Tuple[str, ...]:
        """The messages that have been read so far."""
        with self._changed:
            return tuple(self._given)

    def connection(self, id: int) -> Tuple[str, Any]:
        """Waits for a connection, or for the end of the script. Its address and its descriptor, which is the caller's from
        then on; or why there is none, if that is known, and None."""
        with self._changed:
            self._wait(lambda: id in self._connections)
            address, descriptor = self._connections.get(id, (self._problem, None))
            if descriptor is not None:
                self._connections[id] = (f"connection {id} was taken before", None)
            return address, descriptor

    def put_back(self, id: int, address: str, descriptor: int) -> None:
        """The caller does not want it after all."""
        with self._changed:
            self._connections[id] = (address, descriptor)

    def send(self, id: int, data: memoryview) -> str:
        """Sends a message to the script. It waits only if the daemon has no memory for it yet. Returns why it was not sent, or
        nothing."""
        with self._sending:
            problem = self._why_not(id, data.nbytes)
            if problem:
                return problem
            self._sent.add(id)
            self._sent_len += data.nbytes
            self._is_cut = True
            try:
                # The function may have made SIGPIPE deadly.
                self._socket.sendall(b"".join((_HEADER.pack(id, data.nbytes), data)), socket.MSG_NOSIGNAL)
            except OSError as error:
                return self._ended(error)
            self._is_cut = False
            return ""

    def _why_not(self, id: int, size: int) -> str:
        """Why a message cannot be sent: the daemon would read no more."""
        with self._changed:
            self._look()
            if self._has_ended:
                return self._end_of_script()
        if self._is_cut:
            return "an earlier message to the initscript was interrupted while it was sent, so nothing can follow it"
        if size > _SENT_LEN_MAX:
            return f"it has {size} bytes, and a message to the initscript has at most {_SENT_LEN_MAX}"
        if id in self._sent:
            return "a message with this id was sent before"
        if len(self._sent) >= _SENT_MAX or self._sent_len + size > _SENT_TOTAL_MAX:
            return f"the initscript is full: it gets at most {_SENT_MAX} messages, of {_SENT_TOTAL_MAX} bytes in all"
        return ""

    def _ended(self, error: OSError) -> str:
        """What the failure of a send means."""
        with self._changed:
            if isinstance(error, ConnectionError):
                self._wait(lambda: False)  # the script's end, which says why, is on its way
            if self._has_ended:
                return self._end_of_script()
        return f"the socket to the initscript failed: {error}"

    def _end_of_script(self) -> str:
        return "the initscript has ended" + (f": {self._problem}" if self._problem else "")

    def _look(self) -> None:
        """Takes what is here already, unless somebody waits for it. Only with the lock."""
        while not self._is_reading and not self._has_ended:
            try:
                data = self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            try:
                self._take(data)
            finally:
                self._changed.notify_all()

    def _wait(self, is_here: Any) -> None:
        """Only with the lock."""
        while not is_here() and not self._has_ended:
            if self._is_reading:
                self._changed.wait()
                continue
            self._is_reading = True
            self._changed.release()
            data = b""
            try:
                data = self._receive()
            finally:
                self._changed.acquire()
                self._is_reading = False
                try:
                    self._take(data)
                finally:
                    self._changed.notify_all()

    def _receive(self, flags: int = 0) -> bytes:
        """What comes next. Nothing: the daemon has closed the socket."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_LEN, _ANCILLARY_LEN, _CLOEXEC | flags)
        except ConnectionError:
            return b""
        self._descriptors.extend(rights.descriptors(ancillary))
        return data

    def _take(self, data: bytes) -> None:
        if not data:
            self._has_ended = True
            self._problem = self._problem or _INTERRUPTED
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            end = _LENGTH.size + length
            if len(self._held) < end:
                break
            note = json.loads(self._held[_LENGTH.size : end])
            del self._held[:end]
            self._note(note)

    def _note(self, note: Dict[str, Any]) -> None:
        problem = note.get("problem", "")
        if note["op"] == "end":
            self._has_ended = True
            self._problem = problem
        elif note["op"] == "message":
            name = _received.MESSAGE_PREFIX + note["id"]
            if problem:
                self._failed[name] = problem
            else:
                store = note.get("store")
                self._given[name] = one = _received.Input(name, "memory", note["len"], self._descriptors.popleft(), store)
                if _received.watcher is not None:
                    _received.watcher.begin((one,), self._request_id)
        elif note["op"] == "connection":
            given = (problem, None) if problem else (note["address"], self._descriptors.popleft())
            self._connections[int(note["id"])] = given

    def close(self) -> None:
        """The invocation has ended: closes what nobody has taken."""
        with self._changed:
            self._has_ended = True
            self._problem = self._problem or _INTERRUPTED
            self._socket.close()
            if _received.watcher is not None:
                _received.watcher.end(self._given.values())
        self.__del__()

    def __del__(self) -> None:
        while self._descriptors:
            posix.close(self._descriptors.popleft())
        for id, (address, descriptor) in list(self._connections.items()):
            if descriptor is not None:
                self._connections[id] = (address, None)
                posix.close(descriptor)
