"""What a fork does not carry and is not a descriptor: threads, processes, timers, locked memory, devices. It is reported at
the deployment. Interval timers are set again in each worker, and a working directory that the import has chosen is entered."""

from __future__ import annotations

import os
import re
import signal
import threading
from time import monotonic, sleep  # before user code replaces them, as gevent does

from . import forkable, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Tuple

    Say = Callable[[str, str, str], None]

_TIMERS = {"ITIMER_REAL": signal.ITIMER_REAL, "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL, "ITIMER_PROF": signal.ITIMER_PROF}
_IN_A_WORKER = "an after_restore hook"
# How long the processes of an import may take, all together, to begin their programs.
_EXECVE_S_MAX = 0.1


class _State:
    def __init__(self) -> None:
        self.timers: Dict[int, Tuple[float, float]] = {}
        self.first_directory = ""  # before the imports
        self.directory = ""  # empty: the imports have not changed it


_state = _State()


def begin() -> None:
    """Before the imports of a template."""
    _state.first_directory = _directory()


def threads(say: Say) -> None:
    """Only called if there are any."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    counts: Dict[Tuple[str, str], int] = {}
    for name in sorted(_listed("/proc/self/task"), key=int):
        number = int(name)
        if number != os.getpid():
            command = _text(f"/proc/self/task/{name}/comm").strip()
            if command not in forkable.LEFT_BEHIND:
                key = (opened.threads.get(number, ""), known.get(number) or command)
                counts[key] = counts.get(key, 0) + 1
    for (where, name), count in counts.items():
        what = f"started the thread {name}" if count == 1 else f"started {count} threads named {name}"
        say(where, f"{what} at import", "a process with threads is not forked: each worker imports the module itself")


def find(say: Say, links: List[str]) -> None:
    """In a template with one thread, after the imports. `links` are the targets of the user's descriptors."""
    _processes(say)
    _timers(say)
    directory = _directory()
    _state.directory = directory if directory != _state.first_directory else ""
    count = len(re.findall(r"^ID:", _text("/proc/self/timers"), re.MULTILINE))
    if count:
        say("", f"created {count} POSIX timers at import", f"they do not run in workers: create them in {_IN_A_WORKER}")
    locked = re.search(r"^VmLck:\s*([1-9]\d*) kB", _text("/proc/self/status"), re.MULTILINE)
    if locked:
        say("", f"locked {locked.group(1)} kB of memory at import", f"it is not locked in workers: lock it in {_IN_A_WORKER}")
    devices = sorted({link for link in links if link.startswith("/dev/nvidia")})
    if devices:
        say("", f"opened a CUDA context at import ({devices[0]})", f"it does not work in a worker: create it in {_IN_A_WORKER}")


def has_work() -> bool:
    return bool(_state.timers or _state.directory)


def in_child() -> None:
    if _state.directory:
        try:
            os.chdir(_state.directory)  # the isolation has changed to the directory of the code
        except OSError:
            pass  # the import has changed to a folder that only its own sandbox has
    for which, (first, interval) in _state.timers.items():
        signal.setitimer(which, first, interval)


def _processes(say: Say) -> None:
    children = [int(word) for word in _text(f"/proc/self/task/{os.getpid()}/children").split()]
    deadline = monotonic() + _EXECVE_S_MAX
    for number in children:
        command = _command(number, deadline)
        if not _is_alive(number) or "multiprocessing.resource_tracker" in command:
            continue  # ended; or the tracker, which is made to be used by children
        what = f"started the process {command or number} at import"
        say(opened.processes.get(number, ""), what, "it runs once; to a worker it reads as ended, and its pipes are closed")


def _command(number: int, deadline: float) -> str:
    """The command line of a process. It is empty for a moment in execve(2), which closes descriptors before it sets up the new
    program. `subprocess` waits only for the former, and nothing tells of the latter. A process may also empty it for good."""
    while True:
        command = _text(f"/proc/{number}/cmdline").replace("\0", " ").strip()
        if command or not _is_alive(number) or monotonic() >= deadline:
            return command
        sleep(0.005)


def _is_alive(number: int) -> bool:
    state = _text(f"/proc/{number}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def _timers(say: Say) -> None:
    """A timer would fire in the template, where nothing may run. It is stopped there, and starts in each worker."""
    for name, which in _TIMERS.items():
        first, interval = signal.getitimer(which)
        if first:
            signal.setitimer(which, 0)
            _state.timers[which] = (first, interval)
            say("", f"set the timer {name} at import", f"each worker starts it with the {first:.1f} s that remained")


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed


def _listed(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # the kernel does not have it, or the process has ended
