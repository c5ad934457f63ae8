"""The template's inner loop in machine code: `crates/base/sys/native/fork_server.c`, which explains the reasons.

This file is the ctypes side. If the shared object is missing, or was built for another machine, `load` returns None, and
`template.py` serves in Python. The library is called with the interpreter's lock held, because a forked child needs it held.
"""

from __future__ import annotations

import ctypes
import os

from .. import FOLDER, kernel
from ..randomness import entropy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

    from ..spec import TemplateSpec

    Become = Callable[[int, int, str], None]

LIBRARY = "fork_server.so"

CLOSED, MESSAGE, CHILD, REFUSED, BROKEN = range(5)
# The step in which a child failed, by `enum step`.
STEPS = (
    "",
    "begin a process group",
    "take the log",
    "enter the cgroup",
    "enter the namespace",
    "change the directory",
    "drop capabilities",
    "install the filter",
    "get randomness",
    "make the descriptors of the event loop",
)

MESSAGE_LEN_MAX = 64 * 1024
_FDS_MAX = 16
_CHILDREN_MAX = 8192
_REGIONS_MAX = 4
_SPANS_MAX = 64
_LOOP_FDS = 4

# The descriptor of a child's channel. The template chooses it, so that it can create the object for it. It is this number, or a
# higher one if user code has opened many descriptors: above all that the template has open and receives with a request.
_CHANNEL_FD = 99
_CHANNEL_DISTANCE = 2 * _FDS_MAX


class _Child(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_int32), ("has_old_pages", ctypes.c_uint32), ("id", ctypes.c_uint64)]


class _Region(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("len", ctypes.c_uint64)]


