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
    from typing import Any, Dict, List, Optional, Tuple

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


given = Given(lambda store: [_place(store["action"], store["url"])], lambda place: (place,))


def _patch(module: ModuleType) -> None:
    endpoint: Any = module.Endpoint
    make_request = endpoint.make_request

    @wraps(make_request)
    def answer_or_make_request(self: Any, operation_model: Any, request_dict: Any) -> Any:
        if operation_model.service_model.service_name != "sqs":
            return make_request(self, operation_model, request_dict)
        asked = _asked(request_dict)
        action = operation_model.name
        answer = None
        if asked is not None and given.by_place:
            answer = _answer(module, self, operation_model, request_dict, asked)
        written = () if asked is None else _written_by(action, asked[0])
        if answer is not None:
            given.wrote(written)  # by the script
            return answer
        return given.call(written, make_request, self, operation_model, request_dict)

    endpoint.make_request = answer_or_make_request


PATCHES = {"botocore.endpoint": _patch}


def _asked(request: Dict[str, Any]) -> Optional[Tuple[str, Dict[str, Any]]]:
    """The queue's URL and the arguments. None: the call is about no queue, or in the older protocol."""
    try:
        arguments = json.loads(request["body"])
        return arguments.pop("QueueUrl"), arguments
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _answer(
    module: Any, endpoint: Any, operation_model: Any, request: Dict[str, Any], asked: Tuple[str, Dict[str, Any]]
) -> Optional[Tuple[Any, Any]]:
    """What `make_request` returns, or None if the server must be asked."""
    action = operation_model.name
    queue, arguments = asked
    from botocore.awsrequest import AWSResponse  # type: ignore[import-untyped]  # of the function, which calls this

    parser = parser_of(endpoint, "json")
    described: Any = getattr(module, "convert_to_response_dict", None)
    found = None
    # The queue of another server may have the same URL: some servers do not look at its host.
    is_there = action in _ANSWERED and _plain(request["url"])[0] == _plain(queue)[0]
    if is_there and parser is not None and described is not None:
        found = given.take(_place(action, queue), lambda one: one.store["arguments_sha256"] == _digest(arguments))
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


def _written_by(action: str, queue: str) -> List[Place]:
    """What a call changes of a queue: from then on, the server says it."""
    if action.startswith(_READING):
        return []
    changed = _ANSWERED if action in _EMPTYING else ("GetQueueAttributes",)
    return [_place(one, queue) for one in changed]
