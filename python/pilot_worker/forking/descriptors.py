"""Keeps what user code opened at import from being shared: by a fork, all workers would have the same open file descriptions.

`settle` runs in a template after its imports. It looks at every descriptor that user code left open:

- If a worker would miss a connection (`connections.py`), the template must not fork, and nothing is touched.
- What no worker can use is replaced once, in the template. A connected or listening socket, and a pipe to another process,
  become one whose peer has closed. So an answer cannot reach the wrong worker, and libraries connect again.
- What each worker needs for itself is made again in each child (`in_child`), at the same number: pairs of sockets or pipes,
  epolls, eventfds, timers, sockets for single messages, and files, whose position would be shared.

If nothing is open, which is the usual case, a worker does nothing. `fresh.py` makes descriptors, `sockets.py` knows sockets,
`unnamed.py` memory and files without a name, `leftovers.py` everything that is not a descriptor. In a template with several
threads nothing is touched, because it does not fork.
"""

from __future__ import annotations

import _socket
import gc
import os
import posix
import re
import stat
import sys

from .. import kernel
from ..sdk import hooks
from . import connections, databases, findings, forkable, leftovers, opened, sockets, unnamed
from .fresh import (
    ACCESS,
    Descriptor,
    Epoll,
    Fresh,
    Locks,
    duplicates,
    file_maker,
    identity,
    make_epolls,
    numbers,
    one_maker,
    pair_maker,
    warm_up,
    warm_up_epolls,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Identity = Tuple[int, int]

_HARMLESS_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/nvidia",
)  # CUDA: `leftovers.py`
_OF_LOG = (1, 2)
_HARMLESS = frozenset(("[pidfd]", "[bpf-map]", "[bpf-prog]"))


class _State:
    def __init__(self) -> None:
        self.has_work = False  # the one thing that a worker looks at
        self.ours: Dict[int, Identity] = {}
        self.inherited: Dict[int, Identity] = {}
        self.dead: Dict[int, Identity] = {}
        self.plan: List[Fresh] = []
        self.epolls: List[Epoll] = []
        self.locks: List[Locks] = []
        self.aside: List[Tuple[int, int]] = []
        self.findings: List[Dict[str, str]] = []
        self.must_not_fork = ""


_state = _State()


def has_work() -> bool:
    """Whether a worker must make something before user code runs."""
    return _state.has_work


def must_not_fork() -> str:
    """What the imports did that a forked worker would miss. Empty if the template may fork."""
    return _state.must_not_fork


def begin() -> None:
    """Before the imports of a template: what is open now, and is not of an upper template's imports, is ours."""
    leftovers.begin()
    inherited = {number: found for number in _state.inherited if (found := identity(number)) is not None}
    _state.inherited = inherited
    _state.ours = {number: found for number in numbers() if number not in inherited and (found := identity(number)) is not None}


def settle(threads: int) -> List[Dict[str, str]]:
    """After the imports of a template. Returns `findings` of the message `ready`: what was open and what is done about it."""
    report = findings.Report(_state.findings)
    if threads > 1:
        leftovers.threads(report.add)
        return report.rows()
    try:
        _settle(report)
    except Exception as error:  # a kind of descriptor that we do not know must not make the deployment fail
        _state.plan, _state.epolls, _state.locks, _state.aside, _state.has_work = [], [], [], [], False
        what = f"left descriptors that could not be examined: {type(error).__name__}: {error}"
        report.add("", what, "workers would share them, so each worker imports the module itself")
        _state.must_not_fork = findings.printable(what)
    return report.rows()


def _settle(report: findings.Report) -> None:
    if _user_descriptors():
        gc.collect()  # nothing may be closed after this, because its number could then be used for something else
    rows = _user_descriptors()
    lost = [
        (opened.descriptors.get(row.link, ""), what, why)
        for row, what, why in connections.lost([row for row in rows if _state.inherited.get(row.number) != row.identity])
    ]
    if _has_own_folders():
        # SQLite locks the index in shared memory, which only WAL has, all the time, also for a connection that only reads.
        with_index = unnamed.indexes_of_sqlite()
        lost += [
            ("", f"opened {path} in WAL mode at import", "SQLite would not know the worker's copy of its index again")
            for path in with_index
        ]
        lost += [
            ("", f"opened {path} of {kind} at import", f"{kind} would not know the worker's copy of it again")
            for path, kind in databases.opened(rows)
            if path not in with_index
        ]
    if not hooks.has_after_restore():
        # An environment keeps the process id of who opened it (lmdb.h, "Do not use it in a process that has been forked").
        # Without a slot of its own, each read of a worker would take another one, until there is none.
        lost += [
            ("", f"opened {path} of LMDB at import", "an environment of LMDB cannot be used after a fork")
            for path in unnamed.locks_of_lmdb(rows)
        ]
        lost += [("", what, "it refuses to work after a fork") for what in forkable.unusable()]
    for where, what, why in lost:
        report.add(where, what, f"{why}, so each worker imports the module itself")
    if lost:
        _, what, why = lost[0]
        _state.must_not_fork = findings.printable(f"{what} ({why})")
        return
    rows = _put_aside(rows, report)
    leftovers.find(report.add, [row.link for row in rows])  # before pipes are closed, at which processes may end
    plan = _Plan(rows, report)
    _close_http_connections()
    _state.plan = plan.fresh
    _state.epolls = plan.epolls
    _state.locks = plan.locks
    others = unnamed.has_work() or leftovers.has_work() or forkable.has_work()
    _state.has_work = bool(plan.fresh or plan.epolls or _state.aside or others)
    kept = [row.number for row in rows] + [number for number, _ in _state.aside]
    _state.inherited = {number: found for number in kept if (found := identity(number)) is not None}
    _state.findings = report.rows()
    warm_up(plan.fresh)
    warm_up_epolls(plan.epolls)


