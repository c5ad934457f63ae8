"""Pilotlight's Python worker: a process that serves invocations, and the template it is forked from.

This package is not a library for functions: user code imports only `pilotlight` of it (`sdk/pilotlight.py`), and only
the daemon starts it.
`crates/path/wire/PROTOCOL.md` defines its protocol.
"""

import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
