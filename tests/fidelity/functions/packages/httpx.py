"""A client of the module with a transport that answers itself."""

import httpx

CLIENT = httpx.Client(
    base_url="http://a",
    transport=httpx.MockTransport(lambda request: httpx.Response(200 if request.url.path == "/b" else 404, json={"q": 1})),
)


def work():
    response = CLIENT.get("/b", params={"q": "ü"})
    return [response.status_code, response.json(), str(response.url)]


def fail():
    CLIENT.get("/c").raise_for_status()


def random():
    return CLIENT.build_request("POST", "/b", files={"a": b"b"}).headers["content-type"]