def in_child(is_template: bool = False) -> None:
    """In a child, after the isolation and before user code: makes what is only its own."""
    unnamed.in_child()
    for fresh in _state.plan:
        fresh.carry_out()
        if is_template and fresh.is_pair:
            opened.pairs.add(tuple((identity(group[0][0]) or (0, 0))[1] for group in fresh.groups))  # type: ignore[arg-type]
    for number, aside in _state.aside:
        os.dup2(aside, number)
        posix.close(aside)
    for locks in _state.locks:
        locks.take()
    if _state.epolls:
        make_epolls(_state.epolls)
    if not is_template:
        leftovers.in_child()
    if forkable.has_work():
        forkable.in_child()


def _put_aside(rows: List[Descriptor], report: findings.Report) -> List[Descriptor]:
    """A fork puts the log on descriptors 1 and 2. What the program has put there waits at another number meanwhile."""
    _state.aside = []
    replaced = [row for row in rows if row.number in _OF_LOG]
    rows = [row for row in rows if row.number not in _OF_LOG]
    for row in replaced:
        if stat.S_ISREG(row.mode) or stat.S_ISCHR(row.mode):
            _state.aside.append((row.number, os.dup(row.number)))
            rows.append(Descriptor(_state.aside[-1][1]))
        else:
            kind = row.link.partition(":")[0]
            report.add("", f"replaced descriptor {row.number} by a {kind} at import", "each worker has the log there")
    return rows


