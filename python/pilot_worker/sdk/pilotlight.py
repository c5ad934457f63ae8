"""The module `pilotlight` of functions: `import pilotlight`. It invokes other functions and hands data to them by reference.

    answer = pilotlight.invoke("next", {"width": 100}, data=image)   # the handler of `next` has it as context.inputs["data"]
    answers = pilotlight.map("part", [{"n": 1}, {"n": 2}], data=image)

Nothing has to be installed. A handler may only invoke functions that `invokes` in its pilot.toml names.
`pilotlight.init` has what the function's initscript has sent, and sends messages to it.
"""

from __future__ import annotations

import json
import mmap
import operator
import os
import posix
import sys
import types

from ..inputs.received import Input
from . import calls as _calls
from . import init

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, Iterable, List, Optional, Type, Union

    Data = Union["Buffer", Input, bytes, bytearray, memoryview]

NAME = "pilotlight"

_NO_EVENT: Any = object()


class InvokeError(Exception):
    """A function could not be invoked, or failed."""


class Refused(InvokeError):
    """The daemon did not do what was asked for. `reason` is one word, such as Forbidden, NotFound, Throttled or NoRoom."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(f"{reason}: {problem}")
        self.reason = reason
        self.problem = problem


class FunctionError(InvokeError):
    """The function raised, timed out or crashed. The attributes are those of Lambda's error."""

    def __init__(self, function: str, error: Dict[str, Any]) -> None:
        self.function = function
        self.error_type = str(error.get("errorType", "Unknown"))
        self.error_message = str(error.get("errorMessage", ""))
        self.stack_trace: List[str] = error.get("stackTrace") or []
        super().__init__(f"function '{function}' failed: {self.error_type}: {self.error_message}")


class MapError(InvokeError):
    """Some items of `map` failed. `results` has the result of each item, or its exception, in order; `errors` the exceptions by
    index."""

    def __init__(self, function: str, results: List[Any]) -> None:
        self.results = results
        self.errors = {index: one for index, one in enumerate(results) if isinstance(one, InvokeError)}
        index, first = next(iter(self.errors.items()))
        super().__init__(f"{len(self.errors)} of {len(results)} calls of '{function}' failed; number {index}: {first}")


class BufferInUse(InvokeError):
    """Something still refers to the memory of a buffer that is handed over."""


class Buffer:
    """Memory to fill and then hand to other functions, without a copy. Make one with `buffer(size)`.

    Fill it through `view` or with `write`. Handing it over ends writing: nothing may refer to `view` any more then.
    """

    def __init__(self, connection: _calls.Calls, size: int) -> None:
        self._calls = connection
        self._descriptor = -1
        self._map: Optional[mmap.mmap] = None
        self._view: Optional[memoryview] = None
        self._is_sealed = False
        self._number = 0  # none: it was refused, or released
        self.size = size
        answer = _asked(connection, op="buffer", len=size)
        self._descriptor = answer["descriptor"]
        self._number = answer["id"]

    @property
    def view(self) -> memoryview:
        """The memory, writable."""
        if self._descriptor < 0:
            raise ValueError("the buffer was handed over or released: nothing can be written any more")
        if self._view is None:
            if self.size:
                self._map = mmap.mmap(self._descriptor, self.size)
                self._view = memoryview(self._map)
            else:
                self._view = memoryview(bytearray())
        return self._view

    def write(self, data: Any, at: int = 0) -> None:
        """Copies bytes into the buffer. Faster than writing to `view`."""
        if self._descriptor < 0:
            raise ValueError("the buffer was handed over or released: nothing can be written any more")
        with _bytes_of(data) as rest:
            if at < 0 or at + len(rest) > self.size:
                raise ValueError(f"{len(rest)} bytes at {at} do not fit into a buffer of {self.size}")
            done = 0
            while done < len(rest):
                done += os.pwrite(self._descriptor, rest[done : done + _WRITE_LEN], at + done)

    def release(self) -> None:
        """Gives the memory back. Functions that have got it keep it until their invocations end."""
        if self._number:
            number, self._number = self._number, 0
            self._close()
            try:
                self._calls.tell(op="release", buffer=number)
            except _calls.Closed:
                pass  # it went with the invocation

    def _tell(self, there: int) -> None:
        """The first bytes are there, and do not change any more: they may go to another node."""
        self._calls.tell(op="filled", buffer=self._number, len=there)

    def seal(self) -> None:
        """Ends writing. `invoke` and `map` do it by themselves."""
        if not self._number:
            raise ValueError("the buffer was released")
        if self._is_sealed:
            return
        self._unmap()
        if self.size and os.fstat(self._descriptor).st_blocks * 512 < self.size:
            os.posix_fallocate(self._descriptor, 0, self.size)  # what was not written: zeros
        _asked(self._calls, op="seal", buffer=self._number)
        self._is_sealed = True
        self._close()

    def _unmap(self) -> None:
        try:
            if self._view is not None:
                self._view.release()
            if self._map is not None:
                self._map.close()
        except BufferError:
            if self._map is not None:
                self._view = memoryview(self._map)
            raise BufferInUse(
                "something still refers to the buffer's view, such as a slice of it or a numpy array: delete it before the "
                "buffer is handed over"
            ) from None
        self._map = self._view = None

    def _close(self) -> None:
        self._map = self._view = None
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            posix.close(descriptor)

    def __len__(self) -> int:
        return self.size

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # It may run in the middle of anything, so it sends nothing itself.
        self._close()
        if self._number:
            self._calls.dropped.append(self._number)

    def __repr__(self) -> str:
        return f"Buffer(size={self.size})"


