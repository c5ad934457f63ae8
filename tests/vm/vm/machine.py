"""The machine itself: QEMU as a child that ends with this process, and commands in it through QEMU's guest agent."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from vm.image import Image, Unavailable

# Nothing of a run lasts longer, whatever hangs.
RUN_S_MAX = 5400
# Emulation is slower by this factor, at least.
EMULATION_FACTOR = 15


@dataclass(frozen=True)
class Share:
    """A folder that the machine sees at the same path. One that can be written to shows the owner of files to the machine alone."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class Done:
    """The result of a command in the machine."""

    status: int
    output: str


class Machine:
    """A running machine. It ends with the `with` block, or with this process, however that ends."""

    def __init__(self, image: Image, shares: list[Share], folder: Path, cpus: int, memory_mb: int) -> None:
        self.image, self.shares, self.folder = image, shares, folder
        self.cpus, self.memory_mb = cpus, memory_mb
        self.has_kvm = _kvm_works()
        self.patience = 1 if self.has_kvm else EMULATION_FACTOR
        self.console = folder / "console.log"
        self.socket_path = folder / "agent.sock"

    def __enter__(self) -> Machine:
        if shutil.which("qemu-system-x86_64") is None:
            raise Unavailable("qemu-system-x86_64 is not installed: apt-get install --no-install-recommends qemu-system-x86")
        if not self.has_kvm:
            print("\n*** KVM does not work here: the machine is EMULATED, and slower by far ***\n", flush=True)
        self.socket_path.unlink(missing_ok=True)
        began = time.monotonic()
        # If this process is killed, so is timeout(1), and then QEMU.
        ends = ["setpriv", "--pdeathsig", "KILL"]
        bounded = [*ends, "timeout", "--kill-after=10", str(RUN_S_MAX), *ends]
        with (self.folder / "qemu.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*bounded, *self._command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._connect(90 * self.patience)
            self.booted_in_s = time.monotonic() - began
            for number, share in enumerate(self.shares):
                self._mount(number, share)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _command(self) -> list[str]:
        # A machine that is itself virtual often offers this register and refuses to set it.
        accelerator = ["-accel", "kvm", "-cpu", "host,arch-capabilities=off"]
        if not self.has_kvm:
            accelerator = ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", *accelerator]
        command += ["-smp", str(self.cpus), "-m", str(self.memory_mb)]
        command += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)]
        command += ["-append", "root=/dev/vda ro console=ttyS0 quiet systemd.show_status=no panic=1", "-no-reboot"]
        command += ["-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console"]
        command += ["-drive", f"file={self.image.disk},format=raw,if=virtio,snapshot=on,cache=unsafe"]
        command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"]
        command += ["-chardev", f"socket,id=agent,path={self.socket_path},server=on,wait=off", "-device", "virtio-serial"]
        command += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
        for number, share in enumerate(self.shares):
            model = "mapped-xattr" if share.writable else "none,readonly=on"
            command += ["-fsdev", f"local,id=share{number},path={share.path},multidevs=remap,security_model={model}"]
            command += ["-device", f"virtio-9p-pci,fsdev=share{number},mount_tag=share{number}"]
        return command

    def _mount(self, number: int, share: Share) -> None:
        cache = "none" if share.writable else "loose,ro"
        options = f"trans=virtio,version=9p2000.L,msize=512000,cache={cache}"
        done = self.run(f"mkdir -p '{share.path}' && mount -t 9p -o {options} share{number} '{share.path}'", 60)
        if done.status != 0:
            raise RuntimeError(f"the machine cannot mount {share.path}: {done.output}")

    def _connect(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the machine does not come up:\n{self._last_words()}")
            try:
                self.agent = socket.socket(socket.AF_UNIX)
                self.agent.settimeout(1)
                self.agent.connect(str(self.socket_path))
                # The byte 0xFF resets the agent's parser; what it said before is thrown away (guest-sync-delimited).
                token = time.monotonic_ns()
                sync = {"execute": "guest-sync-delimited", "arguments": {"id": token}}
                self.agent.sendall(b"\xff" + json.dumps(sync).encode() + b"\n")
                self.received = self.agent.makefile("rb")
                while json.loads(self.received.readline().rpartition(b"\xff")[2] or b"{}").get("return") != token:
                    pass
                self.agent.settimeout(60 * self.patience)
                return
            except (OSError, ValueError):
                self.agent.close()
                time.sleep(0.2)

    def _ask(self, command: str, **arguments: Any) -> Any:
        self.agent.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        answer = json.loads(self.received.readline() or b"{}")
        if "return" not in answer:
            raise RuntimeError(f"the machine's agent refuses {command}: {answer}\n{self._last_words()}")
        return answer["return"]

    def run(self, script: str, within_s: float, environment: dict[str, str] | None = None, log: Path | None = None) -> Done:
        """Runs a script of the shell as root. With `log`, a file in a shared folder, its output goes there and to this process's
        output, line by line."""
        given = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        pairs = [f"{name}={value}" for name, value in {**given, **(environment or {})}.items()]
        if log is not None:
            log.write_bytes(b"")
            script = f"exec >>'{log}' 2>&1\n{script}"
        limit = ["--kill-after=10", str(round(within_s * self.patience))]
        process = self._ask(
            "guest-exec",
            path="/usr/bin/timeout",
            arg=[*limit, "/bin/bash", "-c", script],
            env=pairs,
            **{"capture-output": log is None},
        )["pid"]
        shown = 0
        while True:
            status = self._ask("guest-exec-status", pid=process)
            if log is not None:
                shown = _show(log, shown)
            if status["exited"]:
                break
            time.sleep(0.02 if log is None else 0.2)
        parts = [base64.b64decode(status.get(part, "")).decode("utf-8", "replace") for part in ("out-data", "err-data")]
        # A signal, and so no exit code, is a failure, too.
        return Done(int(status.get("exitcode", 128 + int(status.get("signal", 0)))), "".join(parts))

    def _last_words(self) -> str:
        texts = [path.read_text(errors="replace")[-3000:] for path in (self.folder / "qemu.log", self.console) if path.exists()]
        return "\n".join(texts)

    def _end(self) -> None:
        """Nothing in the machine is worth a shutdown: its disk is thrown away."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.socket_path.unlink(missing_ok=True)


def _show(log: Path, shown: int) -> int:
    """Prints what the log has after this offset. Returns the new one."""
    with log.open("rb") as file:
        file.seek(shown)
        new = file.read()
    # Whole lines, so that no character is cut.
    whole = new[: new.rfind(b"\n") + 1]
    print(whole.decode("utf-8", "replace"), end="", flush=True)
    return shown + len(whole)


def _kvm_works() -> bool:
    """Whether an unchanged kernel runs with KVM. There are also modules (kvm_pvm) that run only kernels made for them; they offer
    `/dev/kvm` on a processor without the extensions."""
    extensions = re.search(r"^flags\s*:.*\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return extensions is not None and os.access("/dev/kvm", os.R_OK | os.W_OK)
