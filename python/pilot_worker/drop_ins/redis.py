"""The drop-in for redis-py: GET answers from an input if it is the key of that server and database.

Both clients of redis-py are served, the plain one and that for asyncio. GET in a pipeline or a transaction, and clients of
clusters and of Sentinel, ask the server. So do clients with a Unix socket, and those whose pool has had a SELECT. The value is
copied, because redis-py returns bytes or text.
"""

from __future__ import annotations

from functools import wraps

from .given import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

# They change no string. Only the usual ones are here: any other command with the key makes the server answer from then on.
_READING = frozenset(
    (
        "GET", "MGET", "EXISTS", "TTL", "PTTL", "TYPE", "STRLEN", "GETRANGE", "SUBSTR", "HGET", "HGETALL", "HMGET", "LRANGE",
        "LLEN", "SMEMBERS", "SISMEMBER", "ZRANGE", "ZSCORE", "SCAN", "KEYS", "PING", "PUBLISH", "WATCH",
    )
)  # fmt: skip
# They change their first key only. The others may change any of their words.
_CHANGING_ONE = frozenset(
    (
        "SET", "SETEX", "PSETEX", "SETNX", "SETRANGE", "GETSET", "GETDEL", "GETEX", "APPEND", "INCR", "INCRBY", "INCRBYFLOAT",
        "DECR", "DECRBY", "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST", "HSET", "HDEL", "HINCRBY", "LPUSH", "RPUSH",
        "LPOP", "RPOP", "LTRIM", "LREM", "SADD", "SREM", "ZADD", "ZREM", "ZINCRBY", "XADD", "XTRIM",
    )
)  # fmt: skip
# They may change any key.
_CHANGING_ALL = ("EVAL", "FCALL", "FLUSHALL", "FLUSHDB", "SWAPDB", "MIGRATE", "FUNCTION")
# From then on, a connection has another database than its pool was made with.
_SELECTING = frozenset(("SELECT", "RESET"))
_ENCODE = "_pilot_encode"  # on a pool
_QUEUED = "_pilot_queued"  # on a pipeline: what it will write
_SELECTED = "_pilot_selected"  # on a pool: one of its connections has had such a command
# Without a host, redis-py's own classes connect to localhost. Other classes may connect to anything.
_MODULES = frozenset(("redis.connection", "redis.asyncio.connection"))
_NEVER_DECODE = "NEVER_DECODE"
_NOTHING: List[Tuple[Any, Any]] = []
_KEY_LEN_MAX = 1024  # bytes of the key of an input


def _places(store: Dict[str, Any]) -> List[Tuple[str, int, int, bytes]]:
    return [(store["host"].lower(), store["port"], store["database"], store["key"].encode())]


def _writes(place: Tuple[str, int, int, bytes]) -> Iterator[Tuple[Any, Any]]:
    """A server and a key, each of which may be None: any."""
    # In all databases, because COPY and MOVE write to another one.
    for server in (place[:2], None):
        for key in (place[3], None):
            yield server, key


given = Given(_places, _writes)


def _server(client: Any) -> Optional[Tuple[str, int, int]]:
    """Host, port and database of all connections of the client. None: they are not known, so the server must be asked."""
    pool = client.connection_pool
    arguments = pool.connection_kwargs
    if "path" in arguments or hasattr(pool, "sentinel_manager") or hasattr(pool, _SELECTED):
        return None
    host = arguments.get("host")
    if host is None:
        if not {type(pool).__module__, pool.connection_class.__module__} <= _MODULES:
            return None
        host = "localhost"
    return host.lower(), int(arguments.get("port", 6379)), int(arguments.get("db") or 0)


def _answer(client: Any, arguments: Tuple[Any, ...], options: Dict[str, Any]) -> Optional[Tuple[Any]]:
    """The answer to GET alone in a tuple, or None if the server must be asked."""
    key = arguments[1]
    try:
        if type(key) is str:
            key = _encode_of(client)(key)
        server = _server(client)
        found = None if server is None else given.newest((*server, key))
    except (AttributeError, TypeError, ValueError):
        return None  # another kind of client, or something that is no key
    if found is None:
        return None
    value: Any = bytes(found.view())
    if _NEVER_DECODE not in options:
        value = client.connection_pool.get_encoder().decode(value)
    callback = client.response_callbacks.get("GET")
    return (value if callback is None else callback(value),)


