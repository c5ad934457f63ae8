"""Figures 6 and 8: how concurrency in a worker and the way of serving lengthen invocations."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from benchlib import proc
from benchlib.daemon import Daemon
from benchlib.load import Load
from benchlib.report import Bar, Report
from benchlib.stats import Estimate, percentile

from .bench import Bench
from .calls import Client, Seen, Watch, at_rate

# AES in CTR mode in Python alone, as PyAES of FunctionBench: the key schedule is left out, the rounds are those of AES-128.
PYAES = """
import time

def _table():
    table, p, q = [0x63] * 256, 1, 1
    while True:
        p = p ^ (p << 1) & 0xFF ^ (0x1B if p & 0x80 else 0)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        x = q
        for turn in (1, 2, 3, 4):
            x ^= (q << turn | q >> (8 - turn)) & 0xFF
        table[p] = x ^ 0x63
        if p == 1:
            return table

BOX = _table()
DOUBLE = [(n << 1 ^ (0x1B if n & 0x80 else 0)) & 0xFF for n in range(256)]
ROWS = [0, 5, 10, 15, 4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11]

def block(state, key):
    state = [a ^ b for a, b in zip(state, key)]
    for number in range(10):
        state = [BOX[state[at]] for at in ROWS]
        if number < 9:
            mixed = []
            for at in range(0, 16, 4):
                a, b, c, d = state[at:at + 4]
                every = a ^ b ^ c ^ d
                mixed += [a ^ every ^ DOUBLE[a ^ b], b ^ every ^ DOUBLE[b ^ c], c ^ every ^ DOUBLE[c ^ d], d ^ every ^ DOUBLE[d ^ a]]
            state = mixed
        state = [a ^ b ^ number for a, b in zip(state, key)]
    return state

def handler(event, context):
    begun = time.thread_time()
    key = list(range(16))
    for counter in range(event["blocks"]):
        block(list(counter.to_bytes(16, "big")), key)
    return (time.thread_time() - begun) * 1000
