"""WebSockets of ASGI applications: the scope `websocket` (asgi.readthedocs.io, "Websocket"). The daemon speaks RFC 6455 with
the client, and passes whole messages over a socket (PROTOCOL.md, section 1, "Inputs"). Imported only for a handshake.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from .. import output
from .answer import HttpAnswer, as_bytes, check_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from ..inputs.received import Input
    from ..protocol.aio import AsyncChannel

_HEADER = struct.Struct("<IB")
_CODE = struct.Struct(">H")
_TEXT, _BINARY, _CLOSE = 1, 2, 8
_READ_LEN = 64 * 1024
MESSAGE_LEN_MAX = 16 * 1024 * 1024

# RFC 6455, section 7.4.1: there was no code, and the connection was lost.
_NO_CODE, _LOST = 1005, 1006


def take(inputs: Dict[str, Input]) -> Optional[Input]:
    """The input with the messages. It is not one of the function's inputs."""
    for name, given in inputs.items():
        if given.kind == "websocket":
            return inputs.pop(name)
    return None


# The daemon leaves these out, because they are about its own connection with the client. Servers of ASGI leave them in, and
# applications that look at them refuse the handshake otherwise, as python-socketio does. Over HTTP/2 there are no WebSockets.
_HANDSHAKE = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]


def scope(http: Dict[str, Any]) -> Dict[str, Any]:
    """The scope of a handshake, from that of the request."""
    asked = [value.decode("latin-1") for name, value in http["headers"] if name == b"sec-websocket-protocol"]
    scope = {
        **http,
        "type": "websocket",
        "scheme": "wss" if http["scheme"] == "https" else "ws",
        "headers": http["headers"] + _HANDSHAKE,
        "subprotocols": [name.strip() for value in asked for name in value.split(",") if name.strip()],
        "extensions": {"websocket.http.response": {}},
    }
    del scope["method"]
    return scope


def _parse_close(data: bytes) -> Tuple[int, str]:
    if not data:
        return _NO_CODE, ""
    return _CODE.unpack_from(data)[0], data[_CODE.size :].decode("utf-8", "replace")


class Exchange(HttpAnswer):
    """`receive` and `send` of one WebSocket."""

    __slots__ = ("_channel", "_messages", "_held", "_is_connected", "_closed", "_writing")

    def __init__(self, stream: int, channel: AsyncChannel, messages: Input) -> None:
        super().__init__(stream, "GET")
        self._channel = channel
        self._messages = socket.socket(fileno=messages.detach())
        self._messages.setblocking(False)
        self._held = bytearray()
        self._is_connected = False  # `websocket.connect` was received
        self._closed: Optional[Tuple[int, str]] = None  # by either side
        self._writing = asyncio.Lock()

    async def receive(self) -> Dict[str, Any]:
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        while self._closed is None:
            message = self._next()
            if message is None:
                received = await self._receive()
                if not received:
                    self._closed = (_LOST, "")
                self._held += received
                continue
            kind, data = message
            if kind == _TEXT:
                return {"type": "websocket.receive", "text": data.decode()}
            if kind == _BINARY:
                return {"type": "websocket.receive", "bytes": data}
            self._closed = _parse_close(data)
        code, reason = self._closed
        return {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def send(self, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if not self.is_head_sent:
            await self._answer(kind, message)
        elif kind == "websocket.send":
            text, data = message.get("text"), message.get("bytes")
            if text is not None:
                await self._write(_TEXT, text.encode())
            else:
                await self._write(_BINARY, as_bytes(data or b""))
        elif kind == "websocket.close":
            code, reason = message.get("code", 1000), message.get("reason") or ""
            await self._write(_CLOSE, _CODE.pack(code) + reason.encode())
            self._closed = self._closed or (code, reason)
        elif kind == "websocket.http.response.body" and not self.is_complete:
            await self._respond(message)
        else:
            raise RuntimeError(f"the application sent {kind} at the wrong time")

    async def end(self) -> None:
        """The application has returned."""
        self._messages.close()
        if not self.is_complete:
            output.flush()
            await self._send(self.body(b"", is_last=True))

    def close(self) -> None:
        self._messages.close()

    async def _answer(self, kind: str, message: Dict[str, Any]) -> None:
        """The response to the handshake."""
        if self.is_complete:  # with an error: a task of the application outlived the application
            raise RuntimeError(f"the application sent {kind} after the WebSocket had ended")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
        if kind == "websocket.accept":
            subprotocol = message.get("subprotocol")
            if subprotocol:
                check_header("sec-websocket-protocol", subprotocol)
                headers.append(("sec-websocket-protocol", subprotocol))
            self.head(101, headers)
            await self._send(self.body(b"", is_last=False))
        elif kind == "websocket.close":
            self.head(403, [])
            await self._send(self.body(b"", is_last=True))
            self._closed = (_LOST, "")
        elif kind == "websocket.http.response.start":
            self.head(message["status"], headers)
        elif kind == "websocket.http.response.body" and self.is_begun:
            await self._respond(message)
        else:
            raise RuntimeError(f"the application sent {kind} before it accepted the WebSocket")

    async def _respond(self, message: Dict[str, Any]) -> None:
        """A response that rejects the handshake."""
        is_last = not message.get("more_body", False)
        await self._send(self.body(as_bytes(message.get("body", b"")), is_last))
        if is_last:
            self._closed = (_LOST, "")

    async def _send(self, frames: bytes) -> None:
        rest = self._channel.send(frames) if frames else None
        if rest is not None:
            await rest

    def _next(self) -> Optional[Tuple[int, bytes]]:
        held = self._held
        if len(held) < _HEADER.size:
            return None
        length, kind = _HEADER.unpack_from(held)
        end = _HEADER.size + length
        if len(held) < end:
            return None
        data = bytes(memoryview(held)[_HEADER.size : end])
        del held[:end]
        return kind, data

    async def _receive(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._messages, _READ_LEN)
        except OSError:
            return b""

    async def _write(self, kind: int, data: bytes) -> None:
        if len(data) > MESSAGE_LEN_MAX:
            raise ValueError(f"a WebSocket message has at most {MESSAGE_LEN_MAX} bytes, not {len(data)}")
        async with self._writing:
            if self._closed is not None:
                return  # nobody reads it (spec version 2.3)
            try:
                await asyncio.get_running_loop().sock_sendall(self._messages, _HEADER.pack(len(data), kind) + data)
            except OSError:
                self._closed = (_LOST, "")
