"""What happened in a run: every call with its outcome, every disturbance, and every broken promise. Used from many threads."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

# A daemon that was killed shows as an error of a connection a moment earlier or later than it was noted.
EDGE_S = 0.5
BROKEN_MAX = 50


@dataclass
class Span:
    """Something that lasts. `until` is None as long as it does."""

    what: str
    began: float
    until: float | None = None


@dataclass
class Ledger:
    """All of a run. Times are of time.monotonic()."""

    began: float = field(default_factory=time.monotonic)
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Span] = field(default_factory=list)
    downtimes: list[Span] = field(default_factory=list)
    accepted: dict[str, tuple[str, str]] = field(default_factory=dict)  # request id → function, token
    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # idempotency key → request ids
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def now(self) -> float:
        return time.monotonic() - self.began

    def count(self, client: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[client][outcome] += 1

    def breaks(self, promise: str, how: str) -> None:
        """A promise is broken. It is printed at once, so that the daemon's log can be read beside it."""
        with self._lock:
            told = self.broken[promise]
            if len(told) < BROKEN_MAX:
                told.append(how)
                print(f"{self.now():8.2f}  BROKEN {promise}: {how}", flush=True)

    def accepts(self, request: str, function: str, token: str) -> None:
        with self._lock:
            self.accepted[request] = (function, token)

    def keyed(self, key: str, request: str) -> None:
        with self._lock:
            self.keys[key].add(request)

    def fault(self, what: str) -> Span:
        span = Span(what, time.monotonic())
        with self._lock:
            self.faults.append(span)
        print(f"{self.now():8.2f}  {what}", flush=True)
        return span

    def goes_down(self, why: str) -> Span:
        span = Span(why, time.monotonic())
        with self._lock:
            self.downtimes.append(span)
        return span

    def was_down(self, since: float, until: float) -> bool:
        """Whether the daemon was down, or came up, in this time."""
        return self._overlaps(self.downtimes, since, until, EDGE_S)

    def was_disturbed(self, since: float, until: float, edge_s: float) -> bool:
        return self._overlaps(self.faults, since, until, edge_s) or self.was_down(since, until)

    def has_no_disk(self, since: float) -> bool:
        """Whether the disk was full or failing since then."""
        with self._lock:
            disks = [span for span in self.faults if span.what.startswith(("the disk is full", "each synchronisation fails"))]
        return self._overlaps(disks, since, time.monotonic(), EDGE_S)

    def _overlaps(self, spans: list[Span], since: float, until: float, edge_s: float) -> bool:
        with self._lock:
            return any(span.began <= until + edge_s and (span.until is None or span.until >= since - edge_s) for span in spans)