class _Plan:
    """Sorts the descriptors, replaces what is dead, and collects what each child makes."""

    def __init__(self, rows: List[Descriptor], report: findings.Report) -> None:
        self.fresh: List[Fresh] = []
        self.locks: List[Locks] = []
        self._report = report
        self._kept = _numbers_kept()
        rows = [row for row in rows if row.number not in self._kept]
        # Before anything is replaced, since the kernel then forgets what was registered.
        self.epolls = [Epoll(row) for row in rows if row.link == "anon_inode:[eventpoll]"]
        alive = [row for row in rows if _state.dead.get(row.number) != row.identity]
        files = duplicates([row for row in alive if stat.S_ISREG(row.mode)])
        unnamed.settle(files, report.add)
        self._sockets([row for row in alive if stat.S_ISSOCK(row.mode)])
        self._pipes([row for row in alive if row.link.startswith("pipe:")])
        self._files([group for group in files if not unnamed.covers(group[0].identity)])
        self._others([row for row in alive if row.link.startswith("anon_inode:")])
        for row in alive:
            if (stat.S_ISCHR(row.mode) or stat.S_ISBLK(row.mode)) and not row.link.startswith(_HARMLESS_DEVICES):
                self._say([row], f"opened {row.link} at import", "workers share it: open it in an after_restore hook")

    def _sockets(self, rows: List[Descriptor]) -> None:
        by_inode: Dict[int, List[Descriptor]] = {}
        for row in rows:
            by_inode.setdefault(row.identity[1], []).append(row)
        found: List[Tuple[sockets.Socket, List[Descriptor]]] = []
        for inode, group in sorted(by_inode.items()):
            try:
                found.append((sockets.Socket(group[0].number, inode), group))
            except OSError:
                continue
        paired: List[Tuple[sockets.Socket, List[Descriptor]]] = []
        # All are known before one is replaced, since closing a listening socket resets connections to it.
        for one, group in found:
            if one.kind == sockets.PAIRED:
                paired.append((one, group))
            elif one.kind == sockets.LISTENS:
                self._dead(group, one.type)
                self._say(
                    group,
                    f"listened on {one.described()} at import",
                    "each worker has a closed socket: listen in an after_restore hook",
                )
            elif one.kind == sockets.CONNECTED:
                self._dead(group, one.type)
                is_known = opened.libraries.get(group[0].link) in connections.RECONNECT
                instead = "each worker reconnects" if is_known else "it is closed in each worker, for the after_restore hook"
                self._say(group, f"opened {one.described()} at import", instead)
            else:
                self._own_socket(one, group)
        self._pairs(paired)

    def _own_socket(self, one: sockets.Socket, group: List[Descriptor]) -> None:
        """A socket without a connection, or for single messages: each worker gets one of its own."""
        bind_to: Any = None
        if one.is_bound():
            if one.kind == sockets.IDLE:
                self._dead(group, one.type)
                self._say(
                    group,
                    f"bound {one.described()} at import",
                    "each worker has a closed socket: bind in an after_restore hook",
                )
                return
            if one.family != _socket.AF_UNIX and one.has_ephemeral_port():
                if group[0].link in opened.bound and one.there is None:
                    bind_to = (one.here[0], 0, *one.here[2:])
                    self._say(group, f"bound {one.described()} at import", "each worker is bound to a port of its own")
            elif one.shared_port():
                bind_to = one.here
            else:
                self._say(group, f"bound {one.described()} at import", "each worker has a socket that is not bound")
        elif one.family == _socket.AF_NETLINK and one.here[1]:
            bind_to = (0, one.here[1])
        fresh = Fresh(f"socket {one.family}", [group], one.maker(bind_to, not group[0].flags & os.O_NONBLOCK))
        fresh.is_kept = one.family == _socket.AF_UNIX and one.there is not None and not one.is_bound()
        fresh.has_effects = bind_to is not None
        self.fresh.append(fresh)

    def _pairs(self, paired: List[Tuple[sockets.Socket, List[Descriptor]]]) -> None:
        """Both ends are in this process, as in the loops of asyncio: each worker gets such a pair. Otherwise the peer is in
        another process."""
        rest = list(paired)
        while rest:
            one, group = rest.pop(0)
            known = [other for other in rest if {(one.inode, other[0].inode), (other[0].inode, one.inode)} & opened.pairs]
            other = next(iter(known), None) or next((each for each in rest if sockets.are_paired(one, each[0])), None)
            if other is None:
                self._dead(group, one.type)
                self._say(
                    group, "kept one end of a socket pair at import", "each worker has a closed socket", is_to_process=True
                )
                continue
            rest.remove(other)
            to_first, to_second = sockets.pending(one), sockets.pending(other[0])
            blocking = [not rows[0].flags & os.O_NONBLOCK for rows in (group, other[1])]
            make = pair_maker(sockets.new_pair(one.type), to_first, to_second, blocking)
            fresh = Fresh("socket pair", [group, other[1]], make)
            fresh.is_pair = True
            self.fresh.append(fresh)

    def _pipes(self, rows: List[Descriptor]) -> None:
        by_inode: Dict[Identity, List[Descriptor]] = {}
        for row in rows:
            by_inode.setdefault(row.identity, []).append(row)
        for group in by_inode.values():
            reading = [row for row in group if row.flags & ACCESS == os.O_RDONLY]
            writing = [row for row in group if row.flags & ACCESS != os.O_RDONLY]
            if reading and writing:
                waiting = _waiting(reading[0].number, writing[0].number)
                blocking = [not ends[0].flags & os.O_NONBLOCK for ends in (reading, writing)]
                self.fresh.append(Fresh("pipe", [reading, writing], pair_maker(os.pipe, waiting, b"", blocking)))
                continue
            for row in group:
                ends = os.pipe()
                mine, other = ends if row in reading else ends[::-1]
                posix.close(other)
                self._replace(row, mine)
            self._say(group, "kept one end of a pipe at import", "each worker has a closed pipe", is_to_process=True)

    def _files(self, groups: List[List[Descriptor]]) -> None:
        for group in groups:
            row = group[0]
            name = row.link.rpartition("/")[2]
            locks = re.findall(r"^lock:.*?(POSIX|FLOCK|OFDLCK|OFD)", row.details, re.MULTILINE)
            if locks and row.own_path() and _has_own_folders():
                self.locks += [Locks(each) for each in group if "lock:" in each.details]
            elif any(lock != "POSIX" for lock in locks):
                # Another open file description could not get the lock that the template's has.
                self._say(group, f"locked {name} at import", "workers share the lock and the position in the file")
                continue
            elif locks:
                self._say(group, f"locked {name} at import", "each worker is without the lock")
            modes = {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK}
            if not os.access(f"/proc/self/fd/{row.number}", modes.get(row.flags & ACCESS, os.R_OK | os.W_OK)):
                self._say(
                    group, f"opened {name} at import", "it cannot be opened again: workers share the position in the file"
                )
                continue
            fresh = Fresh("file", [group], file_maker(row))
            fresh.is_kept = True
            fresh.has_effects = bool(locks)  # a close would release the template's
            self.fresh.append(fresh)

    def _others(self, rows: List[Descriptor]) -> None:
        """eventfd(2), timerfd_create(2), signalfd(2), inotify(7). Other kinds stay shared, and are reported."""
        for row in rows:
            kind = row.link.partition(":")[2]
            flags = row.flags & os.O_NONBLOCK | os.O_CLOEXEC
            make: Optional[Callable[[], int]] = None
            if kind == "[eventpoll]":
                continue  # see above
            if kind == "[eventfd]":
                make = kernel.eventfd_maker(row.detail("eventfd-count", 16), flags | row.detail("eventfd-semaphore"))
            elif kind == "[timerfd]":
                times = re.findall(r"^it_(?:value|interval): \((\d+), (\d+)\)", row.details, re.MULTILINE)
                value, interval = [(int(seconds), int(ns)) for seconds, ns in times] or [(0, 0), (0, 0)]
                if row.detail("ticks"):
                    value = (0, 1)  # it has expired and nobody has read it: it expires again at once
                make = kernel.timerfd_maker(row.detail("clockid"), flags, value, interval)
            elif kind == "[signalfd]":
                make = kernel.signalfd_maker(row.detail("sigmask", 16), flags)
            elif kind == "inotify":
                make = kernel.inotify_maker(flags)
                if "inotify wd:" in row.details:
                    self._say(
                        [row],
                        "watched files (inotify) at import",
                        "each worker watches nothing: watch in an after_restore hook",
                    )
            elif kind == "[io_uring]":
                self._dead([row], 0)
                self._say(
                    [row], "opened an io_uring at import", "it is closed in each worker: open it in an after_restore hook"
                )
            elif kind not in _HARMLESS:
                self._say([row], f"opened {kind.strip('[]')} at import", "workers share it: open it in an after_restore hook")
            if make is not None:
                self.fresh.append(Fresh(kind, [[row]], one_maker(make)))

    def _dead(self, group: List[Descriptor], type_: int) -> None:
        for row in group:
            self._replace(row, sockets.dead(type_))

    def _replace(self, row: Descriptor, number: int) -> None:
        """In the template, once. Children inherit it."""
        os.set_blocking(number, not row.flags & os.O_NONBLOCK)
        os.dup2(number, row.number, row.is_inheritable())
        posix.close(number)
        made = identity(row.number)
        assert made is not None, "it was made just now"
        _state.dead[row.number] = made

    def _say(self, group: List[Descriptor], what: str, instead: str, is_to_process: bool = False) -> None:
        if all(_state.inherited.get(row.number) == row.identity for row in group):
            return  # a template above has reported it
        where = next((opened.descriptors[row.link] for row in group if row.link in opened.descriptors), "")
        if is_to_process and where and where in opened.processes.values():
            return  # one row for the process is enough
        self._report.add(where, what, instead)


