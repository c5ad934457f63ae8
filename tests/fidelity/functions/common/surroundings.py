"""What a process can see of itself."""

import logging
import os
import re
import signal
import sys


def now():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "descriptors": descriptors(),
        "files": files(os.environ.get("TMPDIR", "/tmp")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(open(f"/proc/self/task/{os.getpid()}/children").read().split()),
        "signals": signals(),
        "logging": [logging.getLogger().level, sorted(type(one).__name__ for one in logging.getLogger().handlers)],
    }


def descriptors():
    """Their kinds, without the numbers of inodes."""
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        try:
            kinds.append(re.sub(r":\[\d+\]$", "", os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # the listing itself
            pass
    return sorted(kinds)


def files(folder):
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    return sorted(os.path.relpath(file, folder) for file in found)


def signals():
    """Those that are not handled in the default way."""
    handled = {signal.Signals(number).name: signal.getsignal(number) for number in signal.valid_signals() if number < 32}
    return {name: getattr(how, "__name__", str(how)) for name, how in handled.items() if how != signal.SIG_DFL}
