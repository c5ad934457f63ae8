"""Descriptors that come with an invocation: memory to map and connected sockets (PROTOCOL.md, section 1).

A descriptor arrives with the first byte of its frame, so it is here before the frame can be decoded. It waits in `_arrived`,
then under its frame's stream. From then on it belongs to the function's `Input` (`received.py`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping

from ..protocol import rights
from . import received
from .received import MESSAGE_PREFIX, Input, InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Deque, Dict, Iterable, Iterator, List, Tuple

DESCRIPTORS_MAX = 64
ANCILLARY_LEN = rights.space(DESCRIPTORS_MAX)

# By request id, of invocations that run.
messages: Dict[str, Messages] = {}
_READER_LEN = 64 * 1024
SCRIPT_NAME = ":init"  # the socket of a script that goes on, which is no input of the handler

_arrived: Deque[int] = deque()
_of_stream: Dict[int, Tuple[int, ...]] = {}


class Messages:
    """What the initscript has sent to one invocation: inputs whose names begin with `init.`, for `sdk/init.py`."""

    __slots__ = ("given", "problems", "arriving")

    def __init__(self, given: Dict[str, Input], problems: Dict[str, str], arriving: Any) -> None:
        self.given = given
        self.problems = problems  # why there is no message, by its name
        self.arriving = arriving  # what still comes: an `arriving.Arriving`, or None


class Inputs(Mapping):  # type: ignore[type-arg]  # a type parameter would be evaluated at run time
    """The inputs of one invocation by name. Memory is a read-only memoryview, without a copy; something else is an `Input`.
    If an input still arrives, its view waits for the whole. One that was decoded is a `decoded.Decoded`.

    What is taken from here is valid as long as something refers to it. Asking for an optional input that could not be fetched
    raises InputError; `in` and the iteration leave it out.
    """

    def __init__(self, given: Dict[str, Input], failed: Iterable[Dict[str, str]]) -> None:
        self._given = given
        self._failed = {entry["name"]: entry["problem"] for entry in failed}

    def __getitem__(self, name: str) -> Any:
        given = self.raw(name)
        if given.kind != "memory" or given.by:
            return given
        return given.view()

    def raw(self, name: str) -> Input:
        """The descriptor of an input. KeyError, or InputError if the input could not be fetched."""
        try:
            return self._given[name]
        except KeyError:
            if name in self._failed:
                raise InputError(f"input {name!r}: {self._failed[name]}") from None
            raise

    def open(self, name: str) -> BinaryIO:
        """A file to read the input, at its beginning, to be closed by the caller.

        If the input still arrives, reading waits for what is read."""
        given = self.raw(name)
        if given.is_whole:
            return open(self._own_path(name), "rb")
        import io

        from .growing import Reader

        return io.BufferedReader(Reader(given), _READER_LEN)  # type: ignore[arg-type]  # only those are not whole

    def path(self, name: str) -> str:
        """A path that programs can open to read the input, valid during the invocation. Waits for the whole input."""
        path = self._own_path(name)
        _let_children_look()
        return path

    def _own_path(self, name: str) -> str:
        given = self.raw(name)
        given.whole()
        return f"/proc/{os.getpid()}/fd/{given.fileno()}"

    def array(self, name: str, dtype: Any = "uint8") -> Any:
        """A read-only numpy array over the memory of the input. If it was decoded: the array that it is."""
        given: Any = self.raw(name)
        if given.by:
            return given.array
        import numpy

        return numpy.frombuffer(self[name], dtype=dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"Inputs({list(self._given.values())}, failed={self._failed})"


def _let_children_look() -> None:
    """Lets processes that the function starts open this one's descriptors by `/proc`. They have its user, and no more rights.

    At its start, a worker does not let them: see PR_SET_DUMPABLE(2const). It is a limit that prevents core dumps."""
    from .. import kernel  # imports ctypes

    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def arrived(ancillary: List[Tuple[int, int, bytes]]) -> None:
    """Takes the control messages of recvmsg(2)."""
    _arrived.extend(rights.descriptors(ancillary))


def claim(stream: int, count: int) -> bool:
    """The next `count` descriptors belong to this stream's frame. False: there are not that many."""
    if count > len(_arrived):
        return False
    _of_stream[stream] = tuple(_arrived.popleft() for _ in range(count))
    return True


def take(stream: int, described: List[Dict[str, Any]], request_id: str = "") -> Dict[str, Input]:
    """The inputs of an invocation by name, from `InvokeMeta.inputs`, which has one entry per descriptor.

    The progress of an input comes after it."""
    descriptors = _of_stream.pop(stream, ())
    taken: Dict[str, Any] = {}
    for entry, descriptor in zip(described, descriptors):
        name, kind = entry["name"], entry["kind"]
        if kind == "growing":
            from .growing import Growing

            taken[name] = Growing(name, entry.get("len"), descriptor, entry.get("store"))
        elif "decoded" in entry:
            from .decoded import Decoded

            taken[name] = Decoded(name, entry["len"], descriptor, entry["decoded"])
        elif kind == "progress":
            taken[name].follow(descriptor)
        else:
            taken[name] = Input(name, kind, entry.get("len", 0), descriptor, entry.get("store"))
    if received.watcher is not None:
        received.watcher.begin(taken.values(), request_id)
    return taken


def begin_messages(meta: Dict[str, Any]) -> None:
    """Keeps the messages of an invocation, if it has any or if its initscript failed."""
    given = {name: one for name, one in meta.get("inputs", {}).items() if name.startswith(MESSAGE_PREFIX)}
    failed = meta.get("failed_inputs", ())
    problems = {entry["name"]: entry["problem"] for entry in failed if entry["name"].startswith(MESSAGE_PREFIX)}
    arriving = None
    if SCRIPT_NAME in meta.get("inputs", ()):
        from .arriving import Arriving

        arriving = Arriving(meta["inputs"].pop(SCRIPT_NAME).detach(), meta["id"])
    if given or problems or arriving:
        meta.setdefault("inputs", {})  # so that `end` is called
        messages[meta["id"]] = Messages(given, problems, arriving)


def end(meta: Dict[str, Any]) -> None:
    """An invocation with inputs has ended. What the function still has of them remains valid."""
    if received.watcher is not None:
        received.watcher.end(meta["inputs"].values())
    sent = messages.pop(meta["id"], None)
    if sent is not None and sent.arriving is not None:
        sent.arriving.close()
    if "calls" in meta:
        from ..sdk import calls

        calls.end(meta)
