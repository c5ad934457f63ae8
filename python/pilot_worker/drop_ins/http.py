"""The drop-in for urllib3, and so for requests, and for httpx: a request answers from what the initscript got for the same one.

The same means the method, the whole URL, the body, and all headers that may decide the answer. A response answers one request:
the next equal one gets the script's next equal response, or asks the server. So both see the same requests in the same order,
and none is sent twice.

Whatever is in doubt goes to the server: a response that a client may follow or retry, and what the function may have changed by
a request of its own. The body is copied, because the clients return bytes.
"""

from __future__ import annotations

import hashlib
import io
from functools import wraps

from .given import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

    from ..inputs.received import Input

    Place = Tuple[str, str, str]

# Clients, proxies and tracers add them, and no answer depends on them, unless it says so (`Vary`). All others decide.
_HARMLESS = frozenset(
    (
        "accept-encoding",
        "baggage",
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "sec-fetch-mode",
        "sentry-trace",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-amzn-trace-id",
    )
)
# A header that is missing means this.
_MEANT = {"accept": "*/*", "accept-language": "*", "content-type": "text/plain"}
_SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
# A client may repeat the request, as after 3xx and 5xx.
_REPEATED = frozenset((408, 413, 425, 429))
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_DEFAULTS = (None, True)  # of urllib3's `retries` and `redirect`, which may have no names in a call


def _plain(url: str) -> str:
    """The URL without what makes no difference: the case of the host, a default port, and a fragment."""
    scheme, _, rest = url.partition("#")[0].partition("://")
    at = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    host, target = rest[:at].lower(), rest[at:]
    scheme = scheme.lower()
    port = _DEFAULT_PORTS.get(scheme)
    if port is not None and host.endswith(port):
        host = host[: -len(port)]
    return f"{scheme}://{host}{target if target.startswith('/') else '/' + target}"


def _joined(pairs: Iterable[Tuple[Any, Any]]) -> Dict[str, str]:
    """Headers by lower-case name. Several of one name are one value (RFC 9110, section 5.3)."""
    joined: Dict[str, str] = {}
    for name, value in pairs:
        key, text = (one.decode("latin-1") if isinstance(one, bytes) else str(one) for one in (name, value))
        key, text = key.lower(), text.strip()
        joined[key] = f"{joined[key]}, {text}" if key in joined else text
    return joined


def _is_answer(store: Dict[str, Any]) -> bool:
    """A redirect, an error of the server, and what asks for patience are not: clients follow and retry at the server."""
    status = store["status"]
    if not 200 <= status < 300 and (not 400 <= status < 500 or status in _REPEATED):
        return False
    headers = _joined(store["headers"])
    return "retry-after" not in headers and "*" not in headers.get("vary", "")


def _places(store: Dict[str, Any]) -> List[Place]:
    return [(store["method"], _plain(store["url"]), store.get("body_sha256", ""))] if _is_answer(store) else []


def _folders(url: str) -> List[str]:
    """The URL without its query, as a folder, and what is above it."""
    folder = url.partition("?")[0].rstrip("/") + "/"
    first = folder.find("/", folder.find("://") + 3)
    return [folder[: at + 1] for at in range(first, len(folder)) if folder[at] == "/"]


def _writes(place: Place) -> List[Tuple[str, str]]:
    method, url, _ = place
    if method not in _SAFE:
        return []
    folders = _folders(url)
    return [("below", folders[-1]), *[("at", folder) for folder in folders]]


def _written_by(method: str, url: str) -> List[Tuple[str, str]]:
    """What a request may change: what is at, above and below its URL."""
    if method.upper() in _SAFE:
        return []
    folders = _folders(_plain(url))
    return [("at", folders[-1]), *[("below", folder) for folder in folders]]


given = Given(_places, _writes)


def _is_same(asked: Dict[str, str], store: Dict[str, Any], has_body: bool) -> bool:
    """Whether the script has sent these headers, as far as an answer may depend on them."""
    sent = _joined(store.get("request_headers", ()))

    def meant(headers: Dict[str, str], name: str) -> Optional[str]:
        value = headers.get(name) or _MEANT.get(name)
        if name == "content-type" and value is not None:
            return value.lower().replace(" ", "").replace(";charset=utf-8", "")
        return value

    deciding = (asked.keys() | sent.keys()) - _HARMLESS
    if not has_body:
        deciding.discard("content-type")
    if any(meant(asked, name) != meant(sent, name) for name in deciding):
        return False
    varying = {name.strip().lower() for name in _joined(store["headers"]).get("vary", "").split(",")}
    # A client may add them later. The script asks for no encoding, which every client understands.
    unknown = varying & _HARMLESS - {"accept-encoding"}
    return all(name in asked and asked[name] == sent.get(name) for name in unknown)


