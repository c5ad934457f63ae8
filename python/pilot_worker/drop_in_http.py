"""The drop-in for urllib3, and so for requests, and for httpx: a request answers from what the initscript got for the same one.

The same means the method, the whole URL and the body. A response answers one request: the next equal one gets the script's next
equal response, or asks the server. So both see the same requests in the same order, and none is sent twice.

A request that asks for a part or for a newer version, or that has credentials, goes to the server. The body is copied, because
the clients return bytes.
"""

from __future__ import annotations

import hashlib
import io
from functools import wraps

from .drop_ins import Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    from .inputs import Input

    Place = Tuple[str, str, str]

# The answer depends on them, and the script does not have them.
_DECIDING = frozenset(
    ("authorization", "cookie", "range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range")
)
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


def _places(store: Dict[str, Any]) -> List[Place]:
    return [(store["method"], _plain(store["url"]), store.get("body_sha256", ""))]


given = Given(_places)


def _find(method: str, url: str, headers: Iterable[str], body: Any) -> Optional[Input]:
    """The answer to a request, once. None: the server is asked."""
    if not given.by_place:
        return None
    if isinstance(body, str):
        body = body.encode()
    if body is not None and not isinstance(body, (bytes, bytearray, memoryview)):
        return None  # a file, or what makes the body while it is sent
    if not _DECIDING.isdisjoint(name.lower() for name in headers):
        return None
    return given.take((method.upper(), _plain(url), hashlib.sha256(body).hexdigest() if body else ""))


def _headers(found: Input, method: str) -> List[Tuple[str, str]]:
    headers = [(name, value) for name, value in found.store["headers"]]
    if method.upper() != "HEAD":
        headers.append(("content-length", str(found.size)))
    return [*headers, ("x-pilot-input", found.name)]


def _patch_urllib3(module: ModuleType) -> None:
    pool: Any = module.HTTPConnectionPool
    urlopen = pool.urlopen
    from http.client import responses

    import urllib3

    @wraps(urlopen)
    def answered(self: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **options: Any) -> Any:
        whole = url
        if url.startswith("/"):
            port = "" if self.port is None else f":{self.port}"
            whole = f"{self.scheme}://{self.host}{port}{url}"
        asked = self.headers if headers is None else headers
        found = None if options.get("chunked") else _find(method, whole, asked or (), body)
        if found is None:
            return urlopen(self, method, url, body, headers, *args, **options)
        retries, redirect = (*args, *_DEFAULTS[len(args) :])[:2]
        retries, redirect = options.get("retries", retries), options.get("redirect", redirect)
        headers_of_answer: Any = _headers(found, method)  # pairs, of which the class makes its HTTPHeaderDict
        status = found.store["status"]
        return urllib3.HTTPResponse(
            body=io.BytesIO(found.view()),
            headers=headers_of_answer,
            status=status,
            version=11,
            reason=responses.get(status, ""),
            retries=urllib3.Retry.from_int(retries, redirect=redirect, default=self.retries),
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
            return None  # it is made while it is sent
        found = _find(request.method, str(request.url), request.headers, body)
        if found is None:
            return None
        headers = _headers(found, request.method)
        return httpx.Response(found.store["status"], headers=headers, stream=httpx.ByteStream(bytes(found.view())))

    plain: Any = module.HTTPTransport
    handle = plain.handle_request

    @wraps(handle)
    def answered(self: Any, request: Any) -> Any:
        return answer(request) or handle(self, request)

    with_async: Any = module.AsyncHTTPTransport
    handle_async = with_async.handle_async_request

    @wraps(handle_async)
    async def answered_async(self: Any, request: Any) -> Any:
        return answer(request) or await handle_async(self, request)

    plain.handle_request = answered
    with_async.handle_async_request = answered_async


PATCHES = {"urllib3.connectionpool": _patch_urllib3, "httpx._transports.default": _patch_httpx}
