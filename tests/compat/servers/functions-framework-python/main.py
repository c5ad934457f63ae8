"""The tested server with functions-framework for Python. tests/compat/README.md describes its responses."""

import atexit
import json
import socket
import threading

import functions_framework
from flask import Response

released = threading.Event()


@functions_framework.http
def hello(request):
    answer = ANSWERS.get((request.method, request.path))
    return answer(request) if answer else ("nothing here", 404)


def greet(request):
    return f"hello {request.args.get('name', 'world')}"


def repeat(request):
    answer = {"got": request.get_json(), "type": request.content_type}
    return Response(json.dumps(answer), status=201, mimetype="application/json")


def stream(request):
    return Response(events(), mimetype="text/event-stream")


def events():
    yield "data: one\n\n"
    released.wait(20)
    yield "data: two\n\n"


def release(request):
    released.set()
    return "released"


def watch(request):
    watcher = socket.create_connection(("127.0.0.1", request.get_json()["port"]))
    # gunicorn handles the signal and ends in an orderly way, which calls this function.
    atexit.register(watcher.sendall, b"SIGTERM")
    return "watched"


ANSWERS = {
    ("GET", "/"): greet,
    ("POST", "/json"): repeat,
    ("GET", "/events"): stream,
    ("POST", "/release"): release,
    ("POST", "/watch"): watch,
}
