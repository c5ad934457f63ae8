"""Gives `os.getppid()` the answer that it has in a worker that was started by exec: 1, the init of its sandbox.

The parent of a forked worker is its template, which is in another PID namespace. For such a parent the kernel answers 0
(getpid(2)), which no program expects. Processes that a worker starts see the worker as their parent, as always.
"""

from __future__ import annotations

import functools
import os
import posix

_INIT = 1

_getppid = os.getppid


@functools.wraps(_getppid)
def _of_a_sandbox() -> int:
    return _getppid() or _INIT


def offer() -> None:
    """Called before user code is imported, which may keep the function under a name of its own."""
    _of_a_sandbox.__module__ = posix.__name__  # under which it is pickled
    os.getppid = posix.getppid = _of_a_sandbox
