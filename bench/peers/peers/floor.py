"""The floor of a cold start: a bare fork(2) for each request, of a process that has numpy and Pillow, without isolation and without HTTP.

As a program, it answers each byte on a socket from a new child. The bench asks it in turns with Pilotlight.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module

PAUSE_S = 0.02


class Floor:
    """The program as a child."""

    def __enter__(self) -> Floor:
        self.socket, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        theirs.close()
        self.ask()  # when it has imported everything
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.process.wait(10)

    def ask(self) -> float:
        """Microseconds until a new child has answered."""
        began = time.perf_counter()
        self.socket.sendall(b"x")
        if self.socket.recv(1) != b"y":
            raise RuntimeError("the process that forks has ended")
        return (time.perf_counter() - began) * 1e6

    def times(self, count: int) -> list[float]:
        """Those of so many requests."""
        found = []
        for _ in range(count):
            time.sleep(PAUSE_S)
            found.append(self.ask())
        return found


def main() -> None:
    for name in ("numpy", "PIL.Image"):
        import_module(name)
    peer = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while peer.recv(1):
        if os.fork() == 0:
            peer.sendall(b"y")
            os._exit(0)


if __name__ == "__main__":
    main()
