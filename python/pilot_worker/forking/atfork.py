"""Skips work that the standard library does after every fork because of other threads, for the forks of a template.

A template has one thread when it forks, so no lock is held and no thread is lost. `threading._after_fork` and the locks of
`logging` need no repair, but would cost a new worker about 150 page faults. `random` gets its new state in another way
(`randomness/entropy.py`). When user code forks in a worker, these functions run, in their place before those of all libraries:
a library's function may start threads, write to the log and draw random numbers.

Only the functions named here are held back, and only while `hold_back` is active, which is before user code is imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional

    from ..protocol.channel import Channel

    Registration = Dict[str, Callable[[], Any]]

_HELD_BACK = frozenset(("threading", "logging", "random"))

# Imported here, so that a later import cannot register these functions unnoticed.
_ALWAYS = ("threading", "logging", "random")

_registrations: List[Registration] = []


class _State:
    is_template = True
    # Whether this is a worker of the native loop, which is not told.
    is_child: Optional[Callable[[], bool]] = None
    # A worker's. Its processes have none.
    channel: Optional[Channel] = None
    # Set by the first fork of user code in a worker, and from then on. Only it is looked at after a fork of the template.
    runs_functions = False


_state = _State()


def hold_back(modules: List[str]) -> None:
    """Imports modules. The at-fork functions of `threading`, `logging` and `random` are recorded instead of registered."""
    register = os.register_at_fork

    def note(**functions: Callable[[], Any]) -> None:
        owners = {getattr(function, "__module__", "") for function in functions.values()}
        if owners <= _HELD_BACK:
            _registrations.append(functions)
        else:
            register(**functions)

    os.register_at_fork = note  # type: ignore[assignment]  # the same for keyword arguments, which is how it is called
    try:
        for name in (*modules, *_ALWAYS):
            __import__(name)
    finally:
        os.register_at_fork = register
    # `threading._after_fork` would renew the number that the object keeps. That of a main thread is the process id.
    sys.modules["threading"]._MainThread.native_id = property(lambda self: os.getpid())


def expect_workers(is_child: Callable[[], bool], channel: Channel) -> None:
    """In a template: its workers need not call `now_a_worker`, which copies a dozen pages. `is_child` tells them from it."""
    _state.is_child, _state.channel = is_child, channel


def now_a_worker(channel: Channel) -> None:
    """In a worker: from now on, forks work as in any Python process. Only the worker itself has its channel."""
    _state.is_template = False
    _state.channel = channel


def _before_fork() -> None:
    if _state.is_template and not (_state.is_child is not None and _state.is_child()):
        return
    _state.runs_functions = True
    _run("before", reversed(_registrations))


def _after_in_parent() -> None:
    if _state.runs_functions:
        _run("after_in_parent", _registrations)


def _after_in_child() -> None:
    if not _state.runs_functions:
        return
    _run("after_in_child", _registrations)
    channel, _state.channel = _state.channel, None
    if channel is not None:
        channel.leave()


def _run(when: str, registrations: Iterable[Registration]) -> None:
    for functions in registrations:
        function = functions.get(when)
        if function is not None:
            function()


# The first functions that are registered: they run last before a fork, and first after it.
os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
