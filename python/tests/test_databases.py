"""Databases of the import that a worker has a copy of, which its library would not know again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from at_import import findings, ready
from conftest import Functions

# As in a sandbox, where /tmp is a mount and a worker has copies of its files.
SANDBOX = """
import os, sqlite3
is_mount = os.path.ismount
os.path.ismount = lambda path: path == "/tmp" or is_mount(path)
IMPORTED = os.getpid()
def handler(event, context): return IMPORTED == os.getpid()
"""
HDF5 = "with open({path!r}, 'wb') as file: file.write(b'\\x89HDF\\r\\n\\x1a\\n' + bytes(88))\n"
CREATE = "kept.execute('create table t (word text)')\n"


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield str(Path(folder, "words"))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("kept = sqlite3.connect({path!r})\n" + CREATE, "SQLite"),
        ("kept = sqlite3.connect({path!r})\n" + CREATE + "kept.execute('pragma journal_mode = persist')\n", "SQLite"),
        ("kept = sqlite3.connect({path!r})\n", "SQLite"),  # still an empty file
        (HDF5 + "kept = os.open({path!r}, os.O_RDWR)\n", "HDF5"),
    ],
)
@pytest.mark.parametrize("hook", ["", "from snapshot_restore_py import register_after_restore as of\nof(lambda: None)\n"])
def test_a_database_that_is_open_makes_the_template_not_fork(
    functions: Functions, path: str, source: str, kind: str, hook: str
) -> None:
    template = functions.template(hook + SANDBOX + source.format(path=path))
    what, why = f"opened {path} of {kind} at import", f"{kind} would not know the worker's copy of it again"
    assert template.report["must_not_fork"] == f"{what} ({why})"
    assert [row[1:] for row in findings(template)] == [(what, f"{why}, so each worker imports the module itself")]


@pytest.mark.parametrize(
    "source",
    [
        "kept = sqlite3.connect({path!r})\n" + CREATE + "kept.close()\n",
        "from snapshot_restore_py import register_before_snapshot as of\nkept = sqlite3.connect({path!r})\nof(kept.close)\n",
        "sqlite3.connect({path!r}).execute('create table t (word text)')\n"
        "kept = sqlite3.connect('file:' + {path!r} + '?mode=ro', uri=True)\nkept.execute('select * from t').fetchall()\n",
        HDF5 + "kept = os.open({path!r}, os.O_RDONLY)\n",
        "kept = open({path!r}, 'w+')\nkept.write('SQLite')\nkept.flush()\n",
    ],
)
def test_what_is_closed_or_only_read_or_another_file_is_not_in_the_way(functions: Functions, path: str, source: str) -> None:
    template = functions.template(SANDBOX + source.format(path=path))
    assert "must_not_fork" not in template.report
    assert ready(template, 1)[0].result({}) is False
