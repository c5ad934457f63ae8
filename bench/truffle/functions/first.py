"""The first function of a chain: it has data, and hands them to the second one, `way` by `way`. Returns how long that took, ms, with the
answer of the second one.
"""

import http.client
import json
import socket
import time

import pilotlight

opened = {}


def redis_set(port, key, data):
    peer = opened.get("redis")
    if peer is None:
        peer = opened["redis"] = socket.create_connection(("127.0.0.1", port))
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


def handler(event, context):
    way, size, second = event["way"], event["size"], event["second"]
    if way == "reference":
        with pilotlight.buffer(size) as buffer:
            buffer.write(bytes(size))
            began = time.perf_counter()
            answer = pilotlight.invoke(second, data=buffer)
    else:
        data = bytes(size)
        data.count(1)  # its pages are there
        began = time.perf_counter()
        if way == "http":
            answer = json.loads(send(event["port"], "POST", event["path"], data, {}))
        else:
            if way == "kvs":
                redis_set(event["port"], event["key"], data)
            else:
                send(event["port"], "PUT", event["path"], data, event["headers"])
            answer = pilotlight.invoke(second, {"key": event["key"]})
    assert answer["bytes"] == size, answer
    return {"ms": (time.perf_counter() - began) * 1e3}
