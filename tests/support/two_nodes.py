"""Two network namespaces that are joined by a virtual cable, and certificates for nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr}")


class Cable:
    """The namespaces `a` and `b`, at 10.99.0.1 and 10.99.0.2. It needs root."""

    ADDRESSES = {"a": "10.99.0.1", "b": "10.99.0.2"}

    def __init__(self) -> None:
        self.names = {end: f"pilot-{os.getpid()}-{end}" for end in self.ADDRESSES}

    def __enter__(self) -> Cable:
        a, b = self.names.values()
        try:
            for name in (a, b):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b)
            for end, name in self.names.items():
                run("ip", "-n", name, "address", "add", f"{self.ADDRESSES[end]}/24", "dev", "cable")
            self.plug("up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def plug(self, state: str) -> None:
        """`up` or `down`, at both ends."""
        for name in self.names.values():
            run("ip", "-n", name, "link", "set", "cable", state)

    def rate(self, megabits: int | None) -> None:
        """Limits what each end sends (tc-tbf(8)), or no longer."""
        for name in self.names.values():
            subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "cable", "root"], capture_output=True)
            if megabits is not None:
                # The bucket has what the rate gives in 4 ms, and the queue in front of it 50 ms.
                burst = max(16_000, megabits * 500)
                limits = ["rate", f"{megabits}mbit", "burst", str(burst), "latency", "50ms"]
                run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", *limits)


class Authority:
    """Makes certificates for nodes."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self.name = folder, name
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        run(*self._new(name, self.certificate, self.key), "-addext", "keyUsage=keyCertSign")

    @staticmethod
    def _new(name: str, certificate: Path, key: Path) -> list[str | Path]:
        new: list[str | Path] = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        return [*new, "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", certificate]

    def issue(self, name: str) -> tuple[Path, Path]:
        """The certificate of a node, and its key."""
        certificate, key = self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key"
        names = ["-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE"]
        run(*self._new(name, certificate, key), *names, "-CA", self.certificate, "-CAkey", self.key)
        return certificate, key

    def keys(self, name: str) -> str:
        """The keys of `[nodes]` that name the files."""
        certificate, key = self.issue(name)
        return f'certificate = "{certificate}"\nkey = "{key}"\nca = "{self.certificate}"\n'
