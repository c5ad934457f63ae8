"""Files that a template above has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot_worker.forking import folders


def test_a_template_gets_copies_of_what_the_one_above_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here, empty, missing = tmp_path / "tmp", tmp_path / "shm", tmp_path / "missing"
    monkeypatch.setattr(folders, "FOLDERS", (str(here), str(empty), str(missing)))
    (here / "cache" / "deep").mkdir(parents=True)
    empty.mkdir()
    (here / "cache" / "deep" / "fonts.json").write_text("[]")
    (here / "model.bin").write_bytes(bytes(100_000))
    (here / "model.bin").chmod(0o640)
    (here / "link").symlink_to("model.bin")
    (here / "dangling").symlink_to("nowhere")
    os.mkfifo(here / "pipe")
    written = folders.written()
    assert [folder for folder, _ in written] == [str(here)]
    # In the namespaces of the template below, the path leads to another folder.
    here.rename(tmp_path / "above")
    here.mkdir()
    folders.carry_over(written)
    assert (here / "cache" / "deep" / "fonts.json").read_text() == "[]"
    assert (here / "model.bin").stat().st_size == 100_000
    assert (here / "model.bin").stat().st_mode & 0o777 == 0o640
    assert (os.readlink(here / "link"), os.readlink(here / "dangling")) == ("model.bin", "nowhere")
    assert not (here / "pipe").exists()
    (here / "model.bin").write_text("changed")
    assert (tmp_path / "above" / "model.bin").stat().st_size == 100_000
    for _, fd in written:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_folders_are_used_while_something_is_in_them_or_open() -> None:
    here = Path("/dev/shm/pilot-test-folders")
    with here.open("w") as file:
        assert folders.are_used()
        here.unlink()
        assert folders.are_used()
        assert file.fileno() > 0


def test_a_folder_that_stays_the_same_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "FOLDERS", (str(tmp_path),))
    (tmp_path / "file").write_text("as it was")
    before = (tmp_path / "file").stat()
    folders.carry_over(folders.written())
    after = (tmp_path / "file").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
