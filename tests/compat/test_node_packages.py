"""Packages of package.json in `runtime = "node"`: a CommonJS package and a pure ES module."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def npm():
    if shutil.which("npm") is None:
        pytest.skip("packages of package.json are not tested: there is no npm on PATH")


def test_a_commonjs_handler_requires_qrcode(deployed, client):
    deployed(HERE / "packages" / "cjs")
    response = client.invoke(FunctionName="package-cjs", Payload=json.dumps({"text": "https://example.org"}))
    assert json.loads(response["Payload"].read()).startswith("<svg ")


def test_a_module_imports_nanoid(deployed, client):
    deployed(HERE / "packages" / "esm")
    response = client.invoke(FunctionName="package-esm", Payload=json.dumps({"length": 30}))
    made = json.loads(response["Payload"].read())
    assert len(made["id"]) == 30
    assert made["digits"].isdigit()