def _written_by(client: Any, command: str, arguments: Tuple[Any, ...]) -> List[Tuple[Any, Any]]:
    """What a command may change. A client whose server is not known may write to any. SELECT is noted."""
    if command in _READING:
        return _NOTHING
    if command in _SELECTING:
        _note_select(client)
        return _NOTHING
    try:
        server = _server(client)
    except (AttributeError, TypeError, ValueError):
        server = None
    if command in _CHANGING_ONE and arguments[0] == command:
        arguments = arguments[:2]
        if server is not None and len(arguments) == 2 and type(arguments[1]) is str:
            try:
                return [(server[:2], _encode_of(client)(arguments[1]))]
            except UnicodeError:
                pass  # the client says it, too
    named = None if command.startswith(_CHANGING_ALL) else _named(client, arguments)
    return [(server and server[:2], key) for key in ((None,) if named is None else named)]


def _named(client: Any, arguments: Tuple[Any, ...]) -> Optional[Set[bytes]]:
    """The words of a command that may be a key, as the client sends them. None: this client or a type is not known."""
    try:
        encode = _encode_of(client)
        name = arguments[0]
        # redis-py sends these as words of their own.
        more = () if type(name) is str and " " not in name else bytes(encode(name)).split()[1:]
        # A value may be long. A character has a byte at least.
        short = [one for one in arguments[1:] if not isinstance(one, (bytes, str)) or len(one) <= _KEY_LEN_MAX]
        return {*more, *[bytes(encode(one)) for one in short]}
    except Exception:  # of any encoder
        return None


def _encode_of(client: Any) -> Any:
    """Makes bytes as the client does. It is kept with the pool, which has one way for ever."""
    pool = client.connection_pool
    encode = pool.__dict__.get(_ENCODE)
    if encode is None:
        encode = pool.get_encoder().encode
        setattr(pool, _ENCODE, encode)
    return encode


def _command(arguments: Tuple[Any, ...]) -> str:
    """The first word of a command."""
    name = arguments[0]
    if type(name) is str and name.isupper() and " " not in name:
        return name
    name = name.decode("latin-1") if isinstance(name, bytes) else str(name)
    return name.upper().partition(" ")[0]


def _note_select(client: Any) -> None:
    """Marks the pool: its connections are used by others, and by later invocations."""
    try:
        setattr(client.connection_pool, _SELECTED, True)
    except AttributeError:
        pass  # another kind of client, which is not answered


def _patch(module: ModuleType) -> None:
    client: Any = module.Redis
    execute_command = client.execute_command
    by_place = given.by_place

    @wraps(execute_command)
    def answer_or_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        if by_place and arguments[0] == "GET" and len(arguments) == 2:
            answer = _answer(self, arguments, options)
            if answer is not None:
                return answer[0]
        written = _written_by(self, _command(arguments), arguments)
        if not written:
            return execute_command(self, *arguments, **options)
        given.wrote(written)
        try:
            return execute_command(self, *arguments, **options)
        finally:
            given.wrote(written)

    client.execute_command = answer_or_execute
    _patch_pipeline(module)
    pipeline: Any = module.Pipeline
    execute = pipeline.execute

    @wraps(execute)
    def note_and_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        with given.writing(self.__dict__.pop(_QUEUED, ())):
            return execute(self, *arguments, **options)

    pipeline.execute = note_and_execute


def _patch_async(module: ModuleType) -> None:
    client: Any = module.Redis
    execute_command = client.execute_command
    by_place = given.by_place

    @wraps(execute_command)
    async def answer_or_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        if by_place and arguments[0] == "GET" and len(arguments) == 2:
            answer = _answer(self, arguments, options)
            if answer is not None:
                return answer[0]
        with given.writing(_written_by(self, _command(arguments), arguments)):
            return await execute_command(self, *arguments, **options)

    client.execute_command = answer_or_execute
    _patch_pipeline(module)
    pipeline: Any = module.Pipeline
    execute = pipeline.execute

    @wraps(execute)
    async def note_and_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        with given.writing(self.__dict__.pop(_QUEUED, ())):
            return await execute(self, *arguments, **options)

    pipeline.execute = note_and_execute


def _patch_pipeline(module: ModuleType) -> None:
    """A pipeline asks the server, but what it writes is noted, when the command is queued and when it is executed."""
    pipeline: Any = module.Pipeline
    queue_command = pipeline.execute_command

    @wraps(queue_command)
    def note_and_queue(self: Any, *arguments: Any, **options: Any) -> Any:
        written = _written_by(self, _command(arguments), arguments)
        self.__dict__.setdefault(_QUEUED, set()).update(written)
        given.wrote(written)  # after WATCH, it is executed now
        return queue_command(self, *arguments, **options)

    pipeline.execute_command = note_and_queue


PATCHES = {"redis.client": _patch, "redis.asyncio.client": _patch_async}