def _has_own_folders() -> bool:
    """Whether a worker's files in `/tmp` are copies, as in every sandbox."""
    return os.path.ismount("/tmp")


def _waiting(reading: int, writing: int) -> bytes:
    """The bytes that wait in a pipe, both ends of which are here. They are taken out and written again, because the filter of
    sandboxes refuses tee(2)."""
    count = sockets.unread(reading)
    text = b""
    while len(text) < count:
        text += os.read(reading, count - len(text))
    at = 0
    while at < count:
        at += os.write(writing, text[at:])
    return text


def _user_descriptors() -> List[Descriptor]:
    rows = []
    for number in numbers():
        found = identity(number)
        if found is None or _state.ours.get(number) == found:
            continue
        try:
            row = Descriptor(number)
        except OSError:
            continue
        if not row.flags & os.O_PATH:
            rows.append(row)
    return rows


def _numbers_kept() -> List[int]:
    """multiprocessing's pipe to its tracker of resources is made to be inherited. If it ended, the tracker would remove what
    the template has created."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    number = getattr(tracker, "_fd", None)
    return [number] if isinstance(number, int) else []


def _close_http_connections() -> None:
    """Calls `close` of the standard library's HTTP connections whose socket is dead now. Such an object connects again at the
    next request, but only if it knows that it is not connected. Other libraries notice it themselves."""
    kind = getattr(sys.modules.get("http.client"), "HTTPConnection", None)
    if kind is None or not _state.dead:
        return
    for one in gc.get_objects():
        try:
            # isinstance() would ask `__class__`, which runs code of lazy objects.
            if issubclass(type(one), kind) and one.sock is not None and one.sock.fileno() in _state.dead:
                one.close()
        except Exception:  # an object with surprises: it finds the dead socket itself
            pass
