"""A collector that takes everything and reads nothing: POST requests are answered with 200. Prints its port first, then counts to stdout
at its end (SIGTERM)."""

from __future__ import annotations

import http.server
import json
import signal
import sys


class Taking(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests = 0
    received = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        Taking.requests += 1
        Taking.received += len(body)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the output is the counts."""


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        print(server.server_port, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
    json.dump({"requests": Taking.requests, "bytes": Taking.received}, sys.stdout)


if __name__ == "__main__":
    main()
