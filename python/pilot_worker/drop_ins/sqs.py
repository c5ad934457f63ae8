"""The drop-in for boto3's SQS client: a call answers from what the initscript got for the same one, once.

The same means the action, the URL of the queue, and all arguments. An answer is one once, however many calls ask for it: what
a script has received is received, and what it has sent is sent. What deletes or returns a message goes to the server, and so
does all else.

As in `s3.py`, `Endpoint.make_request` is the place between a client and the network, and botocore parses the response.
Clients with the older protocol of SQS (botocore before 1.31.81) and aiobotocore ask the server.
"""

from __future__ import annotations

import hashlib
import json
from functools import wraps

from .given import Given
from .s3 import Body, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional, Tuple

    Place = Tuple[str, str]

_ANSWERED = frozenset(("ReceiveMessage", "SendMessage", "SendMessageBatch", "GetQueueAttributes"))
_READING = ("Get", "List")
_EMPTYING = frozenset(("PurgeQueue", "DeleteQueue"))
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _plain(url: str) -> Tuple[str, str]:
    """Server and path, without what makes no difference: the case of the host, and a default port."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    scheme, host = scheme.lower(), host.lower()
    port = _DEFAULT_PORTS.get(scheme)
    if port is not None and host.endswith(port):
        host = host[: -len(port)]
    return f"{scheme}://{host}", path.rstrip("/")


def _place(action: str, url: str) -> Place:
    return action, "/".join(_plain(url))


given = Given(lambda store: [_place(store["action"], store["url"])])


def _patch(module: ModuleType) -> None:
    endpoint: Any = module.Endpoint
    make_request = endpoint.make_request
    by_place = given.by_place

    @wraps(make_request)
    def answer_or_make_request(self: Any, operation_model: Any, request_dict: Any) -> Any:
        if by_place and operation_model.service_model.service_name == "sqs":
            answer = _answer(module, self, operation_model, request_dict)
            if answer is not None:
                return answer
        return make_request(self, operation_model, request_dict)

    endpoint.make_request = answer_or_make_request


PATCHES = {"botocore.endpoint": _patch}


def _answer(module: Any, endpoint: Any, operation_model: Any, request: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
    """What `make_request` returns, or None if the server must be asked."""
    action = operation_model.name
    try:
        arguments = json.loads(request["body"])
        queue = arguments.pop("QueueUrl")
    except (KeyError, TypeError, ValueError):
        return None  # it is about no queue, or in the older protocol
    from botocore.awsrequest import AWSResponse  # type: ignore[import-untyped]  # of the function, which calls this

    parser = parser_of(endpoint, "json")
    described: Any = getattr(module, "convert_to_response_dict", None)
    found = None
    # The queue of another server may have the same URL: some servers do not look at its host.
    is_there = action in _ANSWERED and _plain(request["url"])[0] == _plain(queue)[0]
    if is_there and parser is not None and described is not None:
        found = given.take(_place(action, queue), lambda one: one.store["arguments_sha256"] == _digest(arguments))
    if not action.startswith(_READING):
        _forget(action, queue)
    if found is None:
        return None
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "content-length": str(found.size),
        "x-amzn-requestid": "PILOTLIGHT",
        "x-pilot-input": found.name,
    }
    http = AWSResponse(request["url"], 200, headers, Body(found.view()))
    response = described(http, operation_model)
    parsed = parser.parse(response, operation_model.output_shape)
    parsed["ResponseMetadata"]["RetryAttempts"] = 0
    return http, parsed


def _digest(arguments: Dict[str, Any]) -> str:
    """As the daemon has it."""
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _forget(action: str, queue: str) -> None:
    """The function changes the queue: from now on, the server says what is true of it."""
    _, url = _place(action, queue)

    def is_changed(place: Place) -> bool:
        return place[1] == url and (place[0] == "GetQueueAttributes" or action in _EMPTYING)

    given.forget(is_changed)
