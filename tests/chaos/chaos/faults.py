"""Carries out the faults of a plan, and ends each of them in time."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .client import Connection
from .daemon import Daemon
from .ledger import Ledger
from .machine import Process, by_role, process
from .plan import Fault
from .servers import Relay
from .shim import Shim

Heal = Callable[[], None]


class Faults:
    """The conductor: one thread, the caller's."""

    def __init__(self, daemon: Daemon, relay: Relay, shim: Shim, ledger: Ledger) -> None:
        self._daemon, self._relay, self._shim, self._ledger = daemon, relay, shim, ledger
        self._filler = daemon.data / "filler"
        self._hogs: list[threading.Thread] = []
        self.done: dict[str, int] = {}
        self.skipped: dict[str, str] = {}

    def run(self, faults: list[Fault]) -> None:
        """Carries out all faults. Returns when the last one is over."""
        began = time.monotonic()
        order = itertools.count()
        due: list[tuple[float, int, Fault | Heal]] = [(began + fault.at_s, next(order), fault) for fault in faults]
        heapq.heapify(due)
        while due:
            at, _, what = heapq.heappop(due)
            time.sleep(max(0, at - time.monotonic()))
            if not isinstance(what, Fault):
                what()
            elif (heal := self._carry_out(what)) is not None:
                heapq.heappush(due, (time.monotonic() + what.lasts_s, next(order), heal))
        for hog in self._hogs:
            hog.join(60)

    def _carry_out(self, fault: Fault) -> Heal | None:
        """Begins a fault. Returns what ends it, if it does not end by itself."""
        carried = {
            "kill": self._kill,
            "stop": self._stop,
            "daemon-kill": self._kill_daemon,
            "daemon-stop": self._stop_daemon,
            "disk-full": self._fill_disk,
            "disk-slow": self._slow_disk,
            "disk-error": self._fail_disk,
            "clock": self._step_clock,
            "memory": self._take_memory,
            "store": self._disturb_store,
        }[fault.kind]
        if fault.kind in ("disk-slow", "disk-error", "clock") and self._shim.reason:
            self.skipped[fault.kind] = self._shim.reason
            return None
        self.done[fault.kind] = self.done.get(fault.kind, 0) + 1
        return carried(fault)

    def _victim(self, fault: Fault) -> Process | None:
        roles = by_role(self._daemon.pid)
        found = roles[fault.role]
        return found[int(fault.pick * len(found))] if found else None

    def _kill(self, fault: Fault) -> None:
        victim = self._victim(fault)
        if victim is None:
            return
        span = self._ledger.fault(f"kill -9 of the {fault.role} {victim.pid} ({victim.program})")
        if fault.role == "spawner":
            self._daemon.expect_an_end("the spawner is killed")
        _signal(victim, signal.SIGKILL)
        span.until = time.monotonic()

    def _stop(self, fault: Fault) -> Heal | None:
        victim = self._victim(fault)
        if victim is None:
            return None
        what = f"stop of the {fault.role} {victim.pid} ({victim.program}) for {fault.lasts_s:.1f} s"
        span = self._ledger.fault(what)
        _signal(victim, signal.SIGSTOP)
        return self._over(span.what, lambda: _signal(victim, signal.SIGCONT))

    def _over(self, what: str, end: Heal) -> Heal:
        """What ends a fault and notes it."""
        span = self._ledger.faults[-1]

        def heal() -> None:
            end()
            span.until = time.monotonic()
            print(f"{self._ledger.now():8.2f}    over: {what}", flush=True)

        return heal

    def _kill_daemon(self, fault: Fault) -> None:
        span = self._ledger.fault(f"kill -9 of the daemon {self._daemon.pid}")
        self._daemon.kill()
        span.until = time.monotonic()

    def _stop_daemon(self, fault: Fault) -> Heal | None:
        victim = process(self._daemon.pid)
        if victim is None:
            return None
        span = self._ledger.fault(f"stop of the daemon {victim.pid} for {fault.lasts_s:.1f} s")
        _signal(victim, signal.SIGSTOP)
        return self._over(span.what, lambda: _signal(victim, signal.SIGCONT))

    def _fill_disk(self, fault: Fault) -> Heal:
        span = self._ledger.fault(f"the disk is full for {fault.lasts_s:.1f} s")
        block = bytes(1 << 16)
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while True:
                # Ends with ENOSPC; the last block may be a short one.
                file.write(block)
        return self._over(span.what, lambda: self._filler.unlink(missing_ok=True))

    def _slow_disk(self, fault: Fault) -> Heal:
        delay_ms = int(20 + fault.amount * 500)
        span = self._ledger.fault(f"each synchronisation takes {delay_ms} ms, for {fault.lasts_s:.1f} s")
        self._shim.sync(delay_ms=delay_ms)
        return self._over(span.what, self._shim.sync)

    def _fail_disk(self, fault: Fault) -> Heal:
        span = self._ledger.fault(f"each synchronisation fails with EIO, for {fault.lasts_s:.1f} s")
        self._shim.sync(fails=True)
        return self._over(span.what, self._shim.sync)

    def _step_clock(self, fault: Fault) -> Heal:
        # Not so far that accepted events become too old (max_age_s).
        offset_s = int((fault.amount - 0.5) * 7200)
        span = self._ledger.fault(f"the clock is off by {offset_s} s, for {fault.lasts_s:.1f} s")
        self._shim.clock(offset_s)
        return self._over(span.what, lambda: self._shim.clock(0))

    def _take_memory(self, fault: Fault) -> None:
        """Three invocations of a function that together take more than all functions may have."""
        self._ledger.fault(f"memory is short for {fault.lasts_s:.1f} s")
        span = self._ledger.faults[-1]
        event = json.dumps({"token": "hog", "mb": 250 + int(fault.amount * 100), "s": fault.lasts_s}).encode()

        def hog() -> None:
            with suppress(Exception):
                connection = Connection(self._daemon.address, 60)
                connection.ask("POST", "/2015-03-31/functions/hog/invocations", event)
                connection.close()
            span.until = time.monotonic()

        started = [threading.Thread(target=hog, daemon=True) for _ in range(3)]
        self._hogs += started
        for thread in started:
            thread.start()

    def _disturb_store(self, fault: Fault) -> Heal:
        span = self._ledger.fault(f"the network to the store: {fault.role} for {fault.lasts_s:.1f} s")
        self._relay.mode = fault.role

        def heal() -> None:
            self._relay.mode = "pass"

        return self._over(span.what, heal)


def _signal(victim: Process, number: signal.Signals) -> None:
    """Sends a signal, if this is still the same process. A pidfd cannot become another one's."""
    try:
        file = os.pidfd_open(victim.pid)
    except OSError:
        return
    try:
        found = process(victim.pid)
        if found is not None and found.began == victim.began:
            signal.pidfd_send_signal(file, number)
    except OSError:
        pass
    finally:
        os.close(file)


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            print(f"          given up after {seconds:.0f} s: {what}", flush=True)
            return False
        time.sleep(0.1)
    return True


def functions_folder(source: Path, home: Path) -> Path:
    """A copy of the functions, because the client `deploy` changes one of them."""
    folder = home / "functions"
    folder.mkdir()
    for name in ("app.py", "server.py", "index.js"):
        (folder / name).write_bytes((source / name).read_bytes())
    (folder / "deployed").mkdir()
    return folder
