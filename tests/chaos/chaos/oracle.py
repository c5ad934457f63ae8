"""What must be true when the faults are over. What is judged while they last is in load.py and daemon.py."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import Any

from . import machine
from .client import Connection, Nonsense
from .daemon import Daemon
from .faults import wait_for
from .ledger import Ledger
from .servers import Run, Witness

# All promises, in the order of the report.
PROMISES = [
    "it lives",
    "it starts again",
    "it stops",
    "every caller is answered",
    "every answer is one answer",
    "a connection ends with the daemon alone",
    "each answer is that of its request",
    "a cut answer is seen as one",
    "errors are documented ones",
    "the control API answers",
    "an acknowledged deployment stays",
    "an accepted event runs",
    "an event ends as documented",
    "a key is accepted once",
    "an event with a key is not repeated by itself",
    "an event is not repeated without a reason",
    "a destination gets every record",
    "it serves again",
    "descriptors are as before",
    "processes are as before",
    "nothing is left of it",
    "files are as before",
    "the clients work",
]

# An event may be repeated if something was disturbed since this long before its first run.
REASON_S = 8
CALM_S = 60
DRAINED_S = 180


def serves_again(daemon: Daemon, ledger: Ledger, functions: list[str], times: int = 20) -> None:
    """Soon after the last fault, every function answers, several times in a row."""
    for name in functions:
        last: list[str] = [""]

        def answers(name: str = name, last: list[str] = last) -> bool:
            last[0] = _calm_answer(daemon, name)
            return last[0] == ""

        if not wait_for(f"{name} serves again", answers, CALM_S):
            ledger.breaks("it serves again", f"{name}, {CALM_S} s after the last fault: {last[0]}")
            continue
        for turn in range(times):
            if not answers():
                ledger.breaks("it serves again", f"{name} failed again, in turn {turn}: {last[0]}")
                break


def _calm_answer(daemon: Daemon, name: str) -> str:
    """Calls a function. Returns what is wrong with the answer; empty: nothing."""
    event = json.dumps({"token": "calm", **EVENTS.get(name, {})}).encode()
    method, path = URLS.get(name, ("POST", f"/2015-03-31/functions/{name}/invocations"))
    try:
        connection = Connection(daemon.address, 60)
        try:
            answer = connection.ask(method, path, event if method == "POST" else b"")
        finally:
            connection.close()
    except (OSError, Nonsense) as error:
        return f"{type(error).__name__}: {error}"
    if answer.status == 200 and "x-amz-function-error" not in answer.headers:
        return ""
    return f"{answer.status}: {answer.body[:300]!r}"


EVENTS: dict[str, dict[str, Any]] = {name: {"key": "0"} for name in ("digest", "digest-stream", "node-digest")}
EVENTS["hog"] = {"mb": 1, "s": 0}
URLS = {
    "url": ("GET", "/fn/url/?token=calm"),
    "stream": ("GET", "/fn/stream/?token=calm&parts=3"),
    "server": ("POST", "/fn/server/"),
}


def events_end(daemon: Daemon, witness: Witness, ledger: Ledger) -> None:
    """Every accepted event ran, or is a dead letter that runs when it is repeated."""
    before = _drained(daemon, ledger, witness)
    runs = witness.seen()
    _keys_once(ledger, runs)
    _repeated(ledger, runs)
    letters = _dead_letters(daemon, ledger)
    print(f"          {len(ledger.accepted)} accepted, {len(letters)} dead letters: {Counter(_reasons(letters))}", flush=True)
    for letter in letters:
        function, condition = letter.get("function"), letter.get("condition")
        allowed = {"RetriesExhausted"} | ({"Interrupted"} if function == "note-once" else set())
        if condition not in allowed:
            ledger.breaks("an event ends as documented", f"a dead letter of {function}: {json.dumps(letter)[:400]}")
    dead = {str(letter.get("id")) for letter in letters}
    for request, (function, token) in ledger.accepted.items():
        if not runs.get(request, Run()).ends and request not in dead:
            ledger.breaks("an accepted event runs", f"{function} {token} {request}: neither an end nor a dead letter")
    if before and letters:
        status, found = daemon.api("POST", "/_pilot/v1/dlq/redrive", {})
        if status != 200:
            ledger.breaks("the control API answers", f"redrive: {status}: {found}")
        _drained(daemon, ledger, witness)
    again = witness.seen()
    for request, (function, token) in ledger.accepted.items():
        if not again.get(request, Run()).ends:
            ledger.breaks("an accepted event runs", f"{function} {token} {request}: not even when it was repeated")
        elif witness.tokens[request] != {token}:
            ledger.breaks("each answer is that of its request", f"{request} ran with {witness.tokens[request]}, not {token}")


def _reasons(letters: list[dict[str, Any]]) -> list[str]:
    return [f"{letter.get('function')} {letter.get('condition')}" for letter in letters]


def _drained(daemon: Daemon, ledger: Ledger, witness: Witness) -> bool:
    """Waits until nothing waits or runs."""
    found: list[Any] = []

    def is_empty() -> bool:
        try:
            status, page = daemon.api("GET", "/_pilot/v1/async")
        except OSError:
            return False
        found[:] = [status, page]
        return status == 200 and not rows(page)

    if wait_for("no event waits or runs", is_empty, DRAINED_S):
        return True
    ledger.breaks("an event ends as documented", f"events still wait after {DRAINED_S} s: {json.dumps(found)[:600]}")
    return False


def rows(page: Any) -> list[dict[str, Any]]:
    """The rows of a list of the control API."""
    if isinstance(page, dict):
        lists = [value for value in page.values() if isinstance(value, list)]
        return lists[0] if lists else []
    return page if isinstance(page, list) else []


def _dead_letters(daemon: Daemon, ledger: Ledger) -> list[dict[str, Any]]:
    status, page = daemon.api("GET", "/_pilot/v1/dlq?limit=1000")
    if status != 200:
        ledger.breaks("the control API answers", f"dead letters: {status}: {page}")
    return rows(page)


def _keys_once(ledger: Ledger, runs: dict[str, Run]) -> None:
    for key, requests in ledger.keys.items():
        if len(requests) > 1:
            ledger.breaks("a key is accepted once", f"{key} has the request ids {sorted(requests)}")
        for request in requests:
            begins = runs.get(request, Run()).begins
            if len(begins) > 1:
                times = [f"{begin - ledger.began:.2f}" for begin in begins]
                how = f"{key} {request} has run {len(begins)} times, at {times}"
                ledger.breaks("an event with a key is not repeated by itself", how)


def _repeated(ledger: Ledger, runs: dict[str, Run]) -> None:
    """An event that ran twice was in a disturbance: between the beginnings of its runs, or shortly before."""
    repeated = 0
    for request, run in runs.items():
        begins = sorted(run.begins)
        repeated += len(begins) > 1
        for first, second in zip(begins, begins[1:]):
            if not ledger.was_disturbed(first - REASON_S, second, 0):
                times = [f"{begin - ledger.began:.2f}" for begin in begins]
                ledger.breaks("an event is not repeated without a reason", f"{request} ran at {times}")
    print(f"          {repeated} events ran more than once, each in a disturbance or told above", flush=True)


def destination_has_all(daemon: Daemon, ledger: Ledger) -> None:
    """The file of a destination has a record of every success, and no line that is torn."""
    path = daemon.data / "destinations" / "note-to-file" / "done.jsonl"
    seen = set()
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            seen.add(json.loads(line)["requestContext"]["requestId"])
        except (ValueError, KeyError, TypeError):
            ledger.breaks("a destination gets every record", f"line {number} of {path.name} is no record: {line[:200]!r}")
    for request, (function, token) in ledger.accepted.items():
        if function == "note-to-file" and request not in seen:
            ledger.breaks("a destination gets every record", f"{token} {request} is not in {path.name}")


Held = tuple["Counter[str]", "Counter[str]"]


def held(daemon: Daemon) -> Held:
    """What the daemon has when no function has a worker: descriptors by kind, processes by role.

    Templates and workers count together. Templates whose parent was killed become children of their sandbox's init, where the tree
    cannot tell them from templates of an interpreter.
    """
    processes: Counter[str] = Counter()
    for role, found in machine.by_role(daemon.pid).items():
        processes["template or worker" if role in ("template", "worker") else role] += len(found)
    return machine.descriptors(daemon.pid), processes


def held_at_rest(daemon: Daemon) -> Held:
    """The most of each kind, until for three seconds there is no more of any: sandboxes for the next workers are made in advance, one after
    the other.
    """
    most = held(daemon)
    begun = unchanged_since = time.monotonic()
    while (now := time.monotonic()) - unchanged_since < 3 and now - begun < 30:
        time.sleep(0.2)
        together = tuple(known | seen for known, seen in zip(most, held(daemon)))
        if together != most:
            most, unchanged_since = (together[0], together[1]), time.monotonic()
    return most


def holds_as_before(daemon: Daemon, ledger: Ledger, before: Held, slack: int) -> None:
    """Nothing has grown. `slack`: descriptors and processes of each kind that may come and go with the moment."""
    grown: list[dict[str, tuple[int, int]]] = []

    def is_equal() -> bool:
        grown[:] = [
            {kind: (old[kind], count) for kind, count in new.items() if count > old[kind] + slack}
            for old, new in zip(before, held(daemon))
        ]
        return not any(grown)

    if not wait_for("descriptors and processes are as before", is_equal, 60):
        for promise, kinds in zip(("descriptors are as before", "processes are as before"), grown):
            if kinds:
                ledger.breaks(promise, ", ".join(f"{kind}: {old} before, {new} now" for kind, (old, new) in kinds.items()))


def nothing_is_left(daemon: Daemon, ledger: Ledger, mounts: list[str]) -> None:
    """After the daemon has ended: no process, no control group, no mount, no temporary file."""
    left: dict[str, list[str]] = {}

    def is_clean() -> bool:
        processes = [f"{one.pid} {one.program} {one.state}" for one in machine.descendants(os.getpid())]
        left.clear()
        left.update(
            processes=processes,
            groups=machine.groups(daemon.pids),
            mounts=sorted(set(machine.mounts()) - set(mounts)),
            temporary=[entry.name for entry in daemon.temporary.iterdir()],
        )
        return not any(left.values())

    if not wait_for("nothing is left", is_clean, 20):
        for what, found in left.items():
            if found:
                ledger.breaks("nothing is left of it", f"{what}: {found[:20]}")


def files_are_as_before(ledger: Ledger, before: list[str], now: list[str]) -> None:
    """The data directory has the same files, when versions that nobody uses have been removed."""
    # The code of a function that is deployed again has another name, and is not compiled if the disk is full then.
    compiled = "/__pycache__/"
    counted = [Counter(_shape(path) for path in paths if compiled not in path) for paths in (before, now)]
    if counted[0] != counted[1]:
        ledger.breaks("files are as before", f"new: {dict(counted[1] - counted[0])}; gone: {dict(counted[0] - counted[1])}")


def _shape(path: str) -> str:
    parts = path.split("/")
    if parts[0] in ("code", "environments", "layers") and len(parts) > 1 and parts[1]:
        parts[1] = "ID"
    return "/".join(parts)


def report(ledger: Ledger, done: dict[str, int], skipped: dict[str, str]) -> tuple[int, int]:
    """Prints what happened. Returns how many promises were kept and broken."""
    print("\ncalls")
    for client, outcomes in sorted(ledger.outcomes.items()):
        print(f"  {client:14} {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}")
    print("faults:", ", ".join(f"{count} {kind}" for kind, count in sorted(done.items())))
    for kind, reason in skipped.items():
        print(f"*** no {kind}: {reason} ***")
    print("promises")
    for promise in PROMISES:
        how = ledger.broken.get(promise)
        print(f"  {'BROKEN' if how else 'kept':7} {promise}")
        for line in (how or [])[:5]:
            print(f"          {line}")
    unknown = set(ledger.broken) - set(PROMISES)
    assert not unknown, f"not in the list of promises: {unknown}"
    broken = sum(1 for promise in PROMISES if ledger.broken.get(promise))
    return len(PROMISES) - broken, broken
