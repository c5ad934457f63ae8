"""Micro-measurements of the worker: fork to READY, one invocation, private memory. Run: python3 bench.py [site-packages].

If the site-packages contain numpy and Pillow, the template imports them. The numbers are medians of one run. Compare them only
with another run on the same machine. HEAP_MB=100 gives the template a heap of that size.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "tests")]

from harness import Process, Stream, Template, invoke_meta  # noqa: E402

from pilot_worker.protocol import wire  # noqa: E402

SOURCE = """
import os, resource
heap = [bytearray(os.urandom(4096) * 256) for _ in range(int(os.environ["HEAP_MB"]))]
def handler(event, context):
    return [os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
"""
FORKS = 200
CALLS = 20_000
# For huge pages, which a template makes when nobody waits.
SETTLE_S = 1.0


def private_kb(pid: int) -> dict[str, int]:
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        fields[name.rstrip(":")] = int(value)
    return fields


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "app.py").write_text(SOURCE)
        spec: dict[str, Any] = {
            "level": "function",
            "cwd": directory,
            "sys_path": [directory, *sys.argv[1:]],
            "imports": ["numpy", "numpy.random", "PIL.Image"] if sys.argv[1:] else [],
            "handler": "app.handler",
            "environment": {"HEAP_MB": "0", **os.environ},
        }
        process = Process("template", socket.SOCK_SEQPACKET)
        root = Template(process.ours)
        root.message("ready")
        template = root.template(spec)
        print("template", json.dumps({k: v for k, v in template.report.items() if k in ("threads", "failed")}))
        time.sleep(SETTLE_S)
        measure_forks(template)
        measure_memory(template)
        measure_calls(template)
        template.close()
        process.end()


def measure_forks(template: Template) -> None:
    sandboxed, initialised, ready = [], [], []
    for _ in range(FORKS):
        asked_ns = time.monotonic_ns()
        worker = template.worker()
        stamps = worker.ready()
        ready.append(time.monotonic_ns() - asked_ns)
        sandboxed.append(stamps["sandboxed_ns"] - stamps["forked_ns"])
        initialised.append(stamps["initialised_ns"] - stamps["forked_ns"])
        worker.close()
        template.message("exited")
    for name, values in (("sandboxed", sandboxed), ("initialised", initialised), ("asked to READY read", ready)):
        print(f"{name:>20}: median {statistics.median(values) / 1000:8.1f} us, least {min(values) / 1000:8.1f} us")


def measure_memory(template: Template) -> None:
    others = [template.worker() for _ in range(8)]
    for other in others:
        other.ready()
    worker = template.worker()
    worker.ready()
    idle = None
    pid = 0
    for count in range(1000):
        pid, faults = worker.result({"n": count})
        if count == 0:
            idle = private_kb(pid)
            print(f"{'first call':>20}: after {faults} page faults")
    after = private_kb(pid)
    for name, fields in (("after 1 call", idle), ("after 1000 calls", after)):
        assert fields is not None
        print(f"{name:>20}: private dirty {fields['Private_Dirty']} kB, pss {fields['Pss']} kB, rss {fields['Rss']} kB")
    for other in (*others, worker):
        other.close()
        template.message("exited")


def measure_calls(template: Template) -> None:
    worker = template.worker()
    worker.ready()
    frame = wire.encode(wire.INVOKE, 1, json.dumps(invoke_meta()).encode(), b"{}")
    print(f"{'exchange':>20}: {exchange_us(worker, frame):.1f} us per no-op invocation, both sides and two context switches")
    worker.close()
    template.message("exited")


def exchange_us(worker: Stream, frame: bytes) -> float:
    send, receive = worker.socket.sendall, worker.socket.recv
    worker.socket.settimeout(None)
    times = []
    for _ in range(CALLS):
        started_ns = time.perf_counter_ns()
        send(frame)
        receive(4096)
        times.append(time.perf_counter_ns() - started_ns)
    return statistics.median(times) / 1000


if __name__ == "__main__":
    main()
