"""Drop-ins: clients of stores answer from the inputs of the running invocations, so a function need not know of them.

`prepare` is called before the handler is imported, and patches a client's module when it gets imported. What a client asks for
is looked up among the inputs that have a `store` (PROTOCOL.md, `InvokeMeta`). Whatever is not there, or not exactly what was
asked for, goes to the store as without a drop-in. An input answers only the invocation that has it. It is no answer once that
has ended, or if the function itself has written to the object since the store was asked (`given.py`).

- It is not a cache: nothing is looked up that is no input.
- It knows no client. `s3.py`, `redis.py`, `http.py` and `sqs.py` do, and `lambda_client.py`,
  whose client has no store: it invokes.
"""

from __future__ import annotations

import sys

from ..inputs import received

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterable, List, Set

    from ..inputs.received import Input
    from .given import Given

    Patch = Callable[[ModuleType], None]


_kinds: Dict[str, Given] = {}
_waiting: Dict[str, List[Patch]] = {}
_prepared: Set[str] = set()


def prepare(kinds: Iterable[str]) -> None:
    """Installs the drop-ins for these kinds of stores. A kind that this worker does not know is left out."""
    for kind in kinds:
        if kind in _prepared:
            continue
        _prepared.add(kind)
        if kind == "s3":
            from . import s3

            _kinds[kind] = s3.given
            patches = s3.PATCHES
        elif kind == "redis":
            from . import redis

            _kinds[kind] = redis.given
            patches = redis.PATCHES
        elif kind == "http":
            from . import http

            _kinds[kind] = http.given
            patches = http.PATCHES
        elif kind == "sqs":
            from . import sqs

            _kinds[kind] = sqs.given
            patches = sqs.PATCHES
        elif kind == "lambda":
            from . import lambda_client

            lambda_client.prepare()
            patches = lambda_client.PATCHES
        else:
            continue
        for name, patch in patches.items():
            after_import(name, patch)
    received.watcher = sys.modules[__name__]


def begin(given: Iterable[Input], request_id: str) -> None:
    """An invocation begins: its inputs are answers from now on."""
    for one in given:
        one.invocation = request_id
        if one.store is not None and one.store["kind"] in _kinds:
            _kinds[one.store["kind"]].add(one)


def end(given: Iterable[Input]) -> None:
    """The invocation has ended."""
    for one in given:
        if one.store is not None and one.store["kind"] in _kinds:
            _kinds[one.store["kind"]].remove(one)


def after_import(name: str, patch: Patch) -> None:
    """Calls `patch` with the module: now if it is loaded, otherwise when it has been imported."""
    module = sys.modules.get(name)
    if module is not None:
        _apply(patch, module)
        return
    _waiting.setdefault(name, []).append(patch)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _apply(patch: Patch, module: ModuleType) -> None:
    try:
        patch(module)
    except AttributeError:
        pass  # a version of the client that is built differently: it always asks the store


class _Finder:
    """Finds the modules that somebody waits for, with the other finders, and gives them a loader that calls `_apply`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = _Loader(spec.loader)
                    return spec
        return None


class _Loader:
    """The loader of a module, and what is done afterwards. The module gets its own loader back."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for patch in _waiting.pop(module.__name__, ()):
            _apply(patch, module)
        if not _waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)


_finder: Any = _Finder()
