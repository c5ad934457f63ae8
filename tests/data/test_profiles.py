"""A store of S3 whose keys are in a profile of AWS's tools, and keys of events of S3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Bucket, eventually
from pilot_daemon import Daemon

pytestmark = pytest.mark.timeout(240)

CODE = """
import os


def handler(event, context):
    files = [os.environ.get(name) for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_PROFILE")]
    return {"image": bytes(context.inputs["image"]).decode(), "files": files, "seen": os.path.exists(event.get("path", ""))}
"""
MANIFEST = """
[functions.shows]
handler = "app.handler"

[functions.shows.inputs]
image = "s3://photos/{event.Records.0.s3.object.key|urldecode}"
"""
STORE = '[stores.photos]\nkind = "s3"\nfunctions = ["*"]\nprofile = "work"\n'
KEYS = f"aws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"


def event(key: str, **more: object) -> dict[str, object]:
    return {"Records": [{"s3": {"object": {"key": key}}}], **more}


def invoke(daemon: Daemon, event: object) -> Any:
    return json.loads(daemon.request("POST", "/2015-03-31/functions/shows/invocations", event, 60).read())


Started = Callable[[str, str], Any]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A daemon with these two files of AWS's tools."""

    @contextmanager
    def start(credentials: str, config: str) -> Iterator[Daemon]:
        for name, text in (("AWS_SHARED_CREDENTIALS_FILE", credentials), ("AWS_CONFIG_FILE", config)):
            path = tmp_path / name
            path.write_text(text)
            path.chmod(0o600)
            monkeypatch.setenv(name, str(path))
        (tmp_path / "pilotd.toml").write_text(STORE)
        code = tmp_path / "code"
        code.mkdir(exist_ok=True)
        (code / "app.py").write_text(CODE)
        (code / "pilot.toml").write_text(MANIFEST)
        daemon = Daemon(tmp_path, "--config", str(tmp_path / "pilotd.toml"))
        try:
            done = daemon.up(code)
            assert done.returncode == 0, f"{done.stdout}{done.stderr}"
            yield daemon
        finally:
            daemon.stop()

    return start


def test_a_store_has_the_keys_of_a_profile_and_the_worker_has_not(started: Started, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("my file ä.txt", b"decoded")
    config = f"[profile work]\nregion = us-east-1\nendpoint_url = {bucket.endpoint}\n"
    with started(f"[default]\naws_access_key_id = other\n[work]\n{KEYS}", config) as daemon:
        path = tmp_path / "AWS_SHARED_CREDENTIALS_FILE"
        answer = invoke(daemon, event("my+file%20%C3%A4.txt", path=str(path)))
        assert answer == {"image": "decoded", "files": [None, None, None], "seen": False}
        error = invoke(daemon, event("100%"))
        assert error["errorType"] == "Input.KeyError", error
        assert "{event.Records.0.s3.object.key|urldecode} is not URL-encoded" in error["errorMessage"], error
        error = invoke(daemon, event("..%2Fx"))
        assert error["errorType"] == "Input.KeyError", error

        # Other keys are used as soon as they are in the file.
        path.write_text(f"[work]\n{KEYS.replace(SECRET, 'wrong')}")
        eventually("the wrong key", lambda: invoke(daemon, event("nothing")).get("errorType") == "Input.AccessDenied")
        path.write_text(f"[work]\n{KEYS}")
        eventually("the right key", lambda: invoke(daemon, event("my+file+%C3%A4.txt")).get("image") == "decoded")


def test_a_store_of_s3_is_reached_without_a_proxy(started: Started, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        # Nobody listens there.
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    bucket.put("direct.txt", b"direct")
    config = f"[profile work]\nregion = us-east-1\nendpoint_url = {bucket.endpoint}\n"
    with started(f"[work]\n{KEYS}", config) as daemon:
        assert invoke(daemon, event("direct.txt"))["image"] == "direct"


@pytest.mark.parametrize(
    ("credentials", "config", "said"),
    [
        ("[other]\n", "", 'there is no profile "work" in '),
        ("[work]\n", "", 'the profile "work" has no aws_access_key_id'),
        (
            f"[work]\n{KEYS}",
            "[profile work]\nrole_arn = arn:aws:iam::1:role/x\n",
            "has role_arn: assuming a role is not supported",
        ),
        ("", "[profile work]\nsso_session = ours\n", "has sso_session: single sign-on (SSO) is not supported"),
        (
            "",
            "[profile work]\ncredential_process = /bin/true\n",
            "has credential_process: a program that prints keys is not supported",
        ),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_at_the_start(
    started: Started, tmp_path: Path, credentials: str, config: str, said: str
) -> None:
    with pytest.raises(pytest.exit.Exception) as ended, started(credentials, config):
        pass
    log = (tmp_path / "daemon.log").read_text()
    assert "stores.photos: profile: " in log and said in log, (ended.value, log)
