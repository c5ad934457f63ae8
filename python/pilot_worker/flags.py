"""Gives `sys.flags` the values of an ordinary `python3`. Children of multiprocessing, joblib and others are started with them.

The worker's interpreter is started with -I and -S, or with -s and -S: nothing of the host and nothing of a function may change
how it starts. `subprocess._args_from_interpreter_flags` makes arguments of `sys.flags`. With these, a child would know neither
PYTHONPATH, in which the packages of the function are, nor what `site` defines, such as `exit`. The interpreter itself has its
flags elsewhere.

`sys.flags` is changed in place, because no second object of its class can be made. Replacing the function of `subprocess` would
need a hook in each import, since few functions import `subprocess`.
"""

from __future__ import annotations

import ctypes
import re
import site  # noqa: F401 - when it is first imported, it adds the host's packages to sys.path unless the flags say -S
import sys

_OF_SITE = frozenset(("no_user_site", "no_site"))
_OF_ISOLATION = frozenset(("isolated", "ignore_environment", "safe_path"))  # the last since Python 3.11


def show_ordinary() -> None:
    """Called once in a process that was started by exec, before user code is imported."""
    flags = sys.flags
    names = _OF_SITE | _OF_ISOLATION if flags.isolated else _OF_SITE
    # C API, "Struct Sequence Objects". It takes over a reference to the value.
    put = ctypes.pythonapi.PyStructSequence_SetItem
    put.argtypes, put.restype = [ctypes.py_object, ctypes.c_ssize_t, ctypes.py_object], None
    for index, name in enumerate(re.findall(r"(\w+)=", repr(flags))):
        if name in names:
            value = type(flags[index])(0)  # 0 or False
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
            put(flags, index, value)
