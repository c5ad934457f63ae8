"""The drop-in for boto3's Lambda client: Invoke goes to the daemon, over the socket of the invocation (`sdk/calls.py`).

So code that invokes the next function on Lambda does so here, without a network and without credentials. Only a function with
`invokes` has it, and it reaches what `invokes` names. A client that the function gives another endpoint is not touched.

As in `s3.py`, `Endpoint.make_request` is the place between a client and the network, and botocore parses the response.
A client of aiobotocore gets an error, because a call here waits for its answer and would hold up the event loop.
"""

from __future__ import annotations

import json
import os
from functools import wraps
from urllib.parse import parse_qs, unquote

from ..sdk import calls
from .s3 import Body, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Tuple

    Answer = Tuple[int, Dict[str, str], bytes]

# No such host can exist (RFC 6761, section 6.4): what is not answered here goes nowhere.
ENDPOINT = "http://functions.pilotlight.invalid"
_VARIABLE = "AWS_ENDPOINT_URL_LAMBDA"
_BEFORE_NAME = ENDPOINT + "/2015-03-31/functions/"
_AFTER_NAME = "/invocations"

# Lambda's errors, by the reason of the daemon (PROTOCOL.md, "Calls").
_ERRORS = {
    "Forbidden": (403, "AccessDeniedException"),
    "NotFound": (404, "ResourceNotFoundException"),
    "Throttled": (429, "TooManyRequestsException"),
    "TooLarge": (413, "RequestTooLargeException"),
    "TooDeep": (400, "RecursiveInvocationException"),
    "Unavailable": (502, "EC2UnexpectedException"),
}
_OTHER_ERROR = (400, "InvalidParameterValueException")


def prepare() -> None:
    """Makes Lambda clients use this endpoint, unless the function has set another one."""
    os.environ.setdefault(_VARIABLE, ENDPOINT)


def _patch(module: ModuleType) -> None:
    endpoint: Any = module.Endpoint
    make_request = endpoint.make_request

    @wraps(make_request)
    def answer_or_make_request(self: Any, operation_model: Any, request_dict: Any) -> Any:
        if request_dict["url"].startswith(ENDPOINT):
            return _response(module, self, operation_model, request_dict)
        return make_request(self, operation_model, request_dict)

    endpoint.make_request = answer_or_make_request


PATCHES = {"botocore.endpoint": _patch}


def _response(module: Any, endpoint: Any, operation_model: Any, request: Dict[str, Any]) -> Tuple[Any, Any]:
    """What `make_request` returns."""
    parser = parser_of(endpoint, "rest-json")
    if parser is None:
        raise NotImplementedError(
            "functions are invoked here with boto3 or pilotlight.invoke, not with aiobotocore: "
            "give the client of aiobotocore another endpoint_url"
        )
    from botocore.awsrequest import AWSResponse  # type: ignore[import-untyped]  # of the function, which calls this

    status, headers, body = _answer(operation_model.name, request)
    headers = {
        **headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-amzn-requestid": "PILOTLIGHT",
    }
    http = AWSResponse(request["url"], status, headers, Body(memoryview(body)))
    response = module.convert_to_response_dict(http, operation_model)
    parsed = parser.parse(response, operation_model.output_shape)
    parsed["ResponseMetadata"]["RetryAttempts"] = 0
    return http, parsed


def _answer(operation: str, request: Dict[str, Any]) -> Answer:
    """Status, headers and body, as of Lambda."""
    url, _, query = request["url"].partition("?")
    kind = _header(request, "x-amz-invocation-type")
    if operation != "Invoke" or not (url.startswith(_BEFORE_NAME) and url.endswith(_AFTER_NAME)):
        return _refusal("", f"{operation} is not supported here, only Invoke is: give the client another endpoint_url")
    if kind not in ("", "RequestResponse"):
        return _refusal("", f"InvocationType {kind} is not supported here: use RequestResponse, which is the default")
    name = unquote(url[len(_BEFORE_NAME) : -len(_AFTER_NAME)]).rpartition("function:")[2]
    name, _, in_name = name.partition(":")
    for qualifier in (in_name, *parse_qs(query).get("Qualifier", ())):
        if qualifier not in ("", "$LATEST"):
            return _refusal("", f"the qualifier {qualifier} is not supported here: leave it out")
    body = request.get("body") or b"{}"
    if hasattr(body, "read"):
        body = body.read()
    if isinstance(body, str):
        body = body.encode()
    connection = calls.current()
    if connection is None:
        return _refusal("Forbidden", "no invocation is running here: a handler invokes functions while it runs")
    try:
        _, answer, result = connection.wait((connection.call(bytes(body), function=name),))
    except calls.Closed:
        return _refusal("Unavailable", "the invocation is over, and its calls ended with it")
    if answer["end"] == "refused":
        return _refusal(answer["reason"], answer["problem"])
    headers = {"x-amz-executed-version": "$LATEST"}
    if answer["end"] != "done":
        headers["x-amz-function-error"] = "Unhandled"
    return 200, headers, result


def _header(request: Dict[str, Any], wanted: str) -> str:
    for name, value in request["headers"].items():
        if name.lower() == wanted:
            return value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return ""


def _refusal(reason: str, problem: str) -> Answer:
    status, name = _ERRORS.get(reason, _OTHER_ERROR)
    return status, {"x-amzn-errortype": name}, json.dumps({"Type": "User", "message": problem, "Message": problem}).encode()
