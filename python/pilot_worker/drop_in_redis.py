"""The drop-in for redis-py: GET answers from an input if it is the key of that server and database.

Both clients of redis-py are served, the plain one and that for asyncio. GET in a pipeline or a transaction, and clients of
clusters, ask the server. The value is copied, because redis-py returns bytes or text.
"""

from __future__ import annotations

from functools import wraps

from .drop_ins import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Optional, Tuple

# They change no string. Only the usual ones are here: any other command with the key makes the server answer from then on.
_READING = frozenset(
    (
        "GET", "MGET", "EXISTS", "TTL", "PTTL", "TYPE", "STRLEN", "GETRANGE", "SUBSTR", "HGET", "HGETALL", "HMGET", "LRANGE",
        "LLEN", "SMEMBERS", "SISMEMBER", "ZRANGE", "ZSCORE", "SCAN", "KEYS", "PING", "PUBLISH", "WATCH",
    )
)  # fmt: skip
# They may change any key.
_CHANGING_ALL = ("EVAL", "FCALL", "FLUSHALL", "FLUSHDB", "SWAPDB", "SELECT", "MIGRATE", "FUNCTION")
_NEVER_DECODE = "NEVER_DECODE"


def _places(store: Dict[str, Any]) -> List[Tuple[str, int, int, bytes]]:
    return [(store["host"].lower(), store["port"], store["database"], store["key"].encode())]


given = Given(_places)


def _server(client: Any) -> Tuple[str, int, int]:
    arguments = client.connection_pool.connection_kwargs
    return arguments.get("host", "localhost").lower(), int(arguments.get("port", 6379)), int(arguments.get("db") or 0)


def _answer(client: Any, arguments: Tuple[Any, ...], options: Dict[str, Any]) -> Optional[Tuple[Any]]:
    """The answer alone in a tuple, or None if the server must be asked."""
    if arguments[0] != "GET" or len(arguments) != 2:
        _note(client, arguments)
        return None
    key = arguments[1]
    try:
        if type(key) is str:
            key = key.encode()  # another encoding makes other bytes only for keys that are no ASCII: these would miss
        found = given.newest((*_server(client), key))
    except (AttributeError, TypeError, ValueError):
        return None  # another kind of client, or something that is no key
    if found is None:
        return None
    value: Any = bytes(found.view())
    if _NEVER_DECODE not in options:
        value = client.connection_pool.get_encoder().decode(value)
    callback = client.response_callbacks.get("GET")
    return (value if callback is None else callback(value),)


def _note(client: Any, arguments: Tuple[Any, ...]) -> None:
    """Forgets the inputs that a command may change."""
    name = arguments[0].decode() if isinstance(arguments[0], bytes) else str(arguments[0])
    command = name.upper().partition(" ")[0]
    if command in _READING:
        return
    try:
        server = _server(client)
    except (AttributeError, TypeError, ValueError):
        return
    if command.startswith(_CHANGING_ALL):
        given.forget(lambda place: place[:2] == server[:2])
        return
    named = {_bytes(argument) for argument in arguments[1:]}
    given.forget(lambda place: place[:3] == server and place[3] in named)


def _bytes(argument: Any) -> bytes:
    if isinstance(argument, str):
        return argument.encode()
    return bytes(argument) if isinstance(argument, (bytes, bytearray, memoryview)) else b""


def _patch(module: ModuleType) -> None:
    client: Any = module.Redis
    execute_command = client.execute_command
    by_place = given.by_place

    @wraps(execute_command)
    def answer_or_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        if by_place:
            answer = _answer(self, arguments, options)
            if answer is not None:
                return answer[0]
        return execute_command(self, *arguments, **options)

    client.execute_command = answer_or_execute
    _patch_pipeline(module)


def _patch_async(module: ModuleType) -> None:
    client: Any = module.Redis
    execute_command = client.execute_command
    by_place = given.by_place

    @wraps(execute_command)
    async def answer_or_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        if by_place:
            answer = _answer(self, arguments, options)
            if answer is not None:
                return answer[0]
        return await execute_command(self, *arguments, **options)

    client.execute_command = answer_or_execute
    _patch_pipeline(module)


def _patch_pipeline(module: ModuleType) -> None:
    """A pipeline asks the server, but what it writes is noted, when the command is queued."""
    pipeline: Any = module.Pipeline
    queue_command = pipeline.execute_command
    by_place = given.by_place

    @wraps(queue_command)
    def note_and_queue(self: Any, *arguments: Any, **options: Any) -> Any:
        if by_place:
            _note(self, arguments)
        return queue_command(self, *arguments, **options)

    pipeline.execute_command = note_and_queue


PATCHES = {"redis.client": _patch, "redis.asyncio.client": _patch_async}
