"""Modules of a function's code that have the name of a module which is already loaded.

The folder of the code is first on `sys.path`. So in a process of its own, `import config` takes the code's `config.py`, and not
the package `config`. `import uuid` takes its `uuid.py`, and not Python's. A template has loaded modules before there was a
function, and an import takes what is loaded. Therefore:

- If packages of the environment have loaded such a module, the function does its own imports (`own_imports`, decision 0064).
- If the worker itself has loaded it, the module is removed from `sys.modules` (`give_way`). The worker keeps its references.
  It asks `standard` and `loaded` here instead of `sys.modules`.

Modules that are part of the interpreter, or that every interpreter loads when it starts (`os`, `io`), have priority over the
code in every process. Packages and layers are not looked at.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import FrozenImporter, PathFinder

from .. import FOLDER
from ..forking import findings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Collection, Dict, FrozenSet, List, Optional, Set, Tuple

    from ..spec import TemplateSpec

# What `python3 app.py` has loaded before it looks at the folder of app.py, in Python 3.9 to 3.13.
_AT_START = frozenset(
    (
        "__main__", "_bootlocale", "_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath", "io", "os",
        "posixpath", "site", "stat", "zipimport",
    )
)  # fmt: skip
_OWN = __name__.partition(".")[0]  # this package finds its own modules by its name
# Modules of Python that the worker imports inside functions, with `standard`.
_LATER = ("asyncio", "fcntl", "mmap", "termios", "urllib.parse", "warnings")


class _State:
    def __init__(self) -> None:
        self.before: Optional[FrozenSet[str]] = None  # what was loaded before the packages; None: no package was imported
        self.kept: Dict[str, ModuleType] = {}  # what was removed, and what the worker needs later
        self.replaced: Set[str] = set()  # names of Python's modules that the code has, too


_state = _State()


def begin_packages() -> None:
    """In the template of an environment, before its imports."""
    if _state.before is None:
        _state.before = frozenset(sys.modules)


def own_imports(spec: TemplateSpec) -> str:
    """In the template of a function: why it must do its own imports. Empty: it need not."""
    if _state.before is None:
        return ""
    for name, file in _namesakes(spec, sys.modules.keys() - _state.before):
        shown = findings.printable(os.path.relpath(file, spec.sys_path[0]))
        return f"the code has {shown}, and the packages have imported another module {findings.printable(name)}"
    return ""


def give_way(spec: TemplateSpec) -> None:
    """Before user code is imported: makes the code's modules importable whose names are taken."""
    standard_names = _standard_names(spec)
    found = [name for name, _ in _namesakes(spec, sys.modules.keys() | standard_names)]
    if not standard_names.isdisjoint(found):
        _state.replaced.update(standard_names.intersection(found))
        _load_what_is_needed_later(spec)
    for top in found:
        for name in [name for name in sys.modules if name == top or name.startswith(top + ".")]:
            _state.kept[name] = sys.modules.pop(name)


def standard(name: str) -> Any:
    """A module of Python for the worker's own use, although the code may have another one of this name."""
    return loaded(name) or importlib.import_module(name)


def loaded(name: str) -> Any:
    """The same if it is loaded, otherwise None."""
    kept = _state.kept.get(name)
    if kept is not None or name.partition(".")[0] in _state.replaced:
        return kept
    return sys.modules.get(name)


def _namesakes(spec: TemplateSpec, names: Collection[str]) -> List[Tuple[str, str]]:
    """Those of the names that mean another module in the code than what is loaded, with the code's file."""
    handler = (spec.handler or "").rpartition(".")[0].replace("/", ".").partition(".")[0]
    found = []
    for name in sorted(_listed(spec) & {*names}):
        file = _file_of(name, spec.sys_path)
        if file is None or not file.startswith(spec.sys_path[0] + os.sep) or _is_always_first(name):
            continue
        if not _is_from(sys.modules.get(name), file):
            found.append((name, file))
    # The handler's own module is the code's in any case, and may be in a layer.
    is_taken = handler in names and handler not in (_OWN, *sys.builtin_module_names)
    if is_taken and handler not in dict(found):
        file = _file_of(handler, spec.sys_path)
        if file is not None and not _is_from(sys.modules.get(handler), file):
            found.append((handler, file))
    return found


def _listed(spec: TemplateSpec) -> Set[str]:
    """The first parts of the names in the folders of the code. Not each is that of a module."""
    code = spec.sys_path[:1]
    listed: Set[str] = set()
    for folder in spec.sys_path:
        if folder in code or folder.startswith(code[0] + os.sep):
            try:
                listed.update(entry.partition(".")[0] for entry in os.listdir(folder))
            except OSError:
                continue  # there is no such folder, or it is a file
    return listed


def _file_of(name: str, sys_path: List[str]) -> Optional[str]:
    """None also for a folder without `__init__.py`: a module that is further back on the path has priority over it."""
    spec = PathFinder.find_spec(name, sys_path)
    return spec.origin if spec is not None and spec.has_location else None


def _is_always_first(name: str) -> bool:
    if name in _AT_START or name == _OWN or name in sys.builtin_module_names:
        return True
    return FrozenImporter.find_spec(name) is not None


def _is_from(module: Optional[ModuleType], file: str) -> bool:
    # Without asking the module, which may be anything, and may run code when it is asked.
    values = object.__getattribute__(module, "__dict__") if isinstance(module, type(sys)) else {}
    origin = values.get("__file__")
    return isinstance(origin, str) and (origin == file or os.path.realpath(origin) == os.path.realpath(file))


def _standard_names(spec: TemplateSpec) -> FrozenSet[str]:
    known: Optional[FrozenSet[str]] = getattr(sys, "stdlib_module_names", None)  # since Python 3.10
    if known is not None:
        return known
    folders = [folder for folder in sys.path if folder not in spec.sys_path and os.path.isdir(folder)]
    return frozenset(entry.partition(".")[0] for folder in folders for entry in os.listdir(folder))


def _load_what_is_needed_later(spec: TemplateSpec) -> None:
    """All of the worker, and what that imports. Later it would get the code's modules, also through modules of Python that it
    imports then, such as asyncio. Only functions with such a module pay for this."""
    before = list(sys.path)
    sys.path[:] = [folder for folder in before if folder not in spec.sys_path]
    try:
        for folder, _, files in os.walk(FOLDER):
            package = _OWN + folder[len(FOLDER) :].replace(os.sep, ".")
            for name in sorted(file[:-3] for file in files if file.endswith(".py") and not file.startswith("__")):
                importlib.import_module(f"{package}.{name}")
        for name in _LATER:
            _state.kept[name] = importlib.import_module(name)
        standard("asyncio").new_event_loop().close()  # asyncio imports a part of itself for the first loop
    finally:
        sys.path[:] = before
