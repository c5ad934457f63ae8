"""Applies a `TemplateSpec` to the process: environment, sys.path, log, SIGINT, declared imports. Also measures every import.

`interfaces/handler.py` imports the handler itself. While imports are measured, `importlib._bootstrap._find_and_load` is
replaced; `-X importtime` measures at the same place. Modules that are already loaded do not call it, so their imports cost
nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # C half of signal, in every CPython; mypy has no stub for it
import importlib
import os
import sys
import time
from importlib.machinery import ModuleSpec

from .. import output
from ..forking import forkable, opened
from ..randomness import generators
from . import process_state, setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Type

    from ..spec import TemplateSpec

REPORTED_MAX = 20

# What modules have set in os.environ in the templates above. `_set_environment` keeps it.
_set_by_modules: Dict[str, str] = {}
_given: Dict[str, str] = {}


# The folders of the environment's packages, with a slash at the end. Set in the template of the environment.
_packages: List[str] = []


class ImportTimer:
    """A context that records each module loaded inside it, with inclusive and exclusive milliseconds."""

    def __init__(self) -> None:
        self.spans: List[Tuple[str, int, int]] = []
        # Modules of the environment's packages that no other one of them has imported, in the order in which they were loaded.
        self.direct: List[str] = []
        self._nested_ns = 0
        self._load: Optional[Callable[[str, Any], ModuleType]] = None

    def __enter__(self) -> ImportTimer:
        bootstrap: Any = importlib._bootstrap  # private, hence the getattr: without it, nothing is measured
        self._load = getattr(bootstrap, "_find_and_load", None)
        if self._load is not None:
            bootstrap._find_and_load = self._timed
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._load is not None:
            importlib._bootstrap._find_and_load = self._load  # type: ignore[attr-defined]  # as above

    def _timed(self, name: str, import_: Any) -> ModuleType:
        assert self._load is not None
        outer_nested_ns, self._nested_ns = self._nested_ns, 0
        before = len(self.direct)
        opened.importing()
        started_ns = time.perf_counter_ns()
        try:
            module = self._load(name, import_)
            generators.loaded(name)
            forkable.loaded(name)
            opened.imported(name)
            process_state.loaded(name)
            if _packages and _is_of_packages(module):
                self.direct[before:] = [name]
            return module
        finally:
            inclusive_ns = time.perf_counter_ns() - started_ns
            self.spans.append((name, inclusive_ns, inclusive_ns - self._nested_ns))
            self._nested_ns = outer_nested_ns + inclusive_ns

    def slowest(self) -> List[Dict[str, Any]]:
        """The `imports` of the `ready` message: by inclusive time, slowest first."""
        spans = sorted(self.spans, key=lambda span: span[1], reverse=True)[:REPORTED_MAX]
        return [
            {"module": name, "ms": round(inclusive_ns / 1e6, 3), "self_ms": round(exclusive_ns / 1e6, 3)}
            for name, inclusive_ns, exclusive_ns in spans
        ]


def note_packages(sys_path: List[str]) -> None:
    """In the template of an environment: where its packages are."""
    _packages[:] = [path + "/" for path in sys_path]


def _is_of_packages(module: object) -> bool:
    # Without asking the module, which may be anything, and may run code when it is asked.
    spec = object.__getattribute__(module, "__dict__").get("__spec__") if isinstance(module, type(sys)) else None
    origin = spec.origin if type(spec) is ModuleSpec else None
    return isinstance(origin, str) and origin.startswith(tuple(_packages))


class SingleThreaded:
    """A context that asks libraries to use one thread (`forkable.VARIABLES`), unless the user has set something else."""

    def __enter__(self) -> None:
        forkable.begin()
        self._added = [name for name in forkable.VARIABLES if name not in os.environ]
        for name in self._added:
            os.putenv(name, forkable.VARIABLES[name])

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for name in self._added:
            if name not in os.environ:  # a module has set it
                os.unsetenv(name)


def apply(spec: TemplateSpec) -> None:
    """Sets os.environ, sys.path, the format of the log and what SIGINT does."""
    if spec.environment is not None:
        _set_environment(spec.environment, setters.unused(spec.sys_path) if spec.handler is not None else set())
        output.configure(spec.environment)
        # The interpreter has read it at its start, or was started before there was a function.
        sys.dont_write_bytecode = sys.dont_write_bytecode or bool(spec.environment.get("PYTHONDONTWRITEBYTECODE"))
    given = spec.sys_path
    if given:
        sys.path[:] = given + [path for path in sys.path if path not in given]
        for path in given:
            sys.path_importer_cache.pop(path, None)  # it may have been cached before the process entered the mount namespace
    # User code expects KeyboardInterrupt, also of _thread.interrupt_main(). Workers inherit it, so a fork costs nothing more.
    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:  # `main.run` has set it; a template above may have imported more
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def import_declared(names: List[str]) -> List[Dict[str, str]]:
    """Imports each module. Returns those that failed, as `failed` of the `ready` message."""
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # user code: one package must not make the template fail
            failed.append({"module": name, "error": f"{type(error).__name__}: {error}"})
        process_state.note(name)
    return failed


def note_environment() -> None:
    """After the imports of a template: what its modules have set must also be there in the templates below, which do not import
    these modules again (scikit-learn sets KMP_INIT_AT_FORK)."""
    if _given:
        _set_by_modules.update((name, value) for name, value in os.environ.items() if _given.get(name) != value)


def _set_environment(environment: Dict[str, str], unused: Set[str]) -> None:
    current = os.environ
    if environment.get("AWS_EXECUTION_ENV") == "AWS_Lambda_python":
        # The daemon does not know the version of its default interpreter.
        environment = {**environment, "AWS_EXECUTION_ENV": "AWS_Lambda_python{}.{}".format(*sys.version_info)}
    set_by_modules = {name: value for name, value in _set_by_modules.items() if name not in unused}
    environment = {**set_by_modules, **environment}
    for name in [name for name in current if name not in environment]:
        del current[name]
    for name, value in environment.items():
        if current.get(name) != value:
            current[name] = value
    _given.clear()
    _given.update(environment)
    time.tzset()
    _renew_copies()


def _renew_copies() -> None:
    """`wsgiref.handlers`, which Hypercorn and prometheus-client import, copies all variables for its servers."""
    handlers: Any = sys.modules.get("wsgiref.handlers")
    kind = getattr(handlers, "BaseHandler", None)
    if kind is not None and hasattr(kind, "os_environ"):
        kind.os_environ = handlers.read_environ()
