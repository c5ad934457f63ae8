"""Answers every request with the output of a fresh interpreter that imports what the function imports.

It is as small as possible, so that the interpreter is measured: one connection at a time, posix_spawn, a pipe.
"""

import os
import socket
import sys

APP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "apps", "imports.py")


def answer() -> tuple[bytes, int]:
    """The response, and the child, which the caller must wait for."""
    read, write = os.pipe()
    file_actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_CLOSE, read)]
    child = os.posix_spawn(sys.executable, [sys.executable, APP], os.environ, file_actions=file_actions)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        # The first line is the response. The interpreter ends after the client has it.
        said = pipe.readline()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said), child


def main() -> None:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            buffer = b""
            while part := connection.recv(65536):
                buffer += part
                if buffer.endswith(b"\r\n\r\n"):
                    said, child = answer()
                    connection.sendall(said)
                    os.waitpid(child, 0)
                    buffer = b""


if __name__ == "__main__":
    main()
