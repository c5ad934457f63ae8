import os
import socket

import calls

connection = socket.create_connection(("127.0.0.1", int(os.environ["HTTP_PORT"])), timeout=20)


def ask(token):
    connection.sendall(f"GET /{token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    text = b""
    while not text.endswith(b"}"):
        more = connection.recv(4096)
        if not more:
            raise EOFError("the server has closed the connection")
        text += more
    return calls.parsed(text.partition(b"\r\n\r\n")[2])


handler = calls.handler_of(ask)
