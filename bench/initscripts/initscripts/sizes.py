"""Sizes (the paper's Tables 4 and 5): scripts beside the applications that they initialise, and what the daemon has so that scripts need it not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchlib.pilot import build_of
from benchlib.report import Bar, Report

from .world import World, network, script_of, script_of_c, service

SIZE_MAX = 20 * 1024
SCRIPTS = ("two_objects", "task", "objects", "imgrec", "weights", "shard")
# Which script initialises what.
APPLICATIONS = {
    "memcached": "objects",
    "etcd": "objects",
    "vecdb": "shard",
    "cached": "shard",
    "network of imgrec-wasm": "imgrec",
}
# The paper's rows, and the crates that are their part here.
COMPONENTS = {
    "clients of S3, Redis, SQS and gRPC": ("object_store", "redis", "pilot_trigger", "pilot_data"),
    "HTTP": ("reqwest", "hyper", "hyper_util", "h2", "http", "http_body", "http_body_util", "tower", "tower_http"),
    "TLS and signatures": ("rustls", "webpki", "rustls_webpki", "ring", "aws_lc_rs", "sha2", "hmac"),
    "JSON and XML": ("serde_json", "quick_xml"),
    "runs scripts": ("pilot_wasm",),
    "WebAssembly (wasmtime, without its compiler)": ("wasmtime", "wasmtime_environ", "wasmparser", "wasmtime_fiber"),
    "log and metrics": ("tracing", "tracing_core", "tracing_subscriber"),
}


def measure(world: World) -> Report:
    """The bar is that of a script that reads two objects."""
    scripts = {name: script_of(name).stat().st_size for name in SCRIPTS}
    lengths = {f"script {name}, Rust": length for name, length in scripts.items()}
    of_c = script_of_c()
    if of_c:
        lengths["script two_objects, C"] = of_c.stat().st_size
    report = Report(
        "sizes", "sizes of scripts, and of what they are scripts of", ["what", "bytes", "its script", "the paper's"]
    )
    report.rows = [[name, f"{length:,}", "", "100,000 to 200,000"] for name, length in lengths.items()]
    report.bars = [
        Bar(name, f"≤ {SIZE_MAX:,} bytes", f"{length:,}", length <= SIZE_MAX)
        for name, length in lengths.items()
        if "two_objects" in name
    ]
    if not of_c:
        report.notes.append("the example in C was not built: pip install ziglang")
    programs = {name: program for name in APPLICATIONS if (program := program_of(name, world.home))}
    for name, program in programs.items():
        length, script = program.stat().st_size, APPLICATIONS[name]
        lengths[name] = length
        report.rows.append(
            [f"{name}, stripped", f"{length:,}", f"{scripts[script]:,}", "2,485,000 (vecdb)" if name == "vecdb" else ""]
        )
    if not world.is_smoke and build_of(world.binary) == "release" and shutil.which("nm"):
        host = components(world.binary)
        report.rows += [[f"in the daemon: {name}", f"{length:,}", "0", ""] for name, length in host.items()]
        lengths |= {f"daemon: {name}": length for name, length in host.items()}
        report.notes.append(
            "in the daemon: the symbols (nm) whose name begins with one of the crates; generic code counts where it is used"
        )
    report.data = lengths
    return report


def program_of(name: str, home: Path) -> Path | None:
    """Without symbols, or `None`: it is not here."""
    if name.startswith("network"):
        return network()
    found = service(name) if name in ("vecdb", "cached") else shutil.which(name)
    if found is None:
        return None
    stripped = home / f"{name}.stripped"
    subprocess.run(["strip", "-o", str(stripped), str(found)], check=True)
    return stripped


def components(binary: Path) -> dict[str, int]:
    """Bytes of each, the largest first."""
    crates = {crate: name for name, members in COMPONENTS.items() for crate in members}
    found = Counter[str]()
    for crate, length in symbols(binary):
        if crate in crates:
            found[crates[crate]] += length
    return dict(found.most_common())


def symbols(binary: Path) -> Iterator[tuple[str, int]]:
    """The crate and the length of each symbol of Rust, as nm(1) prints them."""
    lines = subprocess.run(["nm", "-S", "--defined-only", str(binary)], capture_output=True, text=True, check=True).stdout
    for line in lines.splitlines():
        words = line.split()
        # A path, `_ZN4core3ptr`, or an implementation, `_ZN76_$LT$std..sync..poison`.
        if len(words) == 4 and (
            named := re.match(r"_ZN\d+(?:_\$LT\$)?(?:\$RF\$|mut\$u20\$)*([a-z0-9_]+?)(?:\d|\.\.|\$|$)", words[3])
        ):
            yield crate_of(words[3], named.group(1)), int(words[1], 16)


def crate_of(symbol: str, guess: str) -> str:
    """Of a path, the first name, whose length is in front of it."""
    path = re.match(r"_ZN(\d+)([a-zA-Z].*)", symbol)
    return path.group(2)[: int(path.group(1))] if path else guess
