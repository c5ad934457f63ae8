"""Calls an ASGI application (asgi.readthedocs.io, version 3): http scopes, and the lifespan of the worker.

Lifespan startup runs in the worker, before READY, because forks must not share what an application opens there. An application
without lifespan raises when it is called with that scope. That is not an error.
"""

from __future__ import annotations

import time

from .. import inputs, output
from ..importing import namesakes
from ..protocol import flow, wire
from ..protocol.channel import ChannelClosed
from . import errors
from .answer import HttpAnswer, as_bytes
from .context import LambdaContext
from .events import decode_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Awaitable, Callable, Dict, Optional, Tuple

    from ..protocol.aio import AsyncChannel
    from . import upload, websocket
    from .handler import Function

_VERSIONS = {"version": "3.0", "spec_version": "2.3"}
SHUTDOWN_S_MAX = 5.0
# An application that sends on for so long after its client has gone does not notice it by itself.
UNNOTICED_S_MAX = 1.0
_UNREAD_PAUSE_S = 0.01  # what it sends until then costs the others little
_SENT_TOO_LATE = "the application sent http.response.body after its response was complete"


class AsgiCall:
    """Serves frames, each in a task of its own."""

    def __init__(self, function: Function, channel: AsyncChannel, state: Dict[str, Any]) -> None:
        output.one_at_a_time = function.spec.concurrency == 1
        self.request_id = ""
        self._application = function.target
        self._info = function.info
        self._is_concurrent = function.spec.concurrency > 1
        self._channel = channel
        self._state = state
        # The `server` of the last scope, and its source. It rarely changes.
        self._host = ("", "")  # no scheme: not yet
        self._server: Tuple[str, int] = ("", 0)

    async def __call__(self, kind: int, stream: int, meta_bytes: bytes, body: bytes) -> None:
        meta = decode_meta(stream, meta_bytes)
        self.request_id = meta["id"]
        output.request_id.set(meta["id"])
        exchange = _Exchange(stream, self._channel, body, meta.get("method", ""))
        if "inputs" in meta:
            if await self._talk(stream, meta):
                return
            exchange.take_rest(meta)
        if self._is_concurrent:
            exchange.listen()
        try:
            if kind != wire.HTTP:
                raise errors.Fault("Runtime.BadRequest", f"an ASGI application cannot answer a frame of kind {kind}")
            await self._application(self._scope(meta), exchange.receive, exchange.send)
            if exchange.is_complete:
                # What it printed after its response, as a background task does. That costs 0.2 us if there is nothing.
                output.flush()
            else:
                if exchange.is_gone:
                    raise flow.ClientGone
                raise errors.Fault("Runtime.IncompleteResponse", "the application returned without completing its response")
        except (SystemExit, ChannelClosed):
            raise
        except BaseException as error:  # every error of the application
            await self._fail(exchange, error, meta["id"])
        finally:
            if self._is_concurrent:
                del self._channel.told[stream]
            if "inputs" in meta:
                inputs.end(meta)

    async def _talk(self, stream: int, meta: Dict[str, Any]) -> bool:
        """Serves a WebSocket. False: the request is not a handshake."""
        from . import websocket

        messages = websocket.take(meta["inputs"])
        if messages is None:
            return False
        exchange = websocket.Exchange(stream, self._channel, messages)
        try:
            await self._application(websocket.scope(self._scope(meta)), exchange.receive, exchange.send)
            if not exchange.is_head_sent:
                raise errors.Fault("Runtime.IncompleteResponse", "the application neither accepted nor rejected the WebSocket")
            await exchange.end()
        except (SystemExit, ChannelClosed):
            raise
        except BaseException as error:  # every error of the application
            await self._fail(exchange, error, meta["id"])
        finally:
            inputs.end(meta)
        return True

    async def _fail(self, exchange: _Exchange | websocket.Exchange, error: BaseException, request_id: str) -> None:
        """Answers with the error, and logs it."""
        exchange.close()
        frames = exchange.failed(error, request_id)
        output.flush()
        rest = self._channel.send(frames) if frames else None
        if rest is not None:
            await rest

    def _scope(self, meta: Dict[str, Any]) -> Dict[str, Any]:
        root_path = meta.get("root_path", "")
        path = root_path + meta["path"]  # a scope's path includes its root_path
        raw_path = path.encode()  # the client's bytes: the daemon refuses a target that is not UTF-8
        if "%" in path:
            unquote = namesakes.standard("urllib.parse").unquote
            path, root_path = unquote(path), unquote(root_path)
        scheme = meta.get("scheme", "http")
        client = meta.get("client")
        pairs = meta.get("headers", ())
        for name, value in pairs:
            if name == "host":
                host = (value, scheme)
                break
        else:
            host = ("", scheme)
        if host != self._host:
            self._server = _server(*host)
            self._host = host
        context = LambdaContext(self._info, meta)
        scope = {
            "type": "http",
            "asgi": _VERSIONS,
            "http_version": "1.1",
            "method": meta["method"],
            "scheme": scheme,
            "path": path,
            "raw_path": raw_path,
            "query_string": meta.get("query", "").encode(),
            "root_path": root_path,
            # ASCII is the same in UTF-8, and UTF-8 is encoded faster because the codec needs no name.
            "headers": [
                (name.encode(), value.encode() if value.isascii() else value.encode("latin-1", "replace"))
                for name, value in pairs
            ],
            "client": tuple(client) if client else None,
            "server": self._server,
            "state": self._state.copy(),
            "aws.context": context,
        }
        if "inputs" in meta or "failed_inputs" in meta:
            scope["pilot.inputs"] = context.inputs
        return scope


