"""The machine itself: a hypervisor as a child that ends with this process, and commands in it through QEMU's guest agent."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from vm.hypervisors import Hardware, Hypervisor, Share

# Nothing of a run lasts longer, whatever hangs.
RUN_S_MAX = 5400


@dataclass(frozen=True)
class Done:
    """The result of a command in the machine."""

    status: int
    output: str


class Machine:
    """A running machine. It ends with the `with` block, or with this process, however that ends."""

    def __init__(self, hypervisor: Hypervisor, hardware: Hardware) -> None:
        self.hypervisor, self.hardware = hypervisor, hardware
        self.patience = hypervisor.patience

    def __enter__(self) -> Machine:
        if self.patience > 1:
            print(f"\n*** KVM is not used: the machine runs on {self.hypervisor.what}, and is slower ***\n", flush=True)
        short_of = self.hypervisor.short_of()
        if short_of is not None:
            print(f"*** {short_of} ***\n", flush=True)
        began = time.monotonic()
        # If this process is killed, so is timeout(1), and then the hypervisor.
        ends = ["setpriv", "--pdeathsig", "KILL"]
        bounded = [*ends, "timeout", "--kill-after=10", str(RUN_S_MAX), *ends]
        command = [*bounded, *self.hypervisor.command(self.hardware)]
        with self._errors().open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self.hypervisor.inherited(),
            )
        try:
            self._connect(90 * self.patience)
            self.booted_in_s = time.monotonic() - began
            for number, share in enumerate(self.hardware.shares):
                self._mount(number, share)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _mount(self, number: int, share: Share) -> None:
        done = self.run(f"mkdir -p '{share.path}' && {self.hypervisor.mount(number, share)}", 60)
        if done.status != 0:
            raise RuntimeError(f"the machine cannot mount {share.path}: {done.output}")

    def _connect(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the machine does not come up:\n{self._last_words()}")
            try:
                self.agent = self.hypervisor.agent()
            except OSError:
                time.sleep(0.2)
                continue
            try:
                self.agent.settimeout(1)
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
        logs = (self._errors(), self.hardware.console)
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())

    def _errors(self) -> Path:
        return self.hardware.folder / "hypervisor.log"

    def _end(self) -> None:
        """Nothing in the machine is worth a shutdown: its disk is thrown away."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.hypervisor.close()


def _show(log: Path, shown: int) -> int:
    """Prints what the log has after this offset. Returns the new one."""
    with log.open("rb") as file:
        file.seek(shown)
        new = file.read()
    # Whole lines, so that no character is cut.
    whole = new[: new.rfind(b"\n") + 1]
    print(whole.decode("utf-8", "replace"), end="", flush=True)
    return shown + len(whole)
