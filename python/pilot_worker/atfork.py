"""Leaves out of a template's forks what the standard library does after every fork for the sake of other threads.

A template has one thread when it forks, so no lock is held and no thread has vanished: `threading._after_fork` and the locks
of `logging` have nothing to mend, but cost a new worker some 150 page faults. `random` is given its new state by other means
(`entropy.py`). In a worker they are registered when user code first forks there.

Only functions named here are held back, and only while `hold_back` is in force: before user code is imported.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

    Registration = Dict[str, Callable[[], Any]]

_HELD_BACK = frozenset(("threading", "logging", "random"))

# Whoever imports these later must not register them unseen.
_ALWAYS = ("threading", "logging", "random")

_registrations: List[Registration] = []


class _State:
    is_template = True


_state = _State()


def hold_back(modules: List[str]) -> None:
    """Imports modules, with the at-fork functions of `threading` and `logging` noted instead of registered."""
    register = os.register_at_fork

    def note(**functions: Callable[[], Any]) -> None:
        owners = {getattr(function, "__module__", "") for function in functions.values()}
        if owners <= _HELD_BACK:
            _registrations.append(functions)
        else:
            register(**functions)

    os.register_at_fork = note  # type: ignore[assignment]  # the same by keyword, which is how it is called
    try:
        for name in (*modules, *_ALWAYS):
            __import__(name)
    finally:
        os.register_at_fork = register


def now_a_worker() -> None:
    """In a worker: from now on forks are as everywhere."""
    _state.is_template = False


def _before_fork() -> None:
    """Registers what was held back just before the first fork of a worker, and does what would have been done before it."""
    if _state.is_template:
        return
    while _registrations:
        functions = _registrations.pop()
        os.register_at_fork(**functions)
        before = functions.get("before")
        if before is not None:
            before()


os.register_at_fork(before=_before_fork)
