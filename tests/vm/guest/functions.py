"""The functions of these tests."""

from __future__ import annotations

from pathlib import Path

APP = """
import threading

def echo(event, context):
    return event

def eat(event, context):
    taken = []
    while True:
        taken.append(bytearray(1 << 20))

def count(event, context):
    threads, end = [], threading.Event()
    try:
        for _ in range(100_000):
            threads.append(threading.Thread(target=end.wait))
            threads[-1].start()
    except RuntimeError:
        return len(threads)
    finally:
        end.set()
"""
# The sizes tell the control groups of the functions apart.
MANIFEST = """
[functions.echo]
handler = "app.echo"
memory_mb = 161
cpu = 0.5
[functions.eat]
handler = "app.eat"
memory_mb = 162
[functions.count]
handler = "app.count"
memory_mb = 163
[functions.paced]
handler = "app.echo"
memory_mb = 164
cpu = 0.5
cpu_limit = { enforcement = "precise" }
"""


def project(home: Path) -> Path:
    folder = home / "project"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "pilot.toml").write_text(MANIFEST)
    return folder
