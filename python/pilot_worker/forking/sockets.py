"""What a socket that user code opened at import is, and how a worker gets another one like it (`descriptors.py` decides when).

Sockets are examined through a duplicate of the descriptor, because the number may belong to an object that we do not know.
"""

from __future__ import annotations

import _socket
import os
import struct

from ..importing import namesakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Option = Tuple[int, int, bytes]

LISTENS, CONNECTED, PAIRED, IDLE, MESSAGES = "listens", "connected", "paired", "idle", "messages"

_TCP_CLOSE = 7  # include/net/tcp_states.h
_UNNAMED = ("", b"", None)
_PENDING_MAX = 64 * 1024


def _names(*names: str) -> List[int]:
    return [getattr(_socket, name) for name in names if hasattr(_socket, name)]


# Options that a new socket takes over if they differ from the default.
_OPTIONS: Dict[int, List[int]] = {
    _socket.SOL_SOCKET: _names(
        "SO_REUSEADDR", "SO_REUSEPORT", "SO_KEEPALIVE", "SO_BROADCAST", "SO_RCVTIMEO", "SO_SNDTIMEO", "SO_LINGER",
        "SO_PRIORITY", "SO_OOBINLINE", "SO_PASSCRED",
    ),
    _socket.IPPROTO_IP: _names("IP_TTL", "IP_TOS", "IP_MULTICAST_TTL", "IP_MULTICAST_LOOP", "IP_MULTICAST_IF"),
    _socket.IPPROTO_IPV6: _names("IPV6_V6ONLY", "IPV6_UNICAST_HOPS", "IPV6_MULTICAST_HOPS", "IPV6_MULTICAST_LOOP"),
    _socket.IPPROTO_TCP: _names("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"),
}  # fmt: skip
_BUFFERS = (_socket.SO_RCVBUF, _socket.SO_SNDBUF)


class Socket:
    """The facts about one socket, and `make` for a new one."""

    def __init__(self, number: int, inode: int) -> None:
        self.inode = inode
        self.number = number
        one = _socket.socket(-1, -1, -1, os.dup(number))  # the family and so on are asked from the kernel
        try:
            self.family, self.type, self.proto = one.family, one.type, one.proto
            self.here, self.there = _asked(one.getsockname), _asked(one.getpeername)
            self.kind = self._kind(one)
            self.options = _options(one) if self.kind in (IDLE, MESSAGES) else []
        finally:
            one.close()

    def _kind(self, one: Any) -> str:
        if _asked(lambda: one.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN)):
            return LISTENS
        if self.family == _socket.AF_UNIX and self.here in _UNNAMED and self.there in ("", b""):
            return PAIRED  # of socketpair(2), or the client of an unnamed server, which cannot be
        if self.type not in (_socket.SOCK_STREAM, _socket.SOCK_SEQPACKET):
            return MESSAGES
        if self.there is not None:
            return CONNECTED
        if self.family in (_socket.AF_INET, _socket.AF_INET6) and self.type == _socket.SOCK_STREAM:
            info = _asked(lambda: one.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 1))
            if info and info[0] != _TCP_CLOSE:
                return CONNECTED  # or about to be
        return IDLE

    def is_bound(self) -> bool:
        if self.family in (_socket.AF_INET, _socket.AF_INET6):
            return bool(self.here and self.here[1])
        return self.here not in _UNNAMED and self.family == _socket.AF_UNIX

    def has_ephemeral_port(self) -> bool:
        try:
            with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
                low, high = (int(word) for word in file.read().split())
        except (OSError, ValueError):
            low, high = 32768, 60999
        return self.family in (_socket.AF_INET, _socket.AF_INET6) and low <= self.here[1] <= high

    def shared_port(self) -> bool:
        """Whether several processes may bind to the same port."""
        return any(name == _socket.SO_REUSEPORT for level, name, _ in self.options if level == _socket.SOL_SOCKET)

    def maker(self, bind_to: Any, is_blocking: bool) -> Callable[[], List[int]]:
        """A function for the worker: a socket of the same kind with the same options and the same peer."""
        family, type_, proto, options, peer = self.family, self.type, self.proto, self.options, self.there

        def make() -> List[int]:
            made = _socket.socket(family, type_, proto)
            for level, name, value in options:
                try:
                    made.setsockopt(level, name, value)
                except OSError:
                    pass  # it needs a privilege that workers do not have
            if bind_to is not None:
                _asked(lambda: made.bind(bind_to))
            if peer is not None:
                try:
                    made.connect(peer)
                except OSError:
                    if family == _socket.AF_UNIX:
                        made.close()
                        raise  # the inherited one still reaches the peer
            number = made.detach()
            os.set_blocking(number, is_blocking)
            return [number]

        return make

    def described(self) -> str:
        """`TCP 10.0.0.5:6379`, `UDP 127.0.0.1:8125`, `unix /run/redis.sock`."""
        address = self.here if self.kind == LISTENS or self.there in _UNNAMED else self.there
        if self.family in (_socket.AF_INET, _socket.AF_INET6):
            names = {_socket.SOCK_STREAM: "TCP", _socket.SOCK_DGRAM: "UDP"}
            host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
            return f"{names.get(self.type, 'IP')} {host}:{address[1]}"
        if self.family == _socket.AF_UNIX:
            name = os.fsdecode(address) if isinstance(address, bytes) else str(address or "")
            return f"unix {'@' + name[1:] if name[:1] == chr(0) else name}".rstrip()
        names = {_socket.AF_NETLINK: "netlink", getattr(_socket, "AF_VSOCK", -1): "vsock"}
        text = ":".join(str(part) for part in address) if isinstance(address, tuple) else ""
        return f"{names.get(self.family, f'a socket of family {self.family}')} {text}".rstrip()


