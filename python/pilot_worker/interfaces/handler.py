"""Finds the handler that a specification names, with AWS Lambda's rules and error messages.

It does not call handlers. `events.py`, `asgi.py` and `wsgi.py` do.
"""

from __future__ import annotations

import importlib
import sys

from ..sdk.sentry import INTEGRATION, through_integration
from .context import FunctionInfo
from .errors import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..spec import TemplateSpec

_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE; inspect itself is slow to import
_PARAMETERS = {"asgi": ("scope", "receive", "send"), "wsgi": ("environ", "start_response")}


class Function:
    """A specification together with the callable that it names."""

    __slots__ = ("spec", "target", "is_async", "info")

    def __init__(self, spec: TemplateSpec, target: Any) -> None:
        self.spec = spec
        self.target = target
        self.info = FunctionInfo(spec.function)
        self.is_async = spec.interface == "asgi" or (spec.interface == "event" and _is_coroutine_function(target))


def load(spec: TemplateSpec) -> Function:
    """Imports the module and looks up the attribute. Raises Fault, or what the module raised."""
    if spec.drop_ins:
        from .. import drop_ins

        drop_ins.prepare(spec.drop_ins)
    function = Function(spec, _find(spec))
    # Here, because workers then share it, and functions that do not need it have fewer mappings, which a fork copies.
    if function.is_async:
        from ..protocol import aio  # noqa: F401 - also imports asyncio
    elif spec.concurrency > 1:
        from ..protocol import threads  # noqa: F401
    if not function.is_async and spec.interface == "event" and INTEGRATION in sys.modules:
        function.target = through_integration(function.target)
    return function


def _find(spec: TemplateSpec) -> Any:
    name = spec.handler or ""
    module_name, dot, attribute = name.rpartition(".")
    if not dot or not module_name or not attribute:
        raise Fault("Runtime.MalformedHandlerName", f"Bad handler '{name}': not enough values to unpack (expected 2, got 1)")
    dotted = module_name.replace("/", ".")
    top = dotted.partition(".")[0]
    if top in sys.builtin_module_names:
        raise Fault("Runtime.BuiltInModuleConflict", f"Cannot use built-in module {module_name} as a handler module")
    try:
        module = importlib.import_module(dotted)
    except ImportError as error:
        raise _with_stack("Runtime.ImportModuleError", f"Unable to import module '{module_name}': {error}", error) from error
    except SyntaxError as error:
        where = f'  File "{error.filename}" Line {error.lineno}\n    {error.text}'
        raise Fault("Runtime.UserCodeSyntaxError", f"Syntax error in module '{module_name}': {error}", [where]) from error
    try:
        target = getattr(module, attribute)
    except AttributeError as error:
        raise Fault("Runtime.HandlerNotFound", f"Handler '{attribute}' missing on module '{module_name}'") from error
    if not callable(target):
        raise Fault("Runtime.HandlerNotFound", f"Handler '{attribute}' of module '{module_name}' is not callable")
    interface = _interface_of(target)
    if interface not in ("", spec.interface):
        kind = "an ASGI" if interface == "asgi" else "a WSGI"
        problem = f"Handler '{attribute}' of module '{module_name}' is {kind} application"
        raise Fault("Runtime.WrongInterface", f'{problem}: set interface = "{interface}" in pilot.toml')
    return target


def _with_stack(kind: str, message: str, error: BaseException) -> Fault:
    from .errors import stack

    return Fault(kind, message, stack(error.__traceback__))


def _interface_of(target: Any) -> str:
    """The interface whose parameters the callable has, by the names that its specification uses. Empty: another one."""
    code = _code_of(target)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    for interface, parameters in _PARAMETERS.items():
        if names[-len(parameters) :] == parameters and len(names) <= len(parameters) + 1:  # perhaps `self`
            return interface
    return ""


def _is_coroutine_function(target: Any) -> bool:
    code = _code_of(target)
    return bool(code is not None and code.co_flags & _CO_COROUTINE)


def _code_of(target: Any) -> Any:
    """The code of a function, of a method, or of what an instance is called with. None: it is not written in Python."""
    function = getattr(target, "__func__", target)
    if not hasattr(function, "__code__"):
        function = type(target).__call__  # a callable instance
    return getattr(function, "__code__", None)
