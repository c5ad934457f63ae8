"""The example with an S3 server, as a newcomer starts it."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from conftest import free_port, versitygw
from pilot_daemon import ROOT, binary

# Packages may have to be installed.
pytestmark = pytest.mark.timeout(240)


def test_the_example_makes_a_thumbnail_by_one_command() -> None:
    environment = {
        **os.environ,
        "PILOT_BIN": str(binary()),
        "VERSITYGW": str(versitygw()),
        "S3_PORT": str(free_port()),
        "PILOT_PORT": str(free_port()),
    }
    command = [ROOT / "examples" / "thumbnail-s3" / "run", "--once"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=220, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"key": "thumbnails/astronaut.jpg"' in done.stdout
    # The timeline shows the photograph: fetched for the cold start, and here already for the warm one. The store has the thumbnail.
    assert re.search(r"cold start,.*photograph .* hidden", done.stderr, re.DOTALL), done.stderr
    assert re.search(r"warm start,.*photograph .* cached", done.stderr, re.DOTALL), done.stderr
    written = re.search(r"the thumbnail: (\d+) bytes of (\d+)", done.stdout)
    assert written and 500 < int(written[1]) < int(written[2]), done.stdout
