"""HotC's web function (Fig. 9) as an HTTP server on $PORT: /?url=… becomes a QR code, as SVG. `SCALE` is its configuration."""

import io
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import segno

SCALE = int(os.environ.get("SCALE", "4"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        url = parse_qs(urlsplit(self.path).query).get("url", ["https://example.org/"])[0]
        picture = io.BytesIO()
        segno.make(url, error="l", micro=False).save(picture, kind="svg", scale=SCALE)
        self.send_response(200)
        self.send_header("content-type", "image/svg+xml")
        self.send_header("content-length", str(picture.tell()))
        self.end_headers()
        self.wfile.write(picture.getvalue())

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