"""

# The paper's: 160 ms of a vCPU. Here a request has a part of that, and a worker the same part of a CPU, so that 30 requests per second
# fit on the machine.
REQUEST_MS = 160
RATE_MAX = 30
USED_MAX = 0.6
LIMITS = {"one per worker (as AWS Lambda)": 1, "80 per worker (as Cloud Run)": 80}
PUBLISHED = {"aws": "AWS Lambda", "gcp": "Cloud Run"}
STEADY_RPS = 15


def share_of_cpu() -> float:
    fits = (os.cpu_count() or 1) * USED_MAX / (RATE_MAX * REQUEST_MS / 1000)
    return min(1.0, round(fits, 2))


def calibrated(daemon: Daemon, name: str, cpu_ms: float) -> int:
    """How many blocks take so much CPU time, by the median of some calls."""
    with Client(daemon) as client:
        client.call(name, {"blocks": 10})
        took = percentile([client.call(name, {"blocks": 100}).answer for _ in range(7)], 50)
    return max(1, round(100 * cpu_ms / took))


def summary(calls: list[Seen], refused: int, workers: list[tuple[float, int]]) -> dict[str, Any]:
    times = [one.handler_ms for one in calls]
    return {
        "n": len(times),
        "refused": refused,
        "mean_ms": Estimate.of(times).to_json(),
        "p50_ms": percentile(times, 50),
        "p99_ms": percentile(times, 99),
        "cold_starts": sum(one.start == "cold" for one in calls),
        "instances": max(count for _, count in workers),
        "workers": workers,
        "calls": [(one.at_s, one.handler_ms, one.start) for one in calls],
    }


def concurrency(bench: Bench) -> Report:
    share = share_of_cpu()
    effort = bench.effort
    header = ["limit", "requests/s", "mean ms", "p50", "p99", "cold", "workers"]
    report = Report("concurrency", "Fig. 6: durations of PyAES by the rate of requests, and workers", header)
    curves: dict[str, list[dict[str, Any]]] = {}
    with Daemon(bench.binary, bench.folder("concurrency")) as daemon:
        daemon.deploy("free", PYAES, handler="app.handler")
        blocks = calibrated(daemon, "free", REQUEST_MS * share)
        event = {"blocks": blocks}
        for label, limit in LIMITS.items():
            curves[label] = []
            for rps in effort.rates:
                # A new function has no workers, and a pool that knows nothing.
                daemon.deploy("lab", PYAES, handler="app.handler", cpu=share, concurrency=limit, timeout_s=120, **SPEC)
                with Watch(daemon, "lab", 0.25) as watch:
                    calls, refused = at_rate(daemon, "lab", rps, effort.rate_seconds, event)
                point = {"rps": rps, **summary(calls, refused, watch.seen)}
                curves[label].append(point)
                report.rows.append(row(label, point))
                daemon.call("DELETE", "/_pilot/v1/functions/lab")
        many = list(LIMITS.values())[-1]
        daemon.deploy("lab", PYAES, handler="app.handler", cpu=share, concurrency=many, timeout_s=120, **SPEC)
        with Watch(daemon, "lab", 0.25) as watch:
            calls, refused = at_rate(daemon, "lab", STEADY_RPS, effort.steady_seconds, event)
        steady = {"rps": STEADY_RPS, **summary(calls, refused, watch.seen)}
    for name, rows in published(bench).items():
        report.rows += [row(name, one) for one in rows]
    lost = sum(point["refused"] for points in curves.values() for point in points) + steady["refused"]
    report.notes += [
        f"{lost} requests were refused with 429",
        f"a request: {REQUEST_MS * share:.0f} ms of CPU time, a worker: {share:g} CPU, so {REQUEST_MS} ms each ({blocks} blocks)",
        f"{STEADY_RPS} requests/s for {effort.steady_seconds} s, {many} per worker: mean {steady['mean_ms']['mean']:.0f} ms, "
        f"{steady['instances']} workers",
    ]
    alone, shared = (fmean(point["mean_ms"]["mean"] for point in points) for points in curves.values())
    report.bars = [Bar("one per worker takes no longer than many", "≤ 1", f"{alone / shared:.2f}", alone <= shared)]
    report.data = {
        "cpu": share,
        "blocks": blocks,
        "curves": curves,
        "steady": {"limit": many, **steady},
        "published": published(bench),
    }
    return report


# The kernel's quota with AWS's period. Enough workers for the highest rate.
SPEC: dict[str, Any] = {"cpu_limit": {"period_ms": 20}, "scale": {"max": 24, "idle_s": 120}}


def row(name: str, point: dict[str, Any]) -> list[str]:
    mean = point["mean_ms"]
    text = f"{mean:.0f}" if isinstance(mean, float) else Estimate(mean["mean"], mean["half_95"], mean["n"]).text()
    return [
        name,
        f"{point['rps']:g}",
        text,
        f"{point['p50_ms']:.0f}",
        f"{point['p99_ms']:.0f}",
        str(point["cold_starts"]),
        str(point["instances"]),
    ]


def published(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """The paper's figures, by platform."""
    path = bench.published / "concurrency_by_rps.csv"
    found: dict[str, list[dict[str, Any]]] = {}
    if not path.exists():
        return found
    with path.open() as lines:
        for one in csv.DictReader(lines):
            point = {key: float(one[key]) for key in ("rps", "mean_ms", "p50_ms", "p99_ms")}
            counts = {key: int(one[key]) if one[key] else "" for key in ("n", "cold_starts", "instances")}
            found.setdefault(PUBLISHED.get(one["platform"], one["platform"]), []).append({**point, **counts})
    return found


