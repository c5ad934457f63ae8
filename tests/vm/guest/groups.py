"""The machine's control groups, as the kernel shows them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pilot_daemon import PATIENCE

MOUNT = Path("/sys/fs/cgroup")
# The machine runs on User Mode Linux.
IS_UML = "User Mode Linux" in Path("/proc/cpuinfo").read_text()
T = TypeVar("T")


def group_of(process: int) -> Path:
    """The control group of a process."""
    (line,) = [line for line in Path(f"/proc/{process}/cgroup").read_text().splitlines() if line.startswith("0::")]
    return MOUNT / line.removeprefix("0::/")


def daemons_groups() -> list[Path]:
    """The folders of all daemons, also of those that have ended."""
    found = []
    for folder, inner, _ in os.walk(MOUNT):
        found += [Path(folder, name) for name in inner if name.startswith("pilotlightd-")]
    return found


def lacking() -> set[str]:
    """What the kernel of the machine cannot have, as `pilot doctor` names it."""
    # Linux 6.16 or newer has it.
    names = {"descriptors from functions"}
    if IS_UML:
        # Debian builds it without CONFIG_CHECKPOINT_RESTORE.
        names.add("process ids")
    return names


def folder_of(daemon: int) -> Path:
    """The folder in which this daemon limits its functions."""
    (folder,) = [group for group in daemons_groups() if group.name.startswith(f"pilotlightd-{daemon}-")]
    return folder


def processes_below(group: Path) -> set[int]:
    """The processes of a group and of the groups in it. Groups may end meanwhile."""
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return found


def with_limit(folder: Path, memory_mb: int) -> list[Path]:
    """The groups in a daemon's folder that have processes and this memory limit."""
    groups = [path for path in folder.iterdir() if path.is_dir() and (path / "memory.max").exists()]
    limited = [group for group in groups if (group / "memory.max").read_text().strip() == str(memory_mb << 20)]
    return [group for group in limited if (group / "cgroup.procs").read_text()]


def eventually(what: str, look: Callable[[], T], within_s: float = 60) -> T:
    deadline = time.monotonic() + within_s * PATIENCE
    while True:
        if found := look():
            return found
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)
