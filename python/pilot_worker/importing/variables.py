"""Finds out whether a function would notice that the template of its environment imported packages before it came.

Packages read environment variables when they are imported. A function's variables, and those that its code sets before it
imports the packages, come later than the imports of the environment's template. Some packages, such as gevent, must be imported
before others. A function for which this matters does its own imports: its template reports that, and the daemon forks another
one from the template of the interpreter, which has imported no package.

Names are noted while the environment's template imports (`Watch`). What C libraries read cannot be noted, so `_LIBRARIES` says
which variables they read. A template without packages, and a worker, do nothing of this.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

from ..forking import findings, forkable
from . import imports, setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, Optional, Type

    from ..spec import TemplateSpec

# They replace modules of the standard library, which others must not have imported before.
_REPLACING = ("gevent", "eventlet", "pysqlite3")

_NUMERICAL = ("BLIS_", "GOTO_", "KMP_", "MKL_", "OMP_", "OPENBLAS_")
# The beginnings of names, by module: what the C libraries of packages read when they are loaded, and what packages use that
# read all variables.
_LIBRARIES = {
    "cv2": ("OPENCV_", "OPENBLAS_", "OMP_"),
    "grpc": ("GRPC_",),
    "networkx": ("NETWORKX_",),
    "numexpr": ("NUMEXPR_", *_NUMERICAL),
    "numpy": ("NPY_", *_NUMERICAL),
    "onnxruntime": ("ORT_", *_NUMERICAL),
    "polars": ("POLARS_", "RAYON_", "_RJEM_MALLOC_CONF"),
    "pyarrow": ("ARROW_", "JE_ARROW_MALLOC_CONF", "MIMALLOC_", *_NUMERICAL),
    "tensorflow": ("TF_", "XLA_", *_NUMERICAL),
    "tokenizers": ("RAYON_", "TOKENIZERS_"),
    "torch": ("CUDA_", "PYTORCH_", "TORCH_", *_NUMERICAL),
}

# Modules of the standard library that read all variables, and use only these. What child processes read is not known.
_PROXIES = ("all_proxy", "ftp_proxy", "http_proxy", "https_proxy", "no_proxy", "request_method")
_USED_BY = {
    "ctypes.util": ("LD_LIBRARY_PATH",),
    "subprocess": (),
    "urllib.request": (*_PROXIES, *(name.upper() for name in _PROXIES)),
    "wsgiref.handlers": (),  # it keeps a copy for its servers, which `imports` makes again
}

# Each function has its own values of these. A package that reads all variables does not look for them.
_PER_FUNCTION = ("AWS_LAMBDA_", "_HANDLER")

# Between a package and the variable that it asks for. The latter is the name of _collections_abc.
_BETWEEN = frozenset((__name__, imports.__name__, "os", "collections.abc"))
_STANDARD = frozenset(getattr(sys, "stdlib_module_names", ()))  # since Python 3.10


class _State:
    def __init__(self) -> None:
        self.values: Optional[Dict[str, str]] = None  # at the begin of the imports; None: no package was imported
        self.readers: Dict[str, str] = {}  # the first package that has asked for a name
        self.reader_of_all = ""


_state = _State()


class Watch:
    """A context, in the template of an environment: notes which variables are asked for or set, and by which package."""

    def __init__(self) -> None:
        self._methods: Any = None

    def __enter__(self) -> Watch:
        kind: Any = type(os.environ)
        if not {"__getitem__", "__iter__", "__setitem__"} <= vars(kind).keys():
            return self  # something has replaced os.environ
        _state.values = dict(os.environ)
        read, names, write = kind.__getitem__, kind.__iter__, kind.__setitem__

        def read_noted(environ: Any, name: Any) -> Any:
            if name not in _state.readers:
                _note(name)
            return read(environ, name)

        def names_noted(environ: Any) -> Any:
            _note_all()
            return names(environ)

        def write_noted(environ: Any, name: Any, value: Any) -> None:
            text = _text(name)
            if text is not None:
                setters.note(text, _reader()[1])
            write(environ, name, value)

        self._methods = kind, read, names, write
        kind.__getitem__, kind.__iter__, kind.__setitem__ = read_noted, names_noted, write_noted
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._methods is not None:
            replaced, read, names, write = self._methods
            replaced.__getitem__, replaced.__iter__, replaced.__setitem__ = read, names, write


class Changes:
    """A context, in the template of a function, while it imports the handler: calls `tell` with the reason if the code changes
    a variable that a package of the environment has read."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._methods: Any = None

    def __enter__(self) -> Changes:
        kind: Any = type(os.environ)
        if _state.values is None or not {"__setitem__", "__delitem__"} <= vars(kind).keys():
            return self
        write, delete, own = kind.__setitem__, kind.__delitem__, os.getpid()

        def tell(name: Any, value: Any) -> None:
            why = _why(_text(name), _text(value)) if os.getpid() == own else ""
            if why:
                self._tell(f"{why}, and the code sets it first")

        def write_noted(environ: Any, name: Any, value: Any) -> None:
            tell(name, value)
            write(environ, name, value)

        def delete_noted(environ: Any, name: Any) -> None:
            tell(name, None)
            delete(environ, name)

        self._methods = kind, write, delete
        kind.__setitem__, kind.__delitem__ = write_noted, delete_noted
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._methods is not None:
            changed, write, delete = self._methods
            changed.__setitem__, changed.__delitem__ = write, delete


