"""Notes which packages change what a process has one of when the template of an environment imports them: `sys.excepthook`,
`sys.stdout`, handlers of the root logger and of signals, how objects are pickled. `library_state.py` has what single modules of
Python keep.

A function that never imports such a package must not find the change, as with variables (`setters.py`, which also knows who
imports what). Nothing is put back, because other packages may have built upon it: such a function does its own imports.

Left out is what cannot change what a program does, and what very many packages change: filters of warnings, except those that
make an error of one; importers that are asked after Python's own (six); ways to pickle a package's own classes (numpy); what
machine code keeps in `builtins` (pybind11); functions of `atexit`; `faulthandler`.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # C half of signal, in every CPython; mypy has no stub for it
import _thread
import builtins
import gc
import importlib.machinery
import logging
import os
import posix
import sys
import threading
import warnings

from . import library_state, setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, Iterator, List, Optional, Tuple, Type

_OF_SYS = ("stdin", "stdout", "stderr", "excepthook", "displayhook", "unraisablehook", "breakpointhook", "tracebacklimit")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
# setuptools makes `distutils` importable, and its `.pth` file does the same in every interpreter. absl's finds nothing: it
# notices that absl.flags is imported again.
_HARMLESS_FINDERS = ("_distutils_hack", "absl")
_BUILTINS = frozenset(vars(builtins))
_digits_max = getattr(sys, "get_int_max_str_digits", int)  # since Python 3.11, and in late versions of older ones


class _State:
    last: Optional[Dict[str, Any]] = None  # None: nothing is watched


_state = _State()


class Watch:
    """A context, in the template of an environment, while it imports packages."""

    def __enter__(self) -> Watch:
        _state.last = dict(_now())
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        _state.last = None


def loaded(name: str) -> None:
    """To be called after each import of a module. What has changed since the last call is the package's doing."""
    if _state.last is None or "." in name or name in setters.STANDARD:
        return
    note(name)


def note(name: str) -> None:
    """What has changed since the last call is the doing of this module's package."""
    if _state.last is None:
        return
    now = dict(_now())
    for what, value in now.items():
        if not _is_same(value, _state.last.get(what)):
            setters.note_change(what, name.partition(".")[0])
    _state.last = now


def _is_same(now: Any, before: Any) -> bool:
    """Objects are compared by identity: comparing may run code of packages. Numbers and texts run none."""
    kind = type(now)
    if kind is not type(before):
        return False
    if kind is tuple:
        return len(now) == len(before) and all(map(_is_same, now, before))
    return now is before or (kind in (int, float, str) and bool(now == before))


def _now() -> Iterator[Tuple[str, Any]]:
    """What there is, by the words of the report."""
    for name in _OF_SYS:
        yield f"sys.{name}", getattr(sys, name, None)
    for number in (1, 2):
        yield f"descriptor {number}", _file_at(number)
    yield "threading.excepthook", threading.excepthook
    yield "the handlers of the root logger", tuple(logging.root.handlers)
    yield "the filters of the root logger", tuple(logging.root.filters)
    yield "the level of the root logger", logging.root.level
    yield "the class of loggers", logging.getLoggerClass()
    yield "the class of log records", logging.getLogRecordFactory()
    yield "the names of log levels", tuple(str(logging.getLevelName(level)) for level in _LEVELS)
    yield "logging.disable", logging.root.manager.disable
    yield "the handlers of signals", tuple(_signal.getsignal(number) for number in range(1, _signal.NSIG))
    yield "the event loop policy", _loop_policy()
    yield "how pickle writes objects", _ways_to_pickle()
    yield "the warnings that are errors", tuple(one for one in warnings.filters if one[0] == "error")
    yield "how warnings are shown", (warnings.showwarning, warnings.formatwarning)
    yield "the importers", _finders()
    yield "the names of builtins", _builtins()
    yield "the recursion limit", sys.getrecursionlimit()
    yield "the limit for digits of integers", _digits_max()
    yield "the stack size of threads", _thread.stack_size()
    yield "the garbage collector", (gc.isenabled(), *gc.get_threshold(), *gc.callbacks)
    yield "the locale", _locale.setlocale(_locale.LC_ALL)
    yield "the umask", _umask()
    yield from library_state.found()


def _file_at(number: int) -> Optional[str]:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"


def _umask() -> int:
    """The kernel tells it only if another one is set. This one lets nobody in, should a thread create a file meanwhile."""
    umask = posix.umask(0o077)
    posix.umask(umask)
    return umask


def _loop_policy() -> Any:
    """None: nobody has set one. asyncio makes the usual one when it is asked for."""
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    return None if type(policy).__module__.startswith("asyncio.") else policy


def _ways_to_pickle() -> Tuple[Any, ...]:
    """Those of Python's own types that a package has added, in pickle's Python half and for both halves."""
    kind = getattr(sys.modules.get("pickle"), "_Pickler", None)
    dispatch = getattr(kind, "dispatch", None)
    own = [way for way in dispatch.values() if not setters.is_standard(way)] if isinstance(dispatch, dict) else []
    table = getattr(sys.modules.get("copyreg"), "dispatch_table", {})
    return (*own, *(way for type_, way in table.items() if setters.is_standard(type_) and not setters.is_standard(way)))


def _finders() -> Tuple[Any, ...]:
    """Those that are asked before Python's own. An instance or a class."""
    before: List[Any] = []
    for finder in sys.meta_path:
        if finder is importlib.machinery.PathFinder:
            break
        if setters.root_of(finder) not in _HARMLESS_FINDERS:
            before.append(finder)
    else:
        before.append(None)  # Python's own is gone
    return (*before, *sys.path_hooks)


def _builtins() -> Tuple[Any, ...]:
    found = []
    for name, value in vars(builtins).items():
        if name in _BUILTINS:
            found.append(value)
        elif not name.startswith("__") and name != "_":  # the last result of an interactive interpreter
            found += [name, value]
    return tuple(found)