class _Exchange(HttpAnswer):
    """`receive` and `send` of one request."""

    __slots__ = ("_channel", "_body", "_flow", "_gone_at", "_is_paced", "_over", "_rest", "_room")

    def __init__(self, stream: int, channel: AsyncChannel, body: bytes, method: str) -> None:
        super().__init__(stream, method)
        self._channel = channel
        self._body: Optional[bytes] = body
        self._over: Optional[asyncio.Event] = None
        self._rest: Optional[upload.AsyncReader] = None
        self._is_paced = False  # by the daemon, which also says if the client hangs up
        self._flow: Optional[flow.Flow] = None  # made when it is needed: most responses are one frame
        self._room: Optional[asyncio.Event] = None  # there is while it is waited for
        self._gone_at = 0.0

    @property
    def is_gone(self) -> bool:
        return self._flow is not None and self._flow.is_gone

    def listen(self) -> None:
        """The daemon can say something about the response from now on."""
        self._is_paced = True
        self._channel.told[self._stream] = self

    def told(self, kind: int, body: bytes) -> None:
        """A frame of the daemon about the response."""
        self._flow = self._flow or flow.Flow()
        self._flow.told(kind, body)
        if self._flow.is_gone:
            self._gone_at = self._gone_at or time.monotonic()
            if self._over is not None:
                self._over.set()
        if self._room is not None:
            self._room.set()

    def take_rest(self, meta: Dict[str, Any]) -> None:
        """The request's body is larger than the frame, and is still being sent."""
        from . import upload

        rest = upload.take(meta["inputs"])
        if rest is not None:
            self._rest = upload.AsyncReader(rest)

    async def receive(self) -> Dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": self._rest is not None}
        if self._rest is not None and not self._rest.is_over:
            try:
                body = await self._rest.read()
            except OSError:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": not self._rest.is_over}
        if not self.is_complete and not self.is_gone:
            self._over = self._over or namesakes.standard("asyncio").Event()
            await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            if self.is_begun:
                raise RuntimeError("the application sent http.response.start twice")
            headers = message.get("headers", ())
            self.head(message["status"], [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
        elif kind == "http.response.body":
            if self.is_complete:
                raise RuntimeError(_SENT_TOO_LATE)
            is_last = not message.get("more_body", False)
            body = message.get("body", b"")
            if type(body) is not bytes:
                body = as_bytes(body)
            if is_last:
                output.flush()
            if self._flow is not None and self._flow.is_gone:
                await self._send_to_nobody(is_last)
                return
            if is_last:
                self.check_end(body)
            if self._is_paced and not self.is_one_frame(body, is_last):
                self._flow = self._flow or flow.Flow()
                await self._send_in_window(self._flow, body, is_last)
            else:
                frames = self.body(body, is_last)
                if frames:
                    rest = self._channel.send(frames)
                    if rest is not None:
                        await rest
            if is_last:
                self.close()
        else:
            raise RuntimeError(f"the application sent an unknown message: {kind}")

    async def _send(self, frames: bytes) -> None:
        rest = self._channel.send(frames) if frames else None
        if rest is not None:
            await rest

    async def _send_in_window(self, of: flow.Flow, data: bytes, is_last: bool) -> None:
        """Waits for the room that the client has, so that the other responses of the worker need not wait for it."""
        pieces = flow.pieces(data)
        for number, piece in enumerate(pieces, 1):
            while of.room <= 0 and not of.is_gone and not self.is_complete:
                if self._room is None or self._room.is_set():  # several tasks may wait
                    self._room = namesakes.standard("asyncio").Event()
                await self._room.wait()
            if of.is_gone:
                await self._send_to_nobody(is_last)
                return
            if self.is_complete:  # another task has ended it meanwhile, perhaps with an error
                raise RuntimeError(_SENT_TOO_LATE)
            frames = self.body(piece, is_last and number == len(pieces))
            if frames:
                of.sent(len(piece))
                await self._send(frames)

    async def _send_to_nobody(self, is_last: bool) -> None:
        """After the client has gone, nothing is sent (spec version 2.3). An application that does not ask, and goes on, gets an
        error in the end."""
        if is_last:
            await self._send(self.end_unread())
            self.close()
        elif time.monotonic() - self._gone_at > UNNOTICED_S_MAX:
            raise flow.ClientGone
        else:
            await namesakes.standard("asyncio").sleep(_UNREAD_PAUSE_S)

    def close(self) -> None:
        if self._over is not None:
            self._over.set()
        if self._room is not None:
            self._room.set()
        if self._rest is not None:
            self._rest.close()


class Lifespan:
    """The lifespan protocol, for an application that may not support it. `state` is copied into each request's scope."""

    def __init__(self, application: Any) -> None:
        loops = namesakes.standard("asyncio")
        self.state: Dict[str, Any] = {}
        self._application = application
        self._inbox: asyncio.Queue[Dict[str, Any]] = loops.Queue()
        self._started = loops.Event()
        self._stopped = loops.Event()
        self._failure: Optional[str] = None
        self._is_running = False

    async def around(
        self,
        serve: Callable[[], Awaitable[None]],
        ready: Callable[[], None],
        fail: Callable[[errors.Fault], object],
    ) -> None:
        """Starts the application, calls `ready`, serves, and stops it. If the application does not start, calls `fail`."""
        try:
            await self.start()
        except errors.Fault as error:
            fail(error)
            return
        ready()
        await serve()
        await self.stop()

    async def start(self) -> None:
        """Raises Fault if the application says that its startup failed."""
        self._task = namesakes.standard("asyncio").get_running_loop().create_task(self._run())
        self._inbox.put_nowait({"type": "lifespan.startup"})
        await self._started.wait()
        if self._failure is not None:
            raise errors.Fault("Runtime.LifespanStartupFailed", self._failure)

    async def stop(self) -> None:
        """Waits at most SHUTDOWN_S_MAX. The daemon may kill the worker at any time anyway."""
        loops = namesakes.standard("asyncio")
        if self._is_running and not self._task.done():
            self._inbox.put_nowait({"type": "lifespan.shutdown"})
            try:
                await loops.wait_for(self._stopped.wait(), SHUTDOWN_S_MAX)
            except loops.TimeoutError:
                pass

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": _VERSIONS, "state": self.state}
        try:
            await self._application(scope, self._inbox.get, self._send)
        except SystemExit:
            raise
        except BaseException as error:  # before startup.complete: other servers also treat this as no lifespan
            if self._is_running:
                errors.body(error)  # into the log
        finally:
            self._started.set()
            self._stopped.set()

    async def _send(self, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "lifespan.startup.complete":
            self._is_running = True
            self._started.set()
        elif kind == "lifespan.startup.failed":
            self._failure = message.get("message") or "the application sent lifespan.startup.failed"
            self._started.set()
        elif kind in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            self._stopped.set()
        else:  # an application that does not look at the type of its scope ends here, before it has done its work for nobody
            raise RuntimeError(f"the application sent {kind} in its lifespan")


def _server(host: str, scheme: str) -> Tuple[str, int]:
    """Name and port of a Host header, which may be empty or nonsense. IPv6 addresses keep their brackets."""
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host, ""
    return name or "localhost", int(port) if port.isdecimal() and len(port) <= 5 else 443 if scheme == "https" else 80
