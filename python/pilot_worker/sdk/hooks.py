"""SnapStart's hooks: `from snapshot_restore_py import register_before_snapshot, register_after_restore`.

If the function has installed the package from PyPI, that package is used. Otherwise a finder at the end of `sys.meta_path`
provides a module with the same interface, so that nothing has to be installed. In both cases, the registries of the module in
`sys.modules` are read.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple

    Hook = Tuple[Callable[..., Any], Tuple[Any, ...], "dict[str, Any]"]

NAME = "snapshot_restore_py"
SDK_NAME = "pilotlight"  # pilotlight.py, which is imported when a function imports it


def offer() -> None:
    """Makes the module importable if the package is not installed. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def run_before_snapshot() -> None:
    """Runs in the template, last registered first. Each hook runs once."""
    hooks = _registry("get_before_snapshot")
    while hooks:
        function, args, kwargs = hooks.pop()
        function(*args, **kwargs)


def has_after_restore() -> bool:
    return NAME in sys.modules and bool(_registry("get_after_restore"))


def run_after_restore() -> None:
    """Runs in the worker, first registered first."""
    if NAME in sys.modules:
        for function, args, kwargs in list(_registry("get_after_restore")):
            function(*args, **kwargs)


def _registry(getter: str) -> List[Hook]:
    get = getattr(sys.modules.get(NAME), getter, None)
    return [] if get is None else get()


def _make_module() -> types.ModuleType:
    before: List[Hook] = []
    after: List[Hook] = []

    def register_before_snapshot(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Calls func(*args, **kwargs) before the function's template forks. Returns func, so it is also a decorator."""
        before.append((func, args, kwargs))
        return func

    def register_after_restore(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Calls func(*args, **kwargs) in every new worker before its first invocation. Returns func: also a decorator."""
        after.append((func, args, kwargs))
        return func

    module = types.ModuleType(NAME, "SnapStart hooks, supplied by Pilotlight.")
    members = {
        "register_before_snapshot": register_before_snapshot,
        "register_after_restore": register_after_restore,
        "get_before_snapshot": lambda: before,
        "get_after_restore": lambda: after,
        "__all__": ["register_before_snapshot", "register_after_restore"],
    }
    module.__dict__.update(members)
    return module


class _Finder:
    """Finder and loader of this module and of `pilotlight`. It is the last finder, so an installed package has priority."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in (NAME, SDK_NAME):
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="pilotlight")  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.name == SDK_NAME:
            from . import pilotlight

            return pilotlight.module()
        return _make_module()

    def exec_module(self, module: types.ModuleType) -> None:
        pass