EMPTY = "def handler(event, context):\n    return ''\n"
EMPTY_NODE = b"exports.handler = async () => '';\n"
# Polls the Lambda Runtime API with what the interpreter has.
POLLS = b"""
import http.client, os
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    asked = api.getresponse()
    asked.read()
    api.request("POST", f"/2018-06-01/runtime/invocation/{asked.headers['Lambda-Runtime-Aws-Request-Id']}/response", b'""')
    api.getresponse().read()
"""
SERVES = b"""
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    def log_message(self, *_): pass
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b'""')
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
SERVES_NODE = b"""
require("node:http").createServer((request, response) => {
  request.resume();
  request.on("end", () => response.end('""'));
}).listen(process.env.PORT, "127.0.0.1");
"""

# What serves, the paper's architecture, the files, and the keys of the function.
Way = tuple[str, dict[str, bytes], dict[str, Any]]
WAYS: dict[str, Way] = {
    "python": ("code", {"app.py": EMPTY.encode()}, {"handler": "app.handler"}),
    "node": ("code", {"index.js": EMPTY_NODE}, {"runtime": "node"}),
    "provided (Python)": ("polling", {"main.py": POLLS}, {"runtime": "provided", "command": ["python3", "main.py"]}),
    "http (Python)": ("HTTP server", {"main.py": SERVES}, {"runtime": "http", "command": ["python3", "main.py"]}),
    "http (Node.js)": ("HTTP server", {"main.js": SERVES_NODE}, {"runtime": "http", "command": ["node", "main.js"]}),
}


def overhead(bench: Bench) -> Report:
    """The calls of all ways alternate, so that what else runs on the machine disturbs all of them alike."""
    header = ["way", "as", "duration ms", "p5", "p95", "at the client ms", "p95"]
    report = Report("overhead", "Fig. 8: durations of a function that does nothing, by the way in which it is served", header)
    seen: dict[str, list[Seen]] = {name: [] for name in WAYS}
    with Daemon(bench.binary, bench.folder("overhead")) as daemon, Client(daemon) as client:
        names = {}
        for number, (way, (_, files, spec)) in enumerate(WAYS.items()):
            names[way] = f"lab{number}"
            daemon.upload(names[way], files, {"cpu": 1, **spec})
            for _ in range(20):
                client.call(names[way])
        for _ in range(bench.effort.calls):
            for way, name in names.items():
                seen[way].append(client.call(name))
    for way, (architecture, _, _) in WAYS.items():
        durations, totals = [one.handler_ms for one in seen[way]], [one.total_ms for one in seen[way]]
        report.rows.append(
            [
                way,
                architecture,
                Estimate.of(durations).text(3),
                *(f"{percentile(durations, percent):.3f}" for percent in (5, 95)),
                Estimate.of(totals).text(3),
                f"{percentile(totals, 95):.3f}",
            ]
        )
    report.notes.append(
        "duration: what is metered and billed, in the worker's runtime (code) or between it and the daemon (others)"
    )
    report.notes.append("the paper: up to 5.93 ms on average with an HTTP server, least with code; its data is not at hand")
    cold = sum(one.start == "cold" for calls in seen.values() for one in calls)
    report.bars = [
        Bar("calls that are warm", "all", f"{cold} cold", cold == 0),
        Bar("largest mean duration, of the paper's 5.93 ms", "less", worst_text(seen), worst(seen) < 5.93),
    ]
    report.data = {way: [one.to_json() for one in calls] for way, calls in seen.items()}
    return report


def worst(seen: dict[str, list[Seen]]) -> float:
    return max(fmean(one.handler_ms for one in calls) for calls in seen.values())


def worst_text(seen: dict[str, list[Seen]]) -> str:
    return f"{worst(seen):.2f} ms"


def metering(bench: Bench) -> Report:
    """The thread that writes records, under as many warm calls as the machine can serve. Shares of CPU time do not depend on what else runs."""
    header = [
        "turn",
        "calls/s",
        "CPU of all processes, µs per call",
        "of the meter's thread, µs per call",
        "share",
        "records, bytes per call",
    ]
    report = Report("metering", "what the records of invocations cost", header)
    load, turns = Load(bench.binary), []
    with Daemon(bench.binary, bench.folder("metering")) as daemon:
        daemon.deploy("lab", EMPTY, handler="app.handler")
        load.function("warm", daemon.control_endpoint, "lab", count=200, connections=16)
        for number in range(bench.effort.turns):
            before = meter_of(daemon)
            seen = load.function(
                "warm", daemon.control_endpoint, "lab", seconds=bench.effort.turn_seconds, connections=16, warm_up=0
            )
            # Records are written about 100 ms after their calls.
            time.sleep(0.5)
            spent, all_spent, written = (now - then for now, then in zip(meter_of(daemon), before))
            turn = {
                "calls": seen.requests,
                "per_second": seen.per_second,
                "meter_s": spent,
                "all_s": all_spent,
                "bytes": written,
            }
            turns.append(turn)
            per_call = [1e6 * turn[key] / seen.requests for key in ("all_s", "meter_s")]
            report.rows.append(
                [
                    str(number + 1),
                    f"{seen.per_second:,.0f}",
                    *(f"{each:.2f}" for each in per_call),
                    f"{spent / all_spent:.2%}",
                    f"{written / seen.requests:.0f}",
                ]
            )
    share = Estimate.of([100 * turn["meter_s"] / turn["all_s"] for turn in turns])
    report.bars = [
        Bar("CPU time of the meter, of that of the daemon and its workers", "≤ 3 %", f"{share.text(2)} %", share.mean <= 3)
    ]
    report.notes.append("all processes: the daemon and what it started, without the client")
    report.notes.append("not in it: one reading of the CPU time of the worker's control group per call, on the path")
    report.data = turns
    return report


def meter_of(daemon: Daemon) -> tuple[float, float, float]:
    """CPU seconds of the meter's thread and of all processes, and bytes of the records, so far."""
    tasks = Path(f"/proc/{daemon.pid}/task").iterdir()
    meter = next(task for task in tasks if task.joinpath("comm").read_text().strip() == "events-meter")
    spent_ns = int(meter.joinpath("schedstat").read_text().split()[0])
    written = sum(file.stat().st_size for file in (daemon.data / "usage").iterdir())
    return spent_ns / 1e9, proc.cpu_s(proc.tree(daemon.pid)), float(written)
