"""Calls a WSGI application (PEP 3333): one `HTTP` frame in, `HEAD`, `CHUNK` … `END` out.

Chunks of the iterable are sent as they come. If the first chunk is the only one, or has the whole Content-Length, one send is
enough.

Most applications read as much of a request's body as CONTENT_LENGTH says, and without it nothing. So a body whose length the
client does not say is read to its end before the application is called.
"""

from __future__ import annotations

import io
import sys

from .. import inputs, output
from ..importing import namesakes
from ..protocol import flow, wire
from ..protocol.channel import ChannelClosed
from . import errors
from .answer import HttpAnswer, as_bytes, check_header
from .context import LambdaContext
from .events import decode_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, Iterable, List, Optional, Tuple

    from ..protocol.channel import Channel
    from .handler import Function


_MEMORY_MB = 256  # if the specification does not say it
_READ_LEN = 64 * 1024


class WsgiCall:
    """Serves one frame at a time. Any thread may call it."""

    __slots__ = ("request_id", "_application", "_info", "_is_concurrent", "_channel", "_flows", "_unquote", "_whole_len_max")

    def __init__(self, function: Function, channel: Channel) -> None:
        output.one_at_a_time = function.spec.concurrency == 1
        self.request_id = ""
        self._application = function.target
        self._info = function.info
        self._is_concurrent = function.spec.concurrency > 1
        self._channel = channel
        self._flows = flow.Flows() if self._is_concurrent else None
        self._unquote = namesakes.standard("urllib.parse").unquote_to_bytes
        # The application needs some memory, too, and so do the first 6 MB, which come with the request.
        self._whole_len_max = (int(function.spec.function.get("memory_mb", _MEMORY_MB)) << 20) // 3

    def __call__(self, kind: int, stream: int, meta_bytes: bytes, body: bytes) -> None:
        meta = decode_meta(stream, meta_bytes)
        self.request_id = request_id = meta["id"]
        output.request_id.set(request_id)
        answer = _Answer(stream, meta.get("method", ""), self._channel, self._flows)
        sent: Optional[IO[bytes]] = None
        try:
            if kind != wire.HTTP:
                raise errors.Fault("Runtime.BadRequest", f"a WSGI application cannot answer a frame of kind {kind}")
            sent, length = self._body(meta, body)
            self._respond(answer, self._environ(meta, sent, length))
        except (SystemExit, ChannelClosed):
            raise
        except errors.RequestTooLarge as error:
            answer.head(413, [("content-type", "application/json")])
            answer.send(errors.body(error, request_id), is_last=True)
        except BaseException as error:  # every error of the application
            output.flush()
            self._channel.send(answer.failed(error, request_id))
        finally:
            answer.close()
            if "inputs" in meta:
                inputs.end(meta)
                if isinstance(sent, io.BufferedReader) and isinstance(sent.raw, io.FileIO):
                    sent.close()  # or the application may keep its memory

    def told(self, kind: int, stream: int, body: bytes) -> None:
        """A frame about a response. With concurrency above 1 only."""
        assert self._flows is not None, "the caller has looked"
        self._flows.told(kind, stream, body)

    def _respond(self, answer: _Answer, environ: Dict[str, Any]) -> None:
        response = _StartResponse(answer)
        chunks: Iterable[bytes] = self._application(environ, response)
        # PEP 3333, "Handling the Content-Length Header". No other class: its len() is the application's.
        is_only = type(chunks) in (list, tuple) and len(chunks) == 1  # type: ignore[arg-type]
        try:
            for part in chunks:
                if part and not answer.is_complete:
                    chunk = part if type(part) is bytes else as_bytes(part)
                    is_last = not answer.is_head_sent and (is_only or answer.content_length() == len(chunk))
                    if is_last and is_only:
                        answer.check_end(chunk)
                    answer.send(chunk, is_last)
            if not answer.is_complete:
                answer.check_end(b"")
                answer.send(b"", is_last=True)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def _body(self, meta: Dict[str, Any], body: bytes) -> Tuple[IO[bytes], str]:
        """`wsgi.input` and CONTENT_LENGTH."""
        rest = None
        if "inputs" in meta:
            from . import upload

            rest = upload.take(meta["inputs"])
        if rest is None:
            return io.BytesIO(body), str(len(body))
        sent = upload.Reader(body, rest)
        for name, value in meta.get("headers", ()):
            if name == "content-length":
                return io.BufferedReader(sent, _READ_LEN), value
        with sent:
            whole = upload.Whole(sent, self._whole_len_max)
        return io.BufferedReader(whole, _READ_LEN), str(whole.size)

    def _environ(self, meta: Dict[str, Any], sent: IO[bytes], length: str) -> Dict[str, Any]:
        client = meta.get("client") or ["", 0]
        scheme = meta.get("scheme", "http")
        context = LambdaContext(self._info, meta)
        query = meta.get("query", "")
        uri = meta.get("root_path", "") + meta["path"]
        if query:
            uri += "?" + query
        if not uri.isascii():  # "native strings" of PEP 3333: each character is a byte of the client's UTF-8
            query, uri = query.encode().decode("latin-1"), uri.encode().decode("latin-1")
        environ: Dict[str, Any] = {
            "REQUEST_METHOD": meta["method"],
            "SCRIPT_NAME": self._unquote(meta.get("root_path", "")).decode("latin-1"),
            "PATH_INFO": self._unquote(meta["path"]).decode("latin-1"),
            "QUERY_STRING": query,
            "REQUEST_URI": uri,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": client[0],
            "REMOTE_PORT": str(client[1]),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": scheme,
            "CONTENT_LENGTH": length,
            "wsgi.input": sent,
            "wsgi.input_terminated": True,
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": self._is_concurrent,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            "aws.context": context,
        }
        if "inputs" in meta or "failed_inputs" in meta:
            environ["pilot.inputs"] = context.inputs
        for name, value in meta.get("headers", ()):
            if "_" in name:  # a client could replace X-Forwarded-For by X_Forwarded_For
                continue
            key = name.upper().replace("-", "_")
            if key == "CONTENT_TYPE":
                environ[key] = value
            elif key != "CONTENT_LENGTH":
                key = "HTTP_" + key
                separator = "; " if key == "HTTP_COOKIE" else ","
                environ[key] = environ[key] + separator + value if key in environ else value
        # As `asgi._server`, without a call: `[::1]` and `[::1]:80` are names with brackets (RFC 3875, section 4.1.14).
        host = environ.get("HTTP_HOST", "")
        name, colon, port = host.rpartition(":")
        if not colon or port.endswith("]"):
            name, port = host, ""
        environ["SERVER_NAME"] = name or "localhost"
        environ["SERVER_PORT"] = port if port.isdecimal() and len(port) <= 5 else "443" if scheme == "https" else "80"
        return environ


