"""__NAME__: an HTTP server. It does not depend on Pilotlight: `PORT=8000 python3 server.py` runs it, too."""

import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GREETING = os.environ.get("GREETING", "Hello")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/healthz":
            return self.answer(200, {"status": "ok"})
        name = parse_qs(url.query).get("name", ["world"])[0]
        return self.answer(200, {"message": f"{GREETING}, {name}!", "path": url.path})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.answer(200, {"received": len(body)})

    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main():
    server = ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler)
    # On SIGTERM: finish the requests that are running, and accept no new ones.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.05)
    server.server_close()


if __name__ == "__main__":
    main()
