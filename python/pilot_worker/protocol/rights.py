"""Descriptors that arrive with a message: the control messages of recvmsg(2) (SCM_RIGHTS, unix(7))."""

from __future__ import annotations

import _socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

_LEN = struct.calcsize("i")


def space(count: int) -> int:
    """The length of the control messages for so many descriptors."""
    return _socket.CMSG_SPACE(count * _LEN)


def descriptors(ancillary: List[Tuple[int, int, bytes]]) -> List[int]:
    """All that came, in their order."""
    found: List[int] = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            found.extend(struct.unpack_from(f"{len(data) // _LEN}i", data))
    return found
