"""What a daemon has on the machine: its processes and what they are, descriptors, control groups, mounts, files."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Processes that a daemon leaves become children of this process, so that they are seen (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


class Children:
    """The programs that this process has started itself, and the orphans that it must reap.

    As long as an orphan is not reaped, the first process of its PID namespace cannot end (pid_namespaces(7)).
    """

    def __init__(self) -> None:
        self._own: set[int] = set()
        # Guards the set, so that no program ends before it is known.
        self._lock = threading.Lock()

    def start(self, command: list[str | Path], **options: Any) -> subprocess.Popen[Any]:
        with self._lock:
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
            self._own.add(started.pid)
        return started

    def forget(self, ended: subprocess.Popen[Any]) -> None:
        with self._lock:
            self._own.discard(ended.pid)

    def reap(self) -> None:
        with self._lock:
            orphans = [one for one in processes().values() if one.parent == os.getpid() and one.pid not in self._own]
            for one in orphans:
                if one.state == "Z":
                    os.waitpid(one.pid, os.WNOHANG)

    def reap_always(self) -> None:
        """Starts a thread that reaps as long as this process runs."""

        def run() -> None:
            while True:
                self.reap()
                time.sleep(0.2)

        threading.Thread(target=run, daemon=True).start()


@dataclass(frozen=True)
class Process:
    """A process, from /proc."""

    pid: int
    parent: int
    state: str
    began: int
    program: str

    def is_alive(self) -> bool:
        return self.state not in "ZX"


def process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        # A zombie has no program any more, and init's of others cannot be read.
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except FileNotFoundError:
        program = ""
    except OSError:
        return None
    try:
        fields = text.rpartition(")")[2].split()
    except UnboundLocalError:
        return None
    # Fields 3, 4 and 22 of proc_pid_stat(5).
    return Process(pid, int(fields[1]), fields[0], int(fields[19]), program)


def processes() -> dict[int, Process]:
    found = (process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {one.pid: one for one in found if one is not None}


def descendants(ancestor: int) -> list[Process]:
    """All that live, in the order of their process ids."""
    everybody = processes()
    below = {ancestor}
    # Ids wrap around, so that a child may have a lower one than its parent.
    while True:
        more = {one.pid for one in everybody.values() if one.parent in below} - below
        if not more:
            break
        below |= more
    return sorted((everybody[pid] for pid in below - {ancestor} if everybody[pid].is_alive()), key=lambda one: one.pid)


def by_role(daemon: int) -> dict[str, list[Process]]:
    """The processes below a daemon by what they do, as far as the tree shows it.

    An interpreter without children is taken for a worker, also if it is a template that has no worker yet.
    """
    below = descendants(daemon)
    own = process(daemon)
    pilot = own.program if own else "pilot"
    known = {one.pid: one for one in below}
    parents = {one.parent for one in below}
    roles: dict[str, list[Process]] = {role: [] for role in ("spawner", "init", "leaf", "template", "worker", "program")}
    for one in below:
        above = known.get(one.parent)
        if one.parent == daemon:
            role = "spawner"
        elif one.program == pilot:
            # Inits of sandboxes that wait, helpers, and holders of inputs have no children.
            role = "init" if one.pid in parents else "leaf"
        elif not one.program.startswith(("python", "node")):
            role = "program"
        elif one.pid in parents or (above is not None and above.program == pilot and one.program.startswith("python")):
            role = "template"
        else:
            role = "worker"
        roles[role].append(one)
    return roles


def descriptors(pid: int) -> Counter[str]:
    """Open descriptors by what they are: sockets, pipes, files (by path)."""
    kinds: Counter[str] = Counter()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if target.startswith("/sys/fs/cgroup/"):
            # The names of groups are random.
            target = f"control group: {os.path.basename(target)}"
        kinds[re.sub(r"\d+|pilotlightd-.*", "N", target)] += 1
    return kinds


def groups(daemons: set[int]) -> list[str]:
    """Control groups of daemons with these process ids, in all hierarchies."""
    found = []
    for folder, folders, _ in os.walk("/sys/fs/cgroup"):
        for name in folders:
            matched = re.match(r"pilotlightd-(\d+)-", name)
            if matched and int(matched.group(1)) in daemons:
                found.append(os.path.join(folder, name))
        folders[:] = [name for name in folders if not name.startswith("pilotlightd-")]
    return sorted(found)


def mounts() -> list[str]:
    """Places where something is mounted, in this mount namespace."""
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def files(folder: Path) -> list[str]:
    """All paths below, without what is meant to grow: logs, usage records, records of destinations. SQLite makes and removes files."""
    return sorted(_files(folder, folder))


def _files(folder: Path, root: Path) -> Iterator[str]:
    for entry in os.scandir(folder):
        name = os.path.relpath(entry.path, root)
        if entry.is_dir(follow_symlinks=False):
            if name not in ("logs", "usage", "destinations", "lost+found"):
                yield name + "/"
                yield from _files(Path(entry.path), root)
        elif not name.endswith(("-wal", "-shm")):
            yield name
