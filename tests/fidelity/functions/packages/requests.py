"""A session of the module, and a prepared request. Nothing listens on the port."""

import requests

SESSION = requests.Session()
SESSION.headers["X-Own"] = "1"


def work():
    prepared = SESSION.prepare_request(requests.Request("POST", "http://127.0.0.1:9/a", params={"q": "ü"}, json={"b": 1}))
    return [prepared.url, prepared.body.decode(), sorted(prepared.headers)]


def fail():
    requests.Response.raise_for_status(answer(404))


def answer(status):
    response = requests.Response()
    response.status_code, response.url, response.reason = status, "http://127.0.0.1/a", "Not Found"
    return response