def _find(method: str, url: str, headers: Any, body: Any, is_wanted: Callable[[int], bool] = lambda _: True) -> Optional[Input]:
    """The answer to a request, once. None: the server is asked. `is_wanted` says so of a status."""
    if not given.by_place:
        return None
    method = method.upper()
    given.wrote(_written_by(method, url))  # if the script has
    if isinstance(body, str):
        body = body.encode()
    if body is not None and not isinstance(body, (bytes, bytearray, memoryview)):
        return None  # a file, or what makes the body while it is sent
    plain = _plain(url)
    place = (method, plain, hashlib.sha256(body).hexdigest() if body else "")
    if place not in given.by_place:
        return None
    asked = _joined(headers.items())
    scheme, _, rest = plain.partition("://")
    if "host" in asked and _plain(f"{scheme}://{asked['host']}") != f"{scheme}://{rest.partition('/')[0]}/":
        return None  # another one than that of the URL
    return given.take(place, lambda found: is_wanted(found.store["status"]) and _is_same(asked, found.store, bool(body)))


def _headers(found: Input, method: str) -> List[Tuple[str, str]]:
    """Those of the response. To HEAD, the server says the length."""
    headers = [(name, value) for name, value in found.store["headers"]]
    if method.upper() != "HEAD":
        headers.append(("content-length", str(found.size)))
    return [*headers, ("x-pilot-input", found.name)]


def _content(found: Input, method: str) -> memoryview:
    return memoryview(b"") if method.upper() == "HEAD" else found.view()


def _patch_urllib3(module: ModuleType) -> None:
    pool: Any = module.HTTPConnectionPool
    urlopen = pool.urlopen
    from http.client import HTTPMessage, responses

    import urllib3

    class Original:
        """What urllib3 has of `http.client`: requests reads the cookies from it."""

        version = 11

        def __init__(self, method: str, status: int, headers: List[Tuple[str, str]]) -> None:
            self._method = method
            self.status = status
            self.reason = responses.get(status, "")
            self.msg = self.headers = HTTPMessage()
            for name, value in headers:
                self.msg[name] = value

        def close(self) -> None:
            """There is no connection."""

        def isclosed(self) -> bool:
            return True

    @wraps(urlopen)
    def answered(self: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **options: Any) -> Any:
        whole = url
        if url.startswith("/"):
            port = "" if self.port is None else f":{self.port}"
            whole = f"{self.scheme}://{self.host}{port}{url}"
        asked = self.headers if headers is None else headers
        retries, redirect = (*args, *_DEFAULTS[len(args) :])[:2]
        retries, redirect = options.get("retries", retries), options.get("redirect", redirect)

        def tries() -> Any:
            return urllib3.Retry.from_int(retries, redirect=redirect, default=self.retries)

        content: Any = iter((body,)) if options.get("chunked") else body
        found = _find(method, whole, asked or {}, content, lambda status: not tries().is_retry(method, status))
        if found is None:
            with given.writing(_written_by(method, whole)):
                return urlopen(self, method, url, body, headers, *args, **options)
        headers_of_answer: Any = _headers(found, method)  # pairs, of which the class makes its HTTPHeaderDict
        original: Any = Original(method, found.store["status"], headers_of_answer)
        return urllib3.HTTPResponse(
            body=io.BytesIO(_content(found, method)),
            headers=headers_of_answer,
            status=original.status,
            version=original.version,
            reason=original.reason,
            retries=tries(),
            original_response=original,
            preload_content=options.get("preload_content", True),
            decode_content=options.get("decode_content", True),
            request_method=method,
            request_url=url,
        )

    pool.urlopen = answered


def _patch_httpx(module: ModuleType) -> None:
    import httpx

    def answer(request: Any) -> Any:
        try:
            body = request.content
        except httpx.RequestNotRead:
            body = request.stream  # it is made while it is sent
        found = _find(request.method, str(request.url), request.headers, body)
        if found is None:
            return None
        headers, content = _headers(found, request.method), _content(found, request.method)
        return httpx.Response(found.store["status"], headers=headers, stream=httpx.ByteStream(bytes(content)))

    plain: Any = module.HTTPTransport
    handle = plain.handle_request

    @wraps(handle)
    def answered(self: Any, request: Any) -> Any:
        found = answer(request)
        if found is not None:
            return found
        with given.writing(_written_by(request.method, str(request.url))):
            return handle(self, request)

    with_async: Any = module.AsyncHTTPTransport
    handle_async = with_async.handle_async_request

    @wraps(handle_async)
    async def answered_async(self: Any, request: Any) -> Any:
        found = answer(request)
        if found is not None:
            return found
        with given.writing(_written_by(request.method, str(request.url))):
            return await handle_async(self, request)

    plain.handle_request = answered
    with_async.handle_async_request = answered_async


PATCHES = {"urllib3.connectionpool": _patch_urllib3, "httpx._transports.default": _patch_httpx}
