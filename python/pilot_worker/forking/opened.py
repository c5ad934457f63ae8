"""Notes where user code opens connections, binds sockets, and starts threads and processes while a template imports.

`descriptors.py` and `leftovers.py` read the notes for the report of the deployment. The methods that are watched
(`socket.connect` and so on) are replaced during the imports and restored afterwards, so a worker pays nothing. An audit hook
could not be removed, and would also be called for `id()` and `sys._getframe()`.

What a library opens in machine code is found by its descriptor: before and after each import, the lowest free descriptor is
compared with the previous one. Such a note names the module, and no line. For psycopg2 and psycopg the line is known, because
their objects tell the descriptor.
"""

from __future__ import annotations

import _socket
import os
import posix
import socket
import sys
import threading

from .. import FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Type

_OWN = FOLDER + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# The last one is where the sandbox has what requirements.txt names (crates/path/sandbox/src/places.rs).
_PACKAGES = ("/site-packages/", "/dist-packages/", "/opt/environment/")

_CONNECT_FOR_OTHERS = frozenset(("socket", "ssl"))

# "app.py:12" by the target of a descriptor's link (`socket:[4711]`, `pipe:[4712]`), by thread id, by process id.
descriptors: Dict[str, str] = {}
threads: Dict[int, str] = {}
processes: Dict[int, str] = {}
# The module that called `connect`, by the same link: "urllib3.util.connection".
libraries: Dict[str, str] = {}
# Links of sockets on which bind was called, and pairs of inodes that socketpair returned.
bound: Set[str] = set()
pairs: Set[Tuple[int, int]] = set()


class _State:
    lowest_free = -1  # -1: nothing is watched


_state = _State()
_replaced: List[Tuple[Any, str, Any, Any, bool]] = []


class Watch:
    """A context in which the notes are taken."""

    def __enter__(self) -> Watch:
        for name in ("connect", "connect_ex", "bind", "listen"):
            _replace(socket.socket, name, _after(getattr(socket.socket, name), _socket_used(name)))
        _replace(_socket, "socketpair", _socketpair(_socket.socketpair))
        _replace(threading.Thread, "start", _after(threading.Thread.start, _thread_started))
        for name in (*_LATER, "psycopg2"):
            _watch_module(name)
        _state.lowest_free = _lowest_free()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        _state.lowest_free = -1
        while _replaced:
            owner, name, original, replacement, is_own = _replaced.pop()
            if vars(owner).get(name) is not replacement:
                continue  # the program has replaced it, too: its function stays, and calls ours, which calls the original
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)  # it was inherited


def importing() -> None:
    """To be called before each import: what is new belongs to the module that imports."""
    if _state.lowest_free >= 0:
        _note_new(lambda: place(False))


def imported(name: str) -> None:
    """To be called after each import: what is new belongs to this module."""
    if _state.lowest_free < 0:
        return
    _watch_module(name)
    _note_new(lambda: _shown(getattr(sys.modules.get(name), "__file__", None) or ""))


def place(has_line: bool = True) -> str:
    """The innermost frame that is neither ours nor of the standard library nor of a package. If there is none: the innermost
    one of a package."""
    of_package = ""
    for frame in program_frames():
        file = frame.f_code.co_filename
        found = f"{_shown(file)}:{frame.f_lineno}" if has_line else _shown(file)
        if not is_of_package(frame):
            return found
        of_package = of_package or found
    return of_package


def program_frames() -> Iterator[FrameType]:
    """The frames that are neither ours nor of the standard library, the innermost first."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", _OWN)) and (is_of_package(frame) or not file.startswith(_STANDARD)):
            yield frame
        frame = frame.f_back


def is_of_package(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _PACKAGES)


def library() -> str:
    """The module of the innermost frame that is neither ours nor one of those that connect for others. It may be the program's
    own, and libraries may be in the program's folder."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if not (file.startswith(("<", _OWN)) or name in _CONNECT_FOR_OTHERS or name.startswith("asyncio.")):
            return name
        frame = frame.f_back
    return ""


