"""An S3 server, and its objects. The client is a few lines, so that a smoke run needs no packages."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import subprocess
import time
from pathlib import Path
from urllib.parse import urlencode

from benchlib.daemon import end, free_port, wait_for_port
from benchlib.pilot import ROOT

KEY_ID, SECRET, REGION, BUCKET = "AKIAPILOT", "a-secret-for-benchmarks", "us-east-1", "photos"


class Store:
    """versitygw over a folder."""

    def __init__(self, home: Path) -> None:
        program = Path(os.environ.get("PILOT_TEST_VERSITYGW", ROOT / "target" / "tools" / "versitygw"))
        if not program.exists():
            raise SystemExit(f"there is no S3 server at {program}: run scripts/test truffle, which builds it")
        self.port = free_port()
        self.secret = home / "secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        folder = home / "objects"
        folder.mkdir()
        command = [
            str(program),
            "--access",
            KEY_ID,
            "--secret",
            SECRET,
            "--port",
            f"127.0.0.1:{self.port}",
            "posix",
            str(folder),
        ]
        with (home / "store.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)

    def __enter__(self) -> Store:
        wait_for_port(self.port, self.process)
        self._put(f"/{BUCKET}", b"")
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def put(self, key: str, body: bytes) -> None:
        self._put(f"/{BUCKET}/{key}", body)

    def _put(self, path: str, body: bytes) -> None:
        headers = signed(f"127.0.0.1:{self.port}", path, time.gmtime())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("PUT", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"PUT {path}: {response.status} {answer!r}")

    def config(self) -> str:
        """The lines of `pilotd.toml`."""
        return (
            f'[stores.{BUCKET}]\nfunctions = ["*"]\nkind = "s3"\nendpoint = "http://127.0.0.1:{self.port}"\n'
            f'region = "{REGION}"\naccess_key_id = "{KEY_ID}"\nsecret_access_key_file = "{self.secret}"\n'
        )


def signed(host: str, path: str, now: time.struct_time) -> dict[str, str]:
    """The headers of a PUT (AWS Signature Version 4, without the body)."""
    date, stamp = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    headers = {"host": host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": stamp}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    scope = scope_of(date)
    signature = signature_of(f"PUT\n{path}\n\n{lines}\n{names}\nUNSIGNED-PAYLOAD", date, stamp)
    told = f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": told}


def presigned(endpoint: str, key: str, now: time.struct_time | None = None) -> str:
    """A URL with which a client without credentials reads an object, for an hour."""
    now = now or time.gmtime()
    date, stamp = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    words = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/{scope_of(date)}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": "3600",
        "X-Amz-SignedHeaders": "host",
    }
    query, host = urlencode(words), endpoint.removeprefix("http://")
    signature = signature_of(f"GET\n/{BUCKET}/{key}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD", date, stamp)
    return f"{endpoint}/{BUCKET}/{key}?{query}&X-Amz-Signature={signature}"


def scope_of(date: str) -> str:
    return f"{date}/{REGION}/s3/aws4_request"


def signature_of(canonical: str, date: str, stamp: str) -> str:
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope_of(date)}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for word in (date, REGION, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()
