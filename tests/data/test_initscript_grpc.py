"""Initscripts that call a gRPC server: a real one, by grpcio."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from pilot_daemon import Daemon
from test_initscript_kit import deploy, encoded
from test_initscripts import cold
from test_inputs import MIB, timing
from wasm import module

MANIFEST = """
[functions.client-{name}]
handler = "app.messages"
timeout_s = 20
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
allow = ["{place}/pilot.Echo/"]
"""
LARGE = os.urandom(MIB)


class Echo(grpc.GenericRpcHandler):
    """`Say` answers with the metadata `word` and the message, `Much` with a large message, `Fail` with an error."""

    def service(self, call: Any) -> Any:
        methods = {"/pilot.Echo/Say": self.say, "/pilot.Echo/Much": lambda *_: LARGE, "/pilot.Echo/Fail": self.fail}
        method = methods.get(call.method)
        return method and grpc.unary_unary_rpc_method_handler(method)

    @staticmethod
    def say(message: bytes, context: Any) -> bytes:
        words = [value for key, value in context.invocation_metadata() if key == "word"]
        return " ".join(words).encode() + b": " + message

    @staticmethod
    def fail(_: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: ä\n")
        return b""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(0).wait(10)


def test_a_script_calls_a_grpc_server(daemon: Daemon, server: str, tmp_path: Path) -> None:
    calls = [
        b"POST /pilot.Echo/Say\nword: hello\n\n\x0a\x00\xff",
        b"POST /pilot.Echo/Much",
        b"POST /pilot.Echo/Fail",
        b"POST /pilot.Echo/None",
        b"POST /pilot.Echo/Say\ngrpc-encoding: gzip\n\nx",
    ]
    sent = [("send_rpc", 0, at, call) for at, call in enumerate(calls)]
    handed = [("send_reply", at, 0, at) for at in range(len(calls))]
    content = module(("connect", server.encode()), *sent, *handed)
    deploy(daemon, tmp_path, MANIFEST.format(name="grpc", place=server), init=content)
    response, told = cold(daemon, "grpc", {"ids": list(range(len(calls)))})
    assert told["0"] == encoded(b"hello: \x0a\x00\xff")
    assert base64.b64decode(told["1"][1]) == LARGE
    assert "status 5: no such thing: ä" in told["2"], told["2"]
    assert "status 12" in told["3"], told["3"]
    assert "the metadata grpc-encoding is the host's" in told["4"], told["4"]
    assert timing(response)["fetch.init.1"]["bytes"] == MIB


@pytest.fixture(scope="module")
def secure(certificate: tuple[Path, Path]) -> Iterator[str]:
    own, key = (path.read_bytes() for path in certificate)
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Echo()])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, own)]))
    server.start()
    yield f"grpcs://localhost:{port}"
    server.stop(0).wait(10)


@pytest.fixture
def trusting(certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon on a machine that trusts the server's authority."""
    home = tmp_path / "trusting"
    home.mkdir()
    config = home / "pilotd.toml"
    config.write_text('[data]\ninitscript_networks = ["127.0.0.1/32"]\n')
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    daemon = Daemon(home, "--config", config)
    yield daemon
    daemon.stop()


def test_a_script_calls_a_grpc_server_with_tls(trusting: Daemon, daemon: Daemon, secure: str, tmp_path: Path) -> None:
    call = b"POST /pilot.Echo/Say\nword: hello\n\nx"
    content = module(("connect", secure.encode()), ("send_rpc", 0, 0, call), ("send_reply", 0, 0, 0))
    manifest = MANIFEST.format(name="grpcs", place=secure)
    for asked, is_trusted in ((trusting, True), (daemon, False)):
        folder = tmp_path / f"trusted-{is_trusted}"
        folder.mkdir()
        deploy(asked, folder, manifest, init=content)
        _, told = cold(asked, "grpcs", {"ids": [0]})
        if is_trusted:
            assert told["0"] == encoded(b"hello: x"), told
        else:
            # The machine of the tests does not know the authority.
            assert "certificate" in told["0"], told
    # The same server without TLS.
    plain = secure.replace("grpcs://localhost", "grpc://127.0.0.1")
    content = module(("connect", plain.encode()), ("send_rpc", 0, 0, call), ("send_reply", 0, 0, 0))
    folder = tmp_path / "plain"
    folder.mkdir()
    deploy(daemon, folder, MANIFEST.format(name="grpcs-plain", place=plain), init=content)
    _, told = cold(daemon, "grpcs-plain", {"ids": [0]})
    assert told["0"].startswith("message 0: "), told


def test_a_server_that_speaks_no_grpc_is_a_failure_of_its_message_alone(daemon: Daemon, tmp_path: Path) -> None:
    """The daemon's own address speaks HTTP/1 without TLS."""
    place = f"grpc://{daemon.address}"
    content = module(("connect", place.encode()), ("send_rpc", 0, 0, b"POST /pilot.Echo/Say\n\nx"), ("send_reply", 0, 0, 0))
    deploy(daemon, tmp_path, MANIFEST.format(name="no-grpc", place=place), init=content)
    _, told = cold(daemon, "no-grpc", {"ids": [0]})
    assert told["0"].startswith("message 0: error sending request"), told
    assert daemon.process.poll() is None