def are_paired(first: Socket, second: Socket) -> bool:
    """Whether two ends of socketpair(2) that a library made in machine code are of one pair. The kernel does not say it. The
    two inodes follow each other; a byte that is written to one end is seen at the other, and taken back."""
    if abs(first.inode - second.inode) != 1 or first.type != second.type:
        return False
    before = unread(second.number)
    if before:
        return True  # not without disturbing what is there
    there = _socket.socket(-1, -1, -1, os.dup(first.number))
    here = _socket.socket(-1, -1, -1, os.dup(second.number))
    try:
        there.send(b"\0", _socket.MSG_DONTWAIT)
        is_seen = unread(second.number) == 1
        if is_seen:
            here.recv(1, _socket.MSG_DONTWAIT)
        return is_seen
    except OSError:
        return False
    finally:
        there.close()
        here.close()


def unread(number: int) -> int:
    """The bytes that a read would return now."""
    # Here, because a fork takes about 10 us for each shared object.
    fcntl, termios = namesakes.standard("fcntl"), namesakes.standard("termios")
    answer = fcntl.ioctl(number, termios.FIONREAD, bytes(4))
    return int(struct.unpack("i", answer)[0])


def pending(one: Socket) -> bytes:
    """The bytes that wait in a socket. They stay there."""
    count = min(unread(one.number), _PENDING_MAX)
    if not count:
        return b""
    duplicate = _socket.socket(-1, -1, -1, os.dup(one.number))
    try:
        return duplicate.recv(count, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except OSError:
        return b""
    finally:
        duplicate.close()


def new_pair(type_: int) -> Callable[[], Tuple[int, int]]:
    def make() -> Tuple[int, int]:
        first, second = _socket.socketpair(_socket.AF_UNIX, type_, 0)
        return first.detach(), second.detach()

    return make


def dead(type_: int) -> int:
    """A socket whose peer has closed: reads return the end of the stream, writes fail with EPIPE."""
    kind = type_ if type_ in (_socket.SOCK_STREAM, _socket.SOCK_SEQPACKET) else _socket.SOCK_STREAM
    one, peer = _socket.socketpair(_socket.AF_UNIX, kind, 0)
    peer.close()
    return int(one.detach())


def _options(one: Any) -> List[Option]:
    found: List[Option] = []
    try:
        fresh = _socket.socket(one.family, one.type, one.proto)
    except OSError:
        return found
    try:
        for level, names in _OPTIONS.items():
            for name in names:
                value = _option(one, level, name)
                if value is not None and value != _option(fresh, level, name):
                    found.append((level, name, value))
        for name in _BUFFERS:
            value = _option(one, _socket.SOL_SOCKET, name)
            if value is not None and value != _option(fresh, _socket.SOL_SOCKET, name):
                half = struct.unpack("i", value)[0] // 2  # the kernel doubles what it is given, socket(7)
                found.append((_socket.SOL_SOCKET, name, struct.pack("i", half)))
    finally:
        fresh.close()
    return found


def _option(one: Any, level: int, name: int) -> Optional[bytes]:
    value: Optional[bytes] = _asked(lambda: one.getsockopt(level, name, 16))
    return value


def _asked(question: Callable[[], Any]) -> Any:
    """The answer, or None if the kernel does not have one."""
    try:
        return question()
    except (OSError, OverflowError):
        return None
