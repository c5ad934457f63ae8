"""A function that is an HTTP server. It streams back what it got."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(b"ready")

    def do_POST(self):
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Echo).serve_forever()
