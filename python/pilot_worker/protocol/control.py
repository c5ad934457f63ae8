"""The control channel of a template: JSON messages with file descriptors (PROTOCOL.md, section 2).

This file turns a received message into a checked `ForkRequest`, or closes the message's descriptors. `template.py` handles it.
"""

from __future__ import annotations

import json
import posix
import socket

from ..spec import TemplateSpec
from . import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MESSAGE_LEN_MAX = 64 * 1024
FDS_MAX = 253  # SCM_MAX_FD, include/net/scm.h
ROLES = ("worker", "template")
NAMESPACES = ("user", "mnt", "ipc", "uts", "net")  # in the order in which they are entered
_SINGLE = frozenset(("channel", "log", "pid", *NAMESPACES))
_ANCILLARY_LEN = rights.space(FDS_MAX)


class RequestError(ValueError):
    """An invalid message. The template continues."""


class ForkRequest:
    """What a child should become, and its descriptors. Owns the descriptors until `close`."""

    __slots__ = ("id", "role", "spec", "channel", "log", "pid", "namespaces", "cgroups", "_fds")

    def __init__(self, message: Dict[str, Any], fds: List[int], inherited: Optional[TemplateSpec]) -> None:
        self._fds = fds
        names = message.get("fds", [])
        if not isinstance(names, list) or len(names) != len(fds):
            raise RequestError(f"fds names {names!r}, but {len(fds)} descriptors arrived")
        self.channel = self.log = self.pid = -1
        self.namespaces: List[int] = []
        self.cgroups: List[int] = []
        given = {}
        for name, fd in zip(names, fds):
            if name == "cgroup":
                self.cgroups.append(fd)
            elif name in _SINGLE and name not in given:
                given[name] = fd
            else:
                raise RequestError(f"fds names {name!r}, which is unknown or a repetition")
        if "channel" not in given:
            raise RequestError("fds names no channel")
        self.channel = given["channel"]
        self.log = given.get("log", -1)
        self.pid = given.get("pid", -1)
        self.namespaces = [given[name] for name in NAMESPACES if name in given]
        fork_id = message.get("id")
        if not isinstance(fork_id, int):
            raise RequestError("id is not an integer")
        self.id = fork_id
        self.role: str = message.get("as", "")
        if self.role not in ROLES:
            raise RequestError(f"as is {self.role!r}, not one of {', '.join(ROLES)}")
        if message.get("spec") is not None:
            self.spec: Optional[TemplateSpec] = TemplateSpec(message["spec"])
        else:
            self.spec = None
            if inherited is None or self.role == "template":
                raise RequestError("spec is missing, and this template has none that the child could take over")

    def close(self) -> None:
        """Closes the descriptors that are still open, except a channel that was taken with `take_channel`."""
        close_all(self._fds)

    def take_channel(self) -> int:
        """The descriptor of the channel. The caller owns it from now on."""
        self._fds.remove(self.channel)
        return self.channel


class Control:
    """The template's end of the control channel, which it owns."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
        self.socket.settimeout(None)  # whatever the imports of the template above have made the default

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        posix.close(self.socket.detach())

    def forget(self) -> None:
        """For a child in which the descriptor is already closed."""
        self.socket.detach()

    def receive(self) -> Optional[Tuple[bytes, List[int]]]:
        """One message and its descriptors (close-on-exec), None when the daemon has closed the channel."""
        try:
            text, ancillary, flags, _ = self.socket.recvmsg(MESSAGE_LEN_MAX, _ANCILLARY_LEN, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        fds = rights.descriptors(ancillary)
        if not text:
            close_all(fds)
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            text = b""  # not JSON, so it is answered as a malformed message
        return text, fds

    def send(self, message: Dict[str, Any]) -> None:
        try:
            self.socket.sendall(json.dumps(message).encode())
        except ConnectionError:
            pass  # the next receive reports that the daemon has closed the channel


def close_all(fds: List[int]) -> None:
    """Closes the descriptors and empties the list, so that a second call does nothing."""
    while fds:
        posix.close(fds.pop())
