"""The examples with an S3 server, as a newcomer starts them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from conftest import versitygw
from pilot_daemon import ROOT, binary, free_port
from wasm import needs_rust

# Packages may have to be installed.
pytestmark = pytest.mark.timeout(240)


def example(name: str) -> subprocess.CompletedProcess[str]:
    """Runs an example once."""
    environment = {
        **os.environ,
        "PILOT_BIN": str(binary()),
        "VERSITYGW": str(versitygw()),
        "S3_PORT": str(free_port()),
        "PILOT_PORT": str(free_port()),
    }
    command = [ROOT / "examples" / name / "run", "--once"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=220, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_example_makes_a_thumbnail_by_one_command() -> None:
    done = example("thumbnail-s3")
    assert '"key": "thumbnails/astronaut.jpg"' in done.stdout
    # The timeline shows the photograph: fetched for the cold start, and here already for the warm one. The store has the thumbnail.
    assert re.search(r"cold start,.*photograph .* hidden", done.stderr, re.DOTALL), done.stderr
    assert re.search(r"warm start,.*photograph .* cached", done.stderr, re.DOTALL), done.stderr
    written = re.search(r"the thumbnail: (\d+) bytes of (\d+)", done.stdout)
    assert written and 500 < int(written[1]) < int(written[2]), done.stdout


def test_the_example_with_an_initscript_reads_what_its_first_object_names_while_it_starts() -> None:
    needs_rust()
    done = example("initscript-s3")
    assert done.stdout.count('"title": "An astronaut"') == 2, done.stdout
    cold, warm = done.stderr.split("warm start,")
    # The script and both objects: the album, and the cover that the album names.
    assert re.search(r"cold start,.*init\.script .*init\.0 .*init\.1 ", cold, re.DOTALL), done.stderr
    assert "init." not in warm, done.stderr