def buffer(size: int) -> Buffer:
    """Memory of `size` bytes, zero at first. It counts as memory of this function (`memory_mb`) as it is written."""
    return Buffer(_connection(), _size(size))


def invoke(
    function: str, event: Any = _NO_EVENT, *, data: Union[Data, Iterable[Any], None] = None, size: Optional[int] = None
) -> Any:
    """Invokes `function` and returns what its handler returned. Refused or FunctionError if there is no answer.

    `data` is a `Buffer`, an input of this invocation (both without a copy), or bytes (copied once). The function has it as
    `context.inputs["data"]`. It starts while the bytes are copied. The call ends with this invocation, at the latest.

    With `size`, `data` is an iterable of parts that have `size` bytes together. If the function is on another node, a part is
    sent while the next one is made.
    """
    result = _run(function, [event], data, size)[0]
    try:
        if isinstance(result, InvokeError):
            raise result
        return result
    finally:
        del result  # otherwise the exception's traceback refers to it, and the cycle keeps what the handler had


def map(
    function: str,
    events: Iterable[Any],
    *,
    data: Union[Data, Iterable[Any], None] = None,
    size: Optional[int] = None,
    return_exceptions: bool = False,
) -> List[Any]:
    """Invokes `function` once for each event, up to 16 at a time. Returns the results in order. All get the same `data`, which
    is that of `invoke`.

    If some fail, the others are finished. Then MapError is raised, which has all results; or, with `return_exceptions`, the
    exceptions are in the list.
    """
    results = _run(function, events, data, size)
    if not return_exceptions and any(isinstance(result, InvokeError) for result in results):
        raise MapError(function, results)
    return results


def module() -> types.ModuleType:
    """This module under the name by which functions import it."""
    made = types.ModuleType(NAME, __doc__)
    made.__all__ = _PUBLIC  # type: ignore[attr-defined]
    made.__dict__.update((name, globals()[name]) for name in _PUBLIC)
    made.__path__ = []
    made.init = sys.modules.setdefault(init.NAME, init.module())  # type: ignore[attr-defined]
    return made


def _run(function: str, events: Iterable[Any], data: Any, size: Optional[int]) -> List[Any]:
    if not isinstance(function, str):
        raise TypeError(f"a function is named by a str, not by {type(function).__name__}")
    function.encode()  # what is no text ends all calls of the invocation
    if len(function) > _NAME_LEN_MAX:
        raise Refused("NotFound", "no function has such a name: it has 1 to 64 of a-z A-Z 0-9 - _")
    connection = _connection()
    ask: Dict[str, Any] = {"function": function}
    fill: Optional[Callable[[], None]] = None
    made: Optional[Buffer] = None
    name = None if size is not None else _input_name(connection, data)
    if size is not None:
        made, fill = _made_of(connection, data, size)
        ask["buffer"] = made._number
    elif name is not None:
        ask["input"] = name
    elif isinstance(data, Buffer):
        ask["buffer"] = _number_of(data, connection)
        fill = data.seal
    elif data is not None:
        made, fill = _copied(connection, data)
        ask["buffer"] = made._number
    results: List[Any] = []
    running: Dict[int, int] = {}  # the index of the event, by the call's id
    try:
        for index, event in enumerate(events):
            results.append(None)
            running[connection.call(_encoded(event), **ask)] = index
            if fill is not None:  # after the first call, whose worker starts meanwhile
                fill()
                fill = None
        while running:
            number, answer, body = connection.wait(running)
            results[running.pop(number)] = _result(function, answer, body)
    except _calls.Closed:
        raise InvokeError(_OVER) from None
    finally:
        if made is not None:
            made.release()
    return results


