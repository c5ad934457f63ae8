"""Where `python3 -I -S …/pilot_worker template|worker` begins.

Python puts the executed directory itself on `sys.path`, which would make `fork` or `wire` importable by (and shadow) user
code. So the directory is exchanged for its parent just long enough to import the package, and then taken off again.
"""

import time

_started_ns = time.monotonic_ns()

import os  # noqa: E402 - the stamp above is the process's first instruction
import sys  # noqa: E402

sys.path[0] = os.path.dirname(os.path.abspath(sys.path[0]))
try:
    from pilot_worker import atfork

    atfork.hold_back(["pilot_worker.main"])
    from pilot_worker import main
finally:
    del sys.path[0]

if __name__ == "__main__":
    main.run(sys.argv, _started_ns)