class _Answer(HttpAnswer):
    """A response that is sent by a thread."""

    __slots__ = ("_channel", "_flow", "_flows")

    def __init__(self, stream: int, method: str, channel: Channel, flows: Optional[flow.Flows]) -> None:
        super().__init__(stream, method)
        self._channel = channel
        self._flows = flows
        self._flow = flows.begin(stream) if flows is not None else None

    @property
    def is_gone(self) -> bool:
        return self._flow is not None and self._flow.is_gone

    def close(self) -> None:
        if self._flows is not None:
            self._flows.end(self._stream)

    def send(self, data: bytes, is_last: bool) -> None:
        """ClientGone if nobody reads it any more."""
        if is_last:
            output.flush()
        if self._flows is None or self._flow is None or self.is_one_frame(data, is_last):
            self._channel.send(self.body(data, is_last))
            return
        pieces = flow.pieces(data)
        for number, piece in enumerate(pieces, 1):
            self._flows.send(self._flow, len(piece))
            self._channel.send(self.body(piece, is_last and number == len(pieces)))


class _StartResponse:
    """PEP 3333's `start_response`, and the `write` that it returns."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def __call__(self, status: str, headers: List[Tuple[str, str]], exc_info: Optional[Any] = None) -> Callable[[bytes], None]:
        if exc_info is not None:
            if self._answer.is_head_sent:
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._answer.is_begun:
            raise AssertionError("start_response was called twice without exc_info")
        pairs = []
        for name, value in headers:
            if type(name) is not str or type(value) is not str:
                check_header(name, value)
            pairs.append((name, value))
        self._answer.head(int(status[:3]), pairs)
        return self._write

    def _write(self, data: bytes) -> None:
        if self._answer.is_complete:
            raise RuntimeError(flow.WRITTEN_TOO_LATE)
        self._answer.send(as_bytes(data), is_last=False)