def _size(size: int) -> int:
    size = operator.index(size)
    if not 0 <= size < 1 << 63:
        raise ValueError(f"a buffer of {size} bytes cannot be made: give a number from 0 to 2 ** 63 - 1")
    return size


def _result(function: str, answer: Dict[str, Any], body: bytes) -> Any:
    if answer["end"] == "refused":
        return Refused(answer["reason"], answer["problem"])
    value = json.loads(body) if body else None
    if answer["end"] == "done":
        return value
    return FunctionError(function, value if isinstance(value, dict) else {})


def _copied(connection: _calls.Calls, data: Any) -> tuple[Buffer, Callable[[], None]]:
    with memoryview(data) as view:
        made = Buffer(connection, view.nbytes)

    def fill() -> None:
        with _bytes_of(data) as rest:
            for at in range(0, len(rest), _TOLD_LEN):
                if at:
                    made._tell(at)
                made.write(rest[at : at + _TOLD_LEN], at)
        made.seal()

    return made, fill


def _made_of(connection: _calls.Calls, parts: Iterable[Any], size: int) -> tuple[Buffer, Callable[[], None]]:
    """A buffer for `size` bytes, and what fills it with the parts."""
    given = iter(parts)
    made = Buffer(connection, _size(size))
    step = max(_TOLD_LEN_MIN, made.size // _TOLD_MAX)

    def fill() -> None:
        at = told = 0
        for part in given:
            with memoryview(part) as view:
                length = view.nbytes
            if at + length > made.size:
                raise ValueError(f"data has more than the {made.size} bytes of size")
            made.write(part, at)
            at += length
            if at - told >= step:
                made._tell(at)
                told = at
        if at < made.size:
            raise ValueError(f"data has {at} bytes, and size says {made.size}")
        made.seal()

    return made, fill


def _bytes_of(data: Any) -> memoryview:
    """The bytes of an object, in the order of its elements: without a copy if they lie so in memory."""
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def _input_name(connection: _calls.Calls, data: Any) -> Optional[str]:
    """The name of the input that `data` is, if it is a whole one."""
    for name, given in connection.given.items():
        if given is data:
            return name
        mapped = given.mapped
        is_of_it = mapped is not None and isinstance(data, memoryview) and data.obj is mapped
        if is_of_it and data.nbytes == given.size and data.c_contiguous:
            return name
    if isinstance(data, Input):
        raise ValueError(f"{data!r} is not an input of this invocation")
    return None


def _number_of(given: Buffer, connection: _calls.Calls) -> int:
    if given._calls is not connection:
        raise ValueError("the buffer is of another invocation: it ended with it")
    if not given._number:
        raise ValueError("the buffer was released")
    return given._number


def _encoded(event: Any) -> bytes:
    if event is _NO_EVENT:
        return b"{}"
    encoded = event if isinstance(event, bytes) else json.dumps(event).encode()
    if len(encoded) > _EVENT_LEN_MAX:  # it would end all calls of the invocation
        raise Refused("TooLarge", f"the event has {len(encoded)} bytes, and may have {_EVENT_LEN_MAX}: hand it over as data")
    return encoded


def _asked(connection: _calls.Calls, **ask: Any) -> Dict[str, Any]:
    """The answer to a request that is not refused."""
    try:
        _, answer, _ = connection.wait((connection.begin(**ask),))
    except _calls.Closed:
        raise InvokeError(_OVER) from None
    if answer["end"] == "refused":
        raise Refused(answer["reason"], answer["problem"])
    return answer


def _connection() -> _calls.Calls:
    connection = _calls.current()
    if connection is None:
        raise InvokeError(
            "there is no invocation that may invoke others: call this from the handler of a function with "
            'invokes = ["NAME", …] in its pilot.toml; with concurrency above 1, from the handler\'s own thread or task, or in '
            "a thread with its context (contextvars.copy_context().run, asyncio.to_thread)"
        )
    return connection


_OVER = "the invocation is over, and its calls ended with it"
_EVENT_LEN_MAX = 8 << 20  # of a message
_NAME_LEN_MAX = 1000  # no function has such a name, and a message has room for it
_WRITE_LEN = 1 << 30  # one write(2) takes less than 2 GiB
_TOLD_LEN = 8 << 20  # of bytes that are copied, so many are told at a time
_TOLD_LEN_MIN = 256 << 10  # the daemon counts in such steps
_TOLD_MAX = 128  # so often per buffer: after 200 messages at once, the daemon takes one per millisecond
_PUBLIC = ["Buffer", "BufferInUse", "FunctionError", "InvokeError", "MapError", "Refused", "buffer", "invoke", "map"]
