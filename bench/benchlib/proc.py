"""Reads /proc: the memory of processes and their descendants, and how busy the machine's CPUs were.

PSS divides each page among the processes that map it. RSS counts it for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple


class Memory(NamedTuple):
    """Bytes. `pss_files` is the part of `pss` for pages of files."""

    pss: int
    rss: int
    pss_files: int


def memory(pids: Iterable[int]) -> Memory:
    """The sum over these processes. Processes that have ended count as zero."""
    found = {"Pss": 0, "Rss": 0, "Pss_File": 0}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            key, _, rest = line.partition(":")
            if key in found:
                found[key] += int(rest.split()[0]) * 1024
    return Memory(*found.values())


def tree(ancestor: int) -> list[int]:
    """The process with all its descendants."""
    return trees({ancestor})[ancestor]


def trees(ancestors: set[int]) -> dict[int, list[int]]:
    """Each ancestor with all its descendants, including itself."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: dict[int, list[int]] = {ancestor: [] for ancestor in ancestors}
    for pid in parents:
        above = pid
        while above in parents and above not in ancestors:
            above = parents[above]
        if above in ancestors:
            found[above].append(pid)
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of these processes so far, seconds. Processes that have ended count as zero."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_times() -> tuple[int, int]:
    """Ticks of all CPUs since the boot: idle, all."""
    with open("/proc/stat") as file:
        values = [int(value) for value in file.readline().split()[1:9]]
    return values[3] + values[4], sum(values)


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The share of the machine's CPUs that all processes used in between."""
    return 1 - (after[0] - before[0]) / max(1, after[1] - before[1])


def cpu_waits_s() -> float:
    """How long some process has waited for a CPU since the boot (pressure stall information); 0 if the kernel has no such data."""
    try:
        with open("/proc/pressure/cpu") as file:
            return int(file.readline().rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0
