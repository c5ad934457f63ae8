"""The measured functions: their code, their runtime, and how they are called. Go and Java are built once, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .images import Missing, available

HERE = Path(__file__).resolve().parent.parent
FUNCTIONS = HERE / "functions"
ROOT = HERE.parent.parent
BUILT = ROOT / "target" / "hotc-build"
EMPTY = FUNCTIONS / "empty"
POLL = EMPTY / "poll.py"

URL = "https://example.org/a/page?of=some&length=here"


@dataclass(frozen=True)
class App:
    """`event`: the event of its invocations. `path`: the path below its URL, if it is called through that. `image`: its image."""

    name: str
    kind: str
    files: dict[str, bytes]
    spec: dict[str, Any]
    event: Any = None
    path: str | None = None
    image: str | None = None
    runtime: Path | None = field(default=None, compare=False)

    def with_spec(self, suffix: str, **more: Any) -> App:
        return replace(self, name=f"{self.name}-{suffix}", spec={**self.spec, **more})


def read(*paths: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def go(name: str) -> bytes:
    """Builds a static program."""
    if not available("go"):
        raise Missing("go is not installed")
    built = BUILT / f"go-{name}"
    source = FUNCTIONS / "go"
    if not built.exists() or built.stat().st_mtime < max(path.stat().st_mtime for path in source.rglob("*.go")):
        built.parent.mkdir(parents=True, exist_ok=True)
        settings = {"CGO_ENABLED": "0", "GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        run(["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(built), f"./{name}"], source, settings)
    return built.read_bytes()


def java_runtime() -> Path:
    """A Java runtime with only `java.base`, in its own folder. Debian's Java is partly in /etc."""
    for tool in ("java", "javac", "jlink"):
        if not available(tool):
            raise Missing(f"{tool} is not installed")
    folder = BUILT / "java"
    if not (folder / "bin" / "java").exists():
        shutil.rmtree(folder, ignore_errors=True)
        BUILT.mkdir(parents=True, exist_ok=True)
        command = ["jlink", "--add-modules", "java.base", "--strip-debug", "--no-header-files", "--no-man-pages"]
        run([*command, "--output", str(folder)], HERE, {})
        # The class archive of a JDK. Without it every start parses the classes again.
        run([str(folder / "bin" / "java"), "-Xshare:dump"], HERE, {})
    return folder


def java_classes() -> dict[str, bytes]:
    source, classes = FUNCTIONS / "sum" / "Sum.java", BUILT / "classes"
    if not (classes / "Sum.class").exists() or (classes / "Sum.class").stat().st_mtime < source.stat().st_mtime:
        run(["javac", "--release", "17", "-d", str(classes), str(source)], HERE, {})
    return read(*classes.glob("*.class"))


def run(command: list[str], where: Path, settings: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=where, env={**os.environ, **settings}, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-600:]}")


def folder_files(folder: Path, below: str) -> dict[str, bytes]:
    return {f"{below}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def container(name: str, image: str, command: list[str], files: dict[str, bytes], event: Any) -> App:
    """HotC's form: the code is put into a pre-warmed container of the image, and each event starts the command."""
    spec = {"runtime": "container", "contract": "shim", "command": command}
    return App(name, "container", files, spec, event=event, image=image)


def sums(kind: str, language: str, to: int) -> App:
    """The program of figure 4(b)."""
    event, source = {"to": to}, FUNCTIONS / "sum"
    name = f"sum-{language}"
    native = kind == "native"
    if language == "forked":
        return App(name, kind, read(source / "sum.py"), {"handler": "sum.handler"}, event)
    if language == "python":
        files, command = read(source / "sum.py"), ["python3", "sum.py"]
        if native:
            return App(name, kind, files, {"runtime": "provided", "command": command}, event)
        return container(name, "python", command, files, event)
    if language == "node":
        files = read(source / "sum.js")
        if native:
            return App(name, kind, files, {"runtime": "node", "handler": "sum.handler"}, event)
        return container(name, "node", ["node", "sum.js"], files, event)
    if language == "go":
        files = {"bootstrap": go("sum")}
        if native:
            return App(name, kind, files, {"runtime": "provided"}, event)
        return container(name, "base", ["./bootstrap"], files, event)
    assert language == "java"
    runtime = java_runtime()
    if native:
        files = {**java_classes(), **folder_files(runtime, "java")}
        command = ["./java/bin/java", *JAVA_OPTIONS, "-cp", ".", "Sum"]
        return App(name, kind, files, {"runtime": "provided", "command": command, "memory_mb": 512}, event)
    made = container(name, "java", ["/opt/java/bin/java", *JAVA_OPTIONS, "-cp", ".", "Sum"], java_classes(), event)
    return replace(made, runtime=runtime).with_spec("512", memory_mb=512)


# The usual options of a short-lived program.
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def empty(kind: str) -> App:
    """A function that does nothing. Natively, its runtime has no interpreter."""
    if kind == "native":
        return App("empty", kind, read(POLL), {"runtime": "provided", "command": ["python3", POLL.name]}, {})
    return container("empty", "base", ["/bin/sh", "empty.sh"], {"empty.sh": b"cat >/dev/null; echo null\n"}, {})


def small(kind: str) -> App:
    """A program that starts at once, so that only its runtime is measured. Without Go, the empty function."""
    try:
        return sums(kind, "go", 0)
    except Missing:
        return empty(kind)


def node_hello() -> App:
    code = b'exports.handler = async () => "hello";\n'
    return App("hello-node", "native", {"index.js": code}, {"runtime": "node", "handler": "index.handler"}, {})


def qr(kind: str, language: str) -> App:
    """The web function of section V-B."""
    path = f"/?url={quote(URL, safe='')}"
    name = f"qr-{language}"
    source = FUNCTIONS / "qr"
    if kind == "container":
        return container(name, "base", ["./bootstrap"], {"bootstrap": go("qr")}, {"url": URL})
    if language == "python":
        files = read(source / "server.py", source / "requirements.txt")
        return App(name, kind, files, {"runtime": "http", "command": ["python3", "server.py"]}, path=path)
    if language == "node":
        files = read(source / "index.js", source / "package.json")
        return App(name, kind, files, {"runtime": "node", "handler": "index.handler"}, path=path)
    return App(name, kind, {"bootstrap": go("qr")}, {"runtime": "http", "command": ["./bootstrap"]}, path=path)


def pattern(kind: str, plain: bool) -> App:
    """The function of the patterns of section V-D: the web function. `plain`: a function without packages. Without Go, containers use
    the empty function."""
    if kind == "native":
        return node_hello() if plain else qr(kind, "node")
    try:
        return qr(kind, "go")
    except Missing:
        return empty(kind)
