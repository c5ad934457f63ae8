"""Hands data to other functions, `way` by `way`: by reference, as the body of a request over HTTP, through Redis, through S3."""

import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pilotlight


def redis_set(port, key, data):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key.encode(), len(data)))
        peer.sendall(data)
        peer.sendall(b"\r\n")
        assert peer.recv(64) == b"+OK\r\n"


def send(port, method, path, data, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == 200, (response.status, answer)
    return answer


def store(event, name, data):
    """Stores data under a name. Returns the key."""
    put = event["puts"][name]
    if event["way"] == "kvs":
        redis_set(event["redis"], put["key"], data)
    else:
        send(event["s3"], "PUT", put["path"], data, put["headers"])
    return put["key"]


def hand_over(event, second, name, data):
    """All data to one function. Returns its answer."""
    if event["way"] == "reference":
        return pilotlight.invoke(second, event, data=data)
    if event["way"] == "http":
        return json.loads(send(event["port"], "POST", event["paths"][second], data, {}))
    return pilotlight.invoke(second, {**event, "key": store(event, name, data)})


def fan_out(event, second, name, data, parts):
    """Each part, a number of bytes from and to, to one invocation. Returns the answers in order."""
    if event["way"] == "http":
        with ThreadPoolExecutor(len(parts)) as pool:
            path = event["paths"][second]
            sent = [pool.submit(send, event["port"], "POST", path, data[start:end], {}) for start, end in parts]
            return [json.loads(one.result()) for one in sent]
    items = [{"start": start, "end": end} for start, end in parts]
    if event["way"] == "reference":
        return pilotlight.map(second, items, data=data)
    key = store(event, name, data)
    return pilotlight.map(second, [{**item, "key": key} for item in items])


def input_of(context):
    """The input is called `data` when it comes by reference, and `x` otherwise."""
    return context.inputs["data" if "data" in context.inputs else "x"]