def _shown(file: str) -> str:
    """Relative to the entry of `sys.path` that contains it."""
    roots = [root for root in sys.path if root and file.startswith(root.rstrip(os.sep) + os.sep)]
    return os.path.relpath(file, max(roots, key=len)) if roots else file


def _replace(owner: Any, name: str, replacement: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name), replacement, name in vars(owner)))
    setattr(owner, name, replacement)


def _after(original: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    """A method that calls the original and then `note`, also if the original raises: a connection may be in progress."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            if _state.lowest_free >= 0:
                try:
                    note(self)
                except Exception:  # a note is never worth an error in user code
                    pass

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        value = getattr(original, name, None)
        if value is not None:
            setattr(method, name, value)
    method.__wrapped__ = original  # type: ignore[attr-defined]  # for inspect.signature
    return method


def _socket_used(name: str) -> Callable[[Any], None]:
    def note(used: Any) -> None:
        link = f"socket:[{os.fstat(used.fileno()).st_ino}]"
        if name == "bind":
            bound.add(link)
        descriptors[link] = place()
        if name.startswith("connect"):
            libraries[link] = library()

    return note


def _socketpair(original: Callable[..., Any]) -> Callable[..., Any]:
    def socketpair(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if _state.lowest_free >= 0:
            first, second = (os.fstat(one.fileno()).st_ino for one in made)
            pairs.add((first, second))
            descriptors[f"socket:[{first}]"] = descriptors[f"socket:[{second}]"] = place()
        return made

    return socketpair


def _thread_started(thread: Any) -> None:
    if thread.native_id is not None:
        threads[thread.native_id] = place()


def _postgres_connected(connection: Any) -> None:
    """psycopg 3: what it calls before is in machine code."""
    _note_connection(connection.pgconn.socket, "psycopg")


def _psycopg2_connects(original: Callable[..., Any]) -> Callable[..., Any]:
    def connect(*args: Any, **kwargs: Any) -> Any:
        connection = original(*args, **kwargs)
        if _state.lowest_free >= 0:
            try:
                _note_connection(connection.fileno(), "psycopg2")
            except Exception:  # a note is never worth an error in user code
                pass
        return connection

    return connect


def _note_connection(number: int, name: str) -> None:
    link = os.readlink(f"/proc/self/fd/{number}")
    descriptors[link], libraries[link] = place(), name


def _process_started(process: Any) -> None:
    if process.pid is not None:
        processes[process.pid] = where = place()
        for stream in (getattr(process, name, None) for name in ("stdin", "stdout", "stderr")):
            if stream is not None:
                descriptors[os.readlink(f"/proc/self/fd/{stream.fileno()}")] = where


# Modules that may be loaded later: the class, the method after which the object has what is noted, and the note.
_LATER: Dict[str, Tuple[str, str, Callable[[Any], None]]] = {
    "subprocess": ("Popen", "__init__", _process_started),
    "multiprocessing.process": ("BaseProcess", "start", _process_started),
    "psycopg": ("BaseConnection", "__init__", _postgres_connected),
}


def _watch_module(name: str) -> None:
    if name in _LATER and name in sys.modules:
        kind, method, note = _LATER[name]
        owner = getattr(sys.modules[name], kind, None)
        if owner is not None and not any(one[0] is owner for one in _replaced):
            _replace(owner, method, _after(getattr(owner, method), note))
    elif name == "psycopg2" and hasattr(sys.modules.get(name), "_connect"):
        module = sys.modules[name]
        if not any(one[0] is module for one in _replaced):
            _replace(module, "_connect", _psycopg2_connects(module._connect))


def _lowest_free() -> int:
    try:
        number = os.dup(1)
    except OSError:
        return 0  # all are in use, or there is no log: nothing new will be noticed
    posix.close(number)
    return number


def _note_new(where: Callable[[], str]) -> None:
    """Notes the descriptors between the previously lowest free one and the one that is the lowest now."""
    lowest = _lowest_free()
    for number in range(_state.lowest_free, lowest):
        try:
            descriptors.setdefault(os.readlink(f"/proc/self/fd/{number}"), where())
        except OSError:
            pass
    _state.lowest_free = lowest
