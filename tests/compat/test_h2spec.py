"""HTTP/2 as h2spec judges it: all cases of its sections on HTTP/2, over TLS and without."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from pilot_daemon import ROOT, Daemon

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# The number of cases in the version that go.mod names, 2.2.1, which is the newest one that Go's module proxy has: its sections `generic`,
# `http2` and `hpack`. A run that matches no case must not pass.
CASES = 146

# The cases about windows need a response of some length.
CODE = "def handler(event, context):\n    return {'statusCode': 200, 'body': 'x' * 2000}\n"


@pytest.fixture(scope="session")
def h2spec() -> Path:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        pytest.skip("h2spec is not run: there is no go on PATH (Debian: apt-get install golang-go)")
    program = TARGET / "compat-go" / "h2spec"
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "build", "-trimpath", "-buildvcs=false", "-o", program, "github.com/summerwind/h2spec/cmd/h2spec"],
        cwd=HERE / "h2spec",
        env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0 and "dial tcp" in done.stderr:
        pytest.skip(f"h2spec is not run: Go's module proxy cannot be reached:\n{done.stderr}")
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("TLS is not tested: there is no openssl on PATH (Debian: apt-get install openssl)")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([openssl, *new, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    key.chmod(0o600)
    return certificate, key


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pilot.toml").write_text('[functions.page]\nruntime = "python3"\nhandler = "app.handler"\n')
    (folder / "app.py").write_text(CODE)
    return folder


def judged(h2spec: Path, daemon: Daemon, *options: str) -> None:
    report = daemon.data / "h2spec.xml"
    port = daemon.address.rpartition(":")[2]
    command = [h2spec, "--strict", "-h", "localhost", "-p", port, "-P", "/fn/page/", "-j", report, "-o", "5", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    cases = ElementTree.parse(report).getroot().iter("testcase")
    results = {f"{case.get('package')} {case.get('classname')}": {child.tag for child in case} for case in cases}
    failed = [name for name, tags in results.items() if tags & {"failure", "error"}]
    skipped = [name for name, tags in results.items() if "skipped" in tags]
    assert (failed, skipped) == ([], []), done.stdout
    assert f"{CASES} tests, {CASES} passed, 0 skipped, 0 failed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_h2spec_over_tls(h2spec, certificate, project, tmp_path):
    file, key = certificate
    daemon = Daemon(tmp_path, "--tls-certificate", file, "--tls-key", key)
    try:
        assert daemon.up(project).returncode == 0
        context = ssl.create_default_context(cafile=str(file))
        page = daemon.endpoint.replace("http://127.0.0.1", "https://localhost") + "/fn/page/"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with opener.open(page) as response:
            assert len(response.read()) == 2000
        judged(h2spec, daemon, "--tls", "--insecure")
    finally:
        daemon.stop()


def test_h2spec_without_tls(h2spec, project, tmp_path):
    daemon = Daemon(tmp_path, "--h2c")
    try:
        assert daemon.up(project).returncode == 0
        judged(h2spec, daemon)
    finally:
        daemon.stop()


def test_h2spec_finds_what_is_wrong(h2spec, tmp_path):
    """Without HTTP/2 on the address, nearly nothing passes."""
    daemon = Daemon(tmp_path)
    try:
        with pytest.raises(AssertionError):
            judged(h2spec, daemon)
    finally:
        daemon.stop()
