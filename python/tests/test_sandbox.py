"""The privileges that a child drops and the namespaces that it enters between fork and READY. Skipped without root."""

from __future__ import annotations

import base64
import ctypes
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import Functions

from pilot_worker import kernel
from pilot_worker.protocol import wire

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and other uids need root")

NAMESPACES = {"mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "net": 0x40000000}

STATUS = """
import os
def handler(event, context):
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
    names = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "NSpid")
    spaces = {name: os.stat("/proc/self/ns/" + name).st_ino for name in ("mnt", "uts", "ipc", "net", "pid")}
    return {**{name: status[name].strip() for name in names}, **spaces, "cwd": os.getcwd()}
"""

UNAME = 63 if os.uname().machine == "x86_64" else 160

# BPF: load the system call's number; uname gives EPERM, everything else is allowed
FILTER_WITHOUT_UNAME = b"".join(
    struct.pack("<HBBI", *instruction)
    for instruction in [(0x20, 0, 0, 0), (0x15, 0, 1, UNAME), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
)


class Namespaces:
    """A process in namespaces of its own, for as long as the test runs."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._hold, release = os.pipe()
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(release)
            flags = sum(NAMESPACES.values()) | kernel.CLONE_NEWPID
            failed = libc.unshare(flags)
            init = -1 if failed else os.fork()
            if init == 0:  # process 1 of the new pid namespace, which lives as long as it does
                os.close(tell)
                os.read(self._hold, 1)
                os._exit(0)
            os.write(tell, b"" if failed else b"1")
            os.close(tell)
            os.read(self._hold, 1)
            os._exit(0)
        os.close(tell)
        self._release = release
        assert os.read(ready, 1) == b"1", "unshare failed"
        os.close(ready)

    def open(self, name: str) -> int:
        file = "pid_for_children" if name == "pid" else name
        return os.open(f"/proc/{self.pid}/ns/{file}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._release)
        os.waitpid(self.pid, 0)


def make_readable(directory: Path) -> None:
    """For the uid that the function gets; pytest makes its directories private."""
    for each in (directory, *directory.parents[:2]):
        each.chmod(0o755)


def test_a_worker_drops_everything(functions: Functions) -> None:
    make_readable(functions.directory)
    worker = functions.template(STATUS, uid=65534, gid=65533, filter=base64.b64encode(FILTER_WITHOUT_UNAME).decode()).worker()
    worker.ready()
    status = worker.result({})
    assert status["Uid"].split() == ["65534"] * 4 and status["Gid"].split() == ["65533"] * 4 and status["Groups"] == ""
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["cwd"] == str(functions.directory)


def test_a_template_keeps_only_what_its_children_need(functions: Functions) -> None:
    make_readable(functions.directory)
    at_import = (
        STATUS.replace("def handler(event, context):", "def look():") + "seen = look()\ndef handler(e, c): return seen\n"
    )
    worker = functions.template(at_import, uid=65534, gid=65534, keep_caps=True).worker()
    worker.ready()
    status = worker.result({})
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == sum(1 << n for n in (6, 7, 8, 18, 21))
    assert status["Uid"].split() == ["65534"] * 4 and status["NoNewPrivs"] == "1" and status["Seccomp"] == "0"
    worker = functions.template(at_import, keep_caps=False).worker()
    worker.ready()
    assert int(worker.result({})["CapEff"], 16) == 0


def test_the_filter_is_in_force(functions: Functions) -> None:
    source = "import os\ndef handler(e, c): return os.uname().sysname\n"
    encoded = base64.b64encode(FILTER_WITHOUT_UNAME).decode()
    worker = functions.template(source, filter=encoded).worker()
    worker.ready()
    assert worker.error({})["errorType"] == "PermissionError"


def test_a_worker_is_born_in_its_namespaces(functions: Functions) -> None:
    namespaces = Namespaces()
    template = functions.template(STATUS)
    ours = look(template.worker())
    fds: dict[str, Any] = {name: namespaces.open(name) for name in ("pid", "mnt", "ipc", "uts", "net")}
    worker = template.worker(**fds)
    theirs = look(worker)
    for name in NAMESPACES:
        assert theirs[name] == os.stat(f"/proc/{namespaces.pid}/ns/{name}").st_ino != ours[name]
    assert len(theirs["NSpid"].split()) == len(ours["NSpid"].split()) + 1
    assert theirs["cwd"] == str(functions.directory)
    # the next child without its own pid namespace is in the template's again
    again = look(template.worker())
    assert again["pid"] == ours["pid"] and len(again["NSpid"].split()) == len(ours["NSpid"].split())
    namespaces.close()


def look(worker: Any) -> dict[str, Any]:
    worker.ready()
    status: dict[str, Any] = worker.result({})
    return status


def test_what_cannot_be_entered_is_an_init_error(functions: Functions) -> None:
    template = functions.template("def handler(e, c): pass\n")
    with open("/dev/null", "rb") as not_a_namespace:
        worker = template.worker(net=not_a_namespace.fileno())
    kind, _, _, body = worker.frame()
    assert kind == wire.INIT_ERROR and b"Runtime.SandboxError" in body and b"cannot enter the namespace" in body
    assert Functions.exit_of(template, 1) == {"code": 1}


def test_a_pid_namespace_that_cannot_be_entered_fails_the_fork(functions: Functions) -> None:
    template = functions.template("def handler(e, c): return 1\n")
    with open("/dev/null", "rb") as not_a_namespace:
        template.fork("worker", pid=not_a_namespace.fileno())
    assert "setns" in template.message("fork_failed")["error"]
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == 1


def test_a_template_that_cannot_be_isolated_says_so(functions: Functions) -> None:
    error = functions.refused("def handler(e, c): pass\n", cwd="/no/such/directory")
    assert error["errorType"] == "Runtime.SandboxError" and "/no/such/directory" in error["errorMessage"]


def test_a_worker_joins_its_cgroups(functions: Functions, tmp_path: Path) -> None:
    files = [tmp_path / "tasks", tmp_path / "cgroup.procs"]
    for file in files:
        file.touch()
    fds = [os.open(file, os.O_WRONLY | os.O_CLOEXEC) for file in files]
    functions.template("def handler(e, c): pass\n").worker(cgroup=fds).ready()
    assert [file.read_text() for file in files] == ["0", "0"]
