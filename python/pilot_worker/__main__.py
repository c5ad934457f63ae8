"""The entry point of `python3 -I -S …/pilot_worker template|function|worker`.

Python puts the executed directory itself on `sys.path`. User code could then import `fork` or `wire`, or these could shadow
modules of the user. Therefore this file replaces the directory with its parent, imports the package, and removes the entry.

Libraries that start an interpreter (`anyio.to_process`, multiprocessing) run the file of `__main__` there under another name.
Then it does nothing.
"""

import time

_started_ns = time.monotonic_ns()

import os  # noqa: E402 - the time above is taken by the first instruction of the process
import sys  # noqa: E402

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))
    try:
        from pilot_worker.forking import atfork

        atfork.hold_back(["pilot_worker.main"])
        from pilot_worker import main
    finally:
        del sys.path[0]
    main.run(sys.argv, _started_ns)
