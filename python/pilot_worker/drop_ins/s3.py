"""The drop-in for boto3 and botocore: GetObject and HeadObject answer from an input if it is the object that was asked for.

Everything that ends in these two operations benefits: `get_object`, `download_file`, `download_fileobj`, and the same of the
resources. `Endpoint.make_request` is the place between a client and the network, so clients that exist before it is patched,
and clients without credentials, are served too. The response is parsed by botocore itself.

Ranges and If-Match are answered. A request with a version, or with anything else that this file does not know, goes to the
store. So do the requests of aiobotocore, whose responses are awaited.
"""

from __future__ import annotations

import re
from functools import wraps
from io import RawIOBase
from urllib.parse import quote

from .given import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from ..inputs.received import Input

# What does not change which bytes are the answer.
_HARMLESS_HEADERS = frozenset(
    ("user-agent", "accept-encoding", "x-amz-checksum-mode", "x-amz-request-payer", "x-amzn-trace-id", "amz-sdk-invocation-id")
)
_ANSWERED = frozenset(("GetObject", "HeadObject"))
_READING = ("Get", "Head", "List", "Select")
# All names of Amazon's S3 are one store, because the names of buckets are unique there. Access points have other names.
_AMAZON = re.compile(
    r"(?:(?P<bucket>.+)\.)?s3(?:-fips|-accelerate)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-\d)?\.amazonaws\.com"
)
_AMAZON_URL = "https://s3.amazonaws.com"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def _places(store: Dict[str, Any]) -> List[str]:
    """The URLs of the object, with the bucket in the path and in the host's name."""
    path = quote(store["key"], safe="/~")
    bucket = store["bucket"]
    scheme, _, rest = (store.get("endpoint") or _AMAZON_URL).rstrip("/").partition("://")
    urls = (f"{scheme}://{rest}/{bucket}/{path}", f"{scheme}://{bucket}.{rest}/{path}")
    return list(dict.fromkeys(_plain(url) for url in urls))


def _plain(url: str) -> str:
    """The URL without what makes no difference: the case of the host, a default port, and which of Amazon's names it is."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    host = host.lower()
    port = _DEFAULT_PORTS.get(scheme)
    if port is not None and host.endswith(port):
        host = host[: -len(port)]
    if host.endswith(".amazonaws.com"):
        amazon = _AMAZON.fullmatch(host)
        if amazon is not None:
            bucket = amazon["bucket"]
            host = "s3.amazonaws.com"
            if bucket is not None:
                path = f"{bucket}/{path}"
    return f"{scheme}://{host}{slash}{path}"


def _writes(place: str) -> Iterator[str]:
    """The object, and what is above it: a request for a bucket may delete any of its objects."""
    yield place
    at = place.find("/", place.find("://") + 3)
    while at >= 0:
        yield place[:at]
        at = place.find("/", at + 1)


given = Given(_places, _writes)


class NoSocket:
    """What botocore finds as the socket of a response, in `_fp.fp.raw._sock`."""

    @property
    def fp(self) -> NoSocket:
        return self

    raw = _sock = fp

    def settimeout(self, timeout: Optional[float]) -> None:
        """There is nothing to wait for."""


class Body(RawIOBase):
    """What botocore takes for the connection: the bytes of the input, of which only what is read is copied."""

    _fp = NoSocket()  # StreamingBody.set_socket_timeout uses it

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0
        self._end = len(view)

    def _piece(self, start: int, end: int) -> memoryview:
        return self._view[start:end]

    def readable(self) -> bool:
        return True

    def read(self, amt: Optional[int] = None, **_: Any) -> bytes:
        end = self._end if amt is None or amt < 0 else min(self._at + amt, self._end)
        piece = bytes(self._piece(self._at, end))
        self._at = end
        return piece

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        piece = self._piece(self._at, min(self._at + len(target), self._end))
        target[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._at

    def stream(self, amt: int = 1 << 16, **_: Any) -> Iterator[bytes]:
        while self._at < self._end:
            yield self.read(amt)

    def release_conn(self) -> None:
        """As of urllib3's response. There is no connection."""


