"""A minimal HTTP server: answers every request with an empty body. With PORT=0 it takes a free port. It prints its port."""

import os
import socket
import threading

EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = b""
    with connection:
        while part := connection.recv(65536):
            received += part
            # Requests have no body, because only GET is used.
            while b"\r\n\r\n" in received:
                received = received.partition(b"\r\n\r\n")[2]
                connection.sendall(EMPTY)


def main():
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