class _Server(ctypes.Structure):
    """`struct fork_server`, field by field."""

    _fields_ = [
        ("fork", ctypes.c_void_p),
        ("after_fork", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
        ("loop", ctypes.py_object),
        ("directory", ctypes.c_char_p),
        ("filter", ctypes.c_void_p),
        ("filter_len", ctypes.c_uint64),
        ("bounding", ctypes.c_uint64),
        ("control", ctypes.c_int32),
        ("signals", ctypes.c_int32),
        ("message", ctypes.c_void_p),
        ("message_max", ctypes.c_uint64),
        ("children", ctypes.c_void_p),
        ("regions", _Region * _REGIONS_MAX),
        ("region_count", ctypes.c_uint64),
        ("spans", _Region * _SPANS_MAX),
        ("span_count", ctypes.c_uint64),
        ("child_count", ctypes.c_uint64),
        ("old_page_children", ctypes.c_uint64),
        ("old_pages_len", ctypes.c_uint64),
        ("channel_at", ctypes.c_int32),
        ("event_loop", ctypes.c_int32 * _LOOP_FDS),
        ("message_len", ctypes.c_uint64),
        ("fds", ctypes.c_int32 * _FDS_MAX),
        ("fd_count", ctypes.c_uint32),
        ("channel", ctypes.c_int32),
        ("forked_ns", ctypes.c_uint64),
        ("sandboxed_ns", ctypes.c_uint64),
        ("step", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("signal_mask", ctypes.c_uint64),
        ("in_own_pid_namespace", ctypes.c_uint8),
        ("says_ready", ctypes.c_uint8),
        ("has_event_loop", ctypes.c_uint8),
    ]


def load() -> Optional[ctypes.PyDLL]:
    """Loads the library from the folder of the package. The first template loads it once; its children have it mapped."""
    path = os.path.join(os.path.dirname(FOLDER), LIBRARY)
    try:
        library = ctypes.PyDLL(path)
    except OSError:
        return None
    for function in (library.pilot_serve, library.pilot_watch, library.pilot_unwatch):
        function.argtypes = (ctypes.c_void_p,)
    library.pilot_unwatch.restype = None
    library.pilot_track.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64)
    return library


class ForkServer:
    """The loop of one template. Everything that a child needs is prepared here, before the first fork."""

    def __init__(self, library: ctypes.PyDLL, control: int, spec: Optional[TemplateSpec], bounding: List[int]) -> None:
        self._library = library
        self._message = ctypes.create_string_buffer(MESSAGE_LEN_MAX)
        self._children = (_Child * _CHILDREN_MAX)()
        self._directory = None if spec is None or spec.cwd is None else os.fsencode(spec.cwd)
        self._filter = None if spec is None else spec.filter
        server = _Server()
        server.fork = kernel.address_of(ctypes.CDLL(None).fork)
        server.after_fork = kernel.address_of(ctypes.pythonapi.PyOS_AfterFork_Child)
        server.call = kernel.address_of(ctypes.pythonapi.PyObject_CallNoArgs)
        server.directory = self._directory
        if self._filter is not None:
            server.filter, server.filter_len = self._filter.instructions()
        server.bounding = sum(1 << capability for capability in bounding)
        server.control = control
        server.message = ctypes.addressof(self._message)
        server.message_max = MESSAGE_LEN_MAX
        server.children = ctypes.addressof(self._children)
        server.in_own_pid_namespace = 1
        server.channel_at = self.channel_fd = _channel_fd()
        self._server = server
        self._loops: Optional[Tuple[Callable[[], None], Callable[[], None]]] = None
        self._address = ctypes.addressof(server)
        self._before_fork = ctypes.pythonapi.PyOS_BeforeFork
        self._after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
        for function in (self._before_fork, self._after_fork_parent):
            function.restype = None
        kernel.checked_errno(library.pilot_watch(self._address), "signalfd")

    def serve(self, become: Become, become_after_entropy: Optional[Become] = None) -> int:
        """Forks until there is something for the caller. In a child that does not run a loop of `say_ready`, `become` is called
        with its times and with the error, if there was one: the second one, if given, in children that need `entropy.in_child`.
        It returns only in a child that inherits an event loop."""
        server = self._server
        server.region_count = 0
        for address, length in entropy.before_native_forks()[:_REGIONS_MAX]:
            server.regions[server.region_count] = _Region(address, length)
            server.region_count += 1
        has_work = entropy.has_work()
        if self._loops is not None:
            server.loop = self._loops[has_work]
        if has_work and become_after_entropy is not None:
            become = become_after_entropy
        self._before_fork()
        result: int = self._library.pilot_serve(self._address)
        if result == CHILD:
            become(server.forked_ns, server.sandboxed_ns, "")
            return result
        if result == REFUSED:
            become(server.forked_ns, server.sandboxed_ns, f"cannot {STEPS[server.step]}: {os.strerror(server.error)}")
        self._after_fork_parent()
        return result

    def make_huge(self, spans: List[Tuple[int, int]]) -> None:
        """The loop makes this memory huge pages while there are no requests."""
        largest = sorted(spans, key=lambda span: span[1])[-_SPANS_MAX:]
        for index, span in enumerate(largest):
            self._server.spans[index] = _Region(*span)
        self._server.span_count = len(largest)

    def message(self) -> Tuple[bytes, List[int]]:
        """The message of `MESSAGE`: bytes that are not a native request, and descriptors, which the caller now owns."""
        server = self._server
        text = self._message.raw[: server.message_len]
        fds = list(server.fds[: server.fd_count])
        server.fd_count = 0
        return text, fds

    def say_ready(self) -> None:
        """Children must send READY before the interpreter runs, because no user code runs before READY."""
        self._server.says_ready = 1

    def call_loop(self, loop: Callable[[], None], loop_after_entropy: Callable[[], None]) -> None:
        """After READY, children call a loop, which ends the process: the second one if they need `entropy.in_child` first."""
        self._loops = (loop, loop_after_entropy)

    def renew_event_loop(self, descriptors: Tuple[int, int, int, int]) -> None:
        """Children must make the descriptors of an event loop anew: an epoll instance, the same again, and the two sockets that
        wake the loop. The first of these and the channel are then watched."""
        self._server.event_loop = descriptors
        self._server.has_event_loop = 1

    def track(self, pid: int, fork_id: int) -> None:
        """The loop must reap and report this child, which the caller forked itself."""
        if not self._library.pilot_track(self._address, pid, fork_id):
            raise OSError(f"a template has at most {_CHILDREN_MAX} children")

    def is_child(self) -> bool:
        """Whether this process was forked by the loop."""
        return bool(self._server.forked_ns)

    def leave(self) -> None:
        """Called in a child that the caller forked itself."""
        self._library.pilot_unwatch(self._address)

    def is_elsewhere(self) -> bool:
        """Whether the next child would be in another PID namespace than the template."""
        return not self._server.in_own_pid_namespace

    def entered_pid_namespace(self, is_own: bool) -> None:
        """The caller has changed the PID namespace of future children."""
        self._server.in_own_pid_namespace = 1 if is_own else 0


def has_room() -> bool:
    """Whether the number of a child's channel is below the limit of open files, which user code can lower."""
    limit = os.sysconf("SC_OPEN_MAX")  # RLIMIT_NOFILE. -1: there is none
    return limit < 0 or _channel_fd() < limit


def _channel_fd() -> int:
    try:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:
        return _CHANNEL_FD
    return max(_CHANNEL_FD, highest + _CHANNEL_DISTANCE)
