"""`TemplateSpec`: the checked form of what a template or a worker should become (PROTOCOL.md, section 2).

This file only reads the document. `forking/fork.py` and `importing/imports.py` apply it.
"""

from __future__ import annotations

import binascii

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

INTERFACES = ("event", "asgi", "wsgi")


class SpecError(ValueError):
    """The daemon sent an invalid specification. The message names the key."""


class TemplateSpec:
    """The checked form. A key that the document does not contain has its default value."""

    __slots__ = (
        "level", "cwd", "sys_path", "imports", "handler", "interface", "environment", "uid", "gid",
        "keep_caps", "filter", "concurrency", "function", "secrets", "drop_ins",
    )  # fmt: skip

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict):
            raise SpecError("spec is not an object")
        self.level: str = _of(document, "level", str, "environment")
        self.cwd: Optional[str] = _of(document, "cwd", str, None)
        self.sys_path: List[str] = _strings(document, "sys_path")
        self.imports: List[str] = _strings(document, "imports")
        self.handler: Optional[str] = _of(document, "handler", str, None)
        self.interface: str = _of(document, "interface", str, "event")
        if self.interface not in INTERFACES:
            raise SpecError(f"interface is {self.interface!r}, not one of {', '.join(INTERFACES)}")
        self.environment: Optional[Dict[str, str]] = _environment(document)
        self.uid: Optional[int] = _of(document, "uid", int, None)
        self.gid: Optional[int] = _of(document, "gid", int, None)
        self.keep_caps: bool = _of(document, "keep_caps", bool, False)
        self.filter = _filter(_of(document, "filter", str, None))
        self.concurrency: int = _of(document, "concurrency", int, 1)
        if self.concurrency < 1:
            raise SpecError("concurrency is less than 1")
        self.function: Dict[str, Any] = _of(document, "function", dict, None) or {}
        self.secrets: bool = _of(document, "secrets", bool, False)
        self.drop_ins: List[str] = _strings(document, "drop_ins")


def _of(document: Dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = document.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise SpecError(f"{key} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _strings(document: Dict[str, Any], key: str) -> List[str]:
    values: List[str] = _of(document, key, list, [])
    if not all(isinstance(value, str) for value in values):
        raise SpecError(f"{key} holds something that is not a string")
    return values


def _environment(document: Dict[str, Any]) -> Optional[Dict[str, str]]:
    environment: Optional[Dict[str, str]] = _of(document, "environment", dict, None)
    for key, value in (environment or {}).items():
        if not isinstance(value, str) or not key or "=" in key or "\0" in key + value:
            raise SpecError(f"environment variable {key!r} cannot be set")
    return environment


def _filter(encoded: Optional[str]) -> Optional[kernel.SeccompProgram]:
    if encoded is None:
        return None
    try:
        return kernel.SeccompProgram(binascii.a2b_base64(encoded))
    except ValueError as error:
        raise SpecError(f"filter: {error}") from error
