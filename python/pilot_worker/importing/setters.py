"""Knows which packages set environment variables, or changed something else of the whole process (`process_state.py`), when the
template of an environment imported them, and who has these packages.

Packages such as scikit-learn set variables in `os.environ` at import. A function that imports such a package must find them,
although the import was one level above. A function that never imports it must not: in an interpreter of its own, nobody would
have set them.

Whether a function imports a package is looked up in its files, before they are imported: a file that does not contain the name
of the package, or of one that uses it, imports neither. In doubt it counts as imported, because a variable too many does little
harm.
"""

from __future__ import annotations

import os
import re
import sys
from types import FunctionType, ModuleType

from ..forking import findings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set

# More than this is not searched.
_FILES_MAX = 5_000
_BYTES_MAX = 64 << 20


def _standard() -> FrozenSet[str]:
    known: Optional[FrozenSet[str]] = getattr(sys, "stdlib_module_names", None)  # since Python 3.10
    if known is not None:
        return known
    try:
        found = os.listdir(os.path.dirname(os.__file__))
    except OSError:  # they are in an archive
        found = []
    return frozenset((*sys.builtin_module_names, *(entry.partition(".")[0] for entry in found)))


STANDARD = _standard()


def is_standard(value: object) -> bool:
    return root_of(value) in STANDARD


def root_of(value: object) -> str:
    """The package of a class, a function, or the class of another object."""
    name = value.__module__ if isinstance(value, (type, FunctionType)) else type(value).__module__
    return name.partition(".")[0] if isinstance(name, str) else ""


class _State:
    def __init__(self) -> None:
        self.packages: Dict[str, str] = {}  # by variable: the package that has set it last
        self.changes: Dict[str, str] = {}  # by package: the first thing that it has changed
        self.names: Dict[str, Set[str]] = {}  # by package: itself, and those that use it
        self.searched: List[str] = []  # where the packages of the environment are


_state = _State()


def note(name: str, package: str) -> None:
    """In the template of an environment: a package sets a variable."""
    if package not in STANDARD:
        _state.packages[name] = package


def note_change(what: str, package: str) -> None:
    """The same: a package changes something that the process has one of."""
    if package not in STANDARD:
        _state.changes.setdefault(package, what)


def imported(sys_path: List[str]) -> None:
    """After its imports."""
    _state.searched = list(sys_path)
    packages = {*_state.packages.values(), *_state.changes}
    if not packages:
        return
    users = _users()
    for package in packages:
        found, rest = set(), [package]
        while rest:
            one = rest.pop()
            if one not in found:
                found.add(one)
                rest += users.get(one, ())
        _state.names[package] = found


def unused(sys_path: List[str]) -> Set[str]:
    """In the template of a function, before its imports: the variables of packages that it does not import."""
    packages = _not_imported(sys_path, _state.packages.values())
    return {name for name, package in _state.packages.items() if package in packages}


def unwanted_change(sys_path: List[str]) -> str:
    """At the same time: what a package has changed that the function does not import. Empty: nothing."""
    for package in sorted(_not_imported(sys_path, _state.changes)):
        return f"{findings.printable(package)} changes {_state.changes[package]} at import, and the code does not import it"
    return ""


def _not_imported(sys_path: List[str], packages: Iterable[str]) -> Set[str]:
    folders = [folder for folder in sys_path if folder not in _state.searched]
    if not folders:
        return set()  # its code is where the packages are
    return {package for package in {*packages} if not _may_import(folders, _state.names[package])}


def _users() -> Dict[str, Set[str]]:
    """By package, those whose modules have something of it."""
    users: Dict[str, Set[str]] = {}
    for name, module in list(sys.modules.items()):
        user = name.partition(".")[0]
        if user in STANDARD:
            continue
        for package in _used_by(module):
            if package != user and package not in STANDARD:
                users.setdefault(package, set()).add(user)
    return users


def _used_by(module: ModuleType) -> Iterator[str]:
    try:
        values = list(vars(module).values())
    except TypeError:  # something else that a program has put there
        return
    for value in values:
        kind: Any = type(value)
        if issubclass(kind, ModuleType):
            name = object.__getattribute__(value, "__dict__").get("__name__")
        elif kind is FunctionType:
            name = value.__module__
        elif issubclass(kind, type):
            name = type.__getattribute__(value, "__dict__").get("__module__")
        else:
            continue  # it may run code when it is asked
        if isinstance(name, str):
            yield name.partition(".")[0]


def _may_import(folders: List[str], names: Set[str]) -> bool:
    """Whether a file below the folders has one of the names in it."""
    word = re.compile(rb"(?<![A-Za-z0-9_])(?:" + b"|".join(re.escape(name.encode()) for name in names) + rb")(?![A-Za-z0-9_])")
    files = size = 0
    for top in folders:
        if os.path.isfile(top):  # a zip file
            return True
        for folder, below, inside in os.walk(top):
            if any(os.path.islink(os.path.join(folder, name)) for name in below):
                return True
            if "__pycache__" in below:
                below.remove("__pycache__")
            for file in inside:
                if not file.endswith((".py", ".pyc", ".pth")):
                    continue
                try:
                    with open(os.path.join(folder, file), "rb") as opened:
                        text = opened.read(_BYTES_MAX)
                except OSError:
                    return True
                files, size = files + 1, size + len(text)
                if files > _FILES_MAX or size > _BYTES_MAX or word.search(text):
                    return True
    return False