class GrowingBody(Body):
    """The same of an input that still arrives. What is read is waited for."""

    def __init__(self, found: Input, start: int, end: int) -> None:
        super().__init__(memoryview(b""))
        self._found = found
        self._start = start
        self._end = end - start

    def _piece(self, start: int, end: int) -> memoryview:
        return memoryview(self._found.piece(self._start + start, self._start + end))


def _patch(module: ModuleType) -> None:
    endpoint: Any = module.Endpoint
    make_request = endpoint.make_request
    by_place = given.by_place

    @wraps(make_request)
    def answer_or_make_request(self: Any, operation_model: Any, request_dict: Any) -> Any:
        operation = operation_model.name
        if operation in _ANSWERED:
            if by_place:
                answer = _answer(module, self, operation_model, request_dict)
                if answer is not None:
                    return answer
        elif not operation.startswith(_READING):
            written = _plain(request_dict["url"].partition("?")[0]).rstrip("/")
            return given.call((written,), make_request, self, operation_model, request_dict)
        return make_request(self, operation_model, request_dict)

    endpoint.make_request = answer_or_make_request


PATCHES = {"botocore.endpoint": _patch}


def _answer(module: Any, endpoint: Any, operation_model: Any, request: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
    """What `make_request` returns, or None if the store must be asked."""
    found = given.newest(_plain(request["url"]))
    if found is None:
        return None
    wanted = _wanted(request["headers"], found)
    parser = parser_of(endpoint, "rest-xml")
    if wanted is None or parser is None:
        return None
    (start, end), status, headers = wanted
    if operation_model.name == "HeadObject":
        end = start
    body = Body(found.view()[start:end]) if found.is_whole else GrowingBody(found, start, end)
    try:
        from botocore.awsrequest import AWSResponse  # type: ignore[import-untyped]  # of the function, if at all

        http = AWSResponse(request["url"], status, headers, body)
        response = module.convert_to_response_dict(http, operation_model)
        parsed = parser.parse(response, operation_model.output_shape)
        parsed["ResponseMetadata"]["RetryAttempts"] = 0
    except (ImportError, AttributeError, TypeError, KeyError):
        return None  # a version of botocore that is built differently
    return http, parsed


def parser_of(endpoint: Any, protocol: str) -> Any:
    """The parser of a response. None: it is a coroutine (aiobotocore), or this version of botocore is built differently."""
    from inspect import iscoroutinefunction  # botocore has imported it

    try:
        parser = endpoint._response_parser_factory.create_parser(protocol)
        return None if iscoroutinefunction(parser.parse) else parser
    except AttributeError:
        return None


def _wanted(asked: Any, found: Input) -> Optional[Tuple[Tuple[int, int], int, Dict[str, str]]]:
    """Which bytes, status and headers of the answer, or None if the request asks for something that only the store knows."""
    headers: Dict[str, str] = dict(found.store.get("headers", ()))
    size = found.size
    first, end, status = 0, size, 200
    for header, value in asked.items():
        name = header.lower()
        if name in _HARMLESS_HEADERS:
            continue
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if name == "range":
            span = _span(text, size)
            if span is None:
                return None
            first, end = span
            status = 206
            headers["content-range"] = f"bytes {first}-{end - 1}/{size}"
        elif name != "if-match" or not text or text.strip('"') != headers.get("etag", "").strip('"'):
            return None
    headers["content-length"] = str(end - first)
    headers.setdefault("content-type", "binary/octet-stream")
    headers["accept-ranges"] = "bytes"
    headers["x-amz-request-id"] = "PILOTLIGHT"
    headers["x-pilot-input"] = found.name
    return (first, end), status, headers


def _span(text: str, size: int) -> Optional[Tuple[int, int]]:
    """The first byte and the end of a range (RFC 9110, section 14.1.2). None: several, or one that the store would refuse."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first, last = match.groups()
    if first:
        span = int(first), min(int(last) + 1, size) if last else size
    elif last:
        span = max(size - int(last), 0), size
    else:
        return None
    return span if span[0] < span[1] else None