def own_imports(spec: TemplateSpec) -> str:
    """In the template of a function, after its variables are set: why it must do its own imports. Empty: it need not."""
    if _state.values is None:
        return ""
    for name in _REPLACING:
        if importlib.machinery.PathFinder.find_spec(name, spec.sys_path) is not None:
            return f"{name} replaces modules of Python, and must be imported before other packages"
    for name in sorted({*(spec.environment or ()), *_state.values}):
        why = _why(name, os.environ.get(name))
        if why:
            return why
    return setters.unwanted_change(spec.sys_path)


def _why(name: Optional[str], value: Optional[str]) -> str:
    """Why this value would be noticed: a package was imported with another one."""
    assert _state.values is not None
    if name is None or value == _state.values.get(name):
        return ""
    shown = findings.printable(name)
    if name in _state.readers:
        return f"{_state.readers[name]} reads {shown} at import"
    if _state.reader_of_all and not name.startswith(_PER_FUNCTION):
        return f"{_state.reader_of_all} reads all variables at import, also {shown}"
    if value != forkable.VARIABLES.get(name):
        for module, beginnings in _LIBRARIES.items():
            if module in sys.modules and name.startswith(beginnings):
                return f"{module} reads {shown} at import"
    return ""


def _note(name: object) -> None:
    text = _text(name)
    if text is None or text in _state.readers:
        return
    module, package = _reader()
    if text in _USED_BY.get(module, (text,)):
        _state.readers[text] = package


def _note_all() -> None:
    module, package = _reader()
    used = () if package in _LIBRARIES else _USED_BY.get(module)
    if used is None:
        _state.reader_of_all = _state.reader_of_all or package
        return
    for name in used:
        _state.readers.setdefault(name, package)


def _reader() -> tuple[str, str]:
    """The module that asks for a variable, and the package that it works for: the nearest one that is not part of Python."""
    module = ""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name not in _BETWEEN:
            module = module or name
            package = name.partition(".")[0]
            if package == __name__.partition(".")[0]:
                break
            if package not in _STANDARD:
                return module, findings.printable(package)
        frame = frame.f_back  # type: ignore[assignment]  # None above the outermost
    return module, findings.printable(module.partition(".")[0])


def _text(value: object) -> Optional[str]:
    """As `os.environ` has it; `os.environb` has bytes. None: no name or value at all."""
    if isinstance(value, bytes):
        return os.fsdecode(value)
    return value if isinstance(value, str) else None
