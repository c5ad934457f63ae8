"""Files that a template wrote to `/tmp` and `/dev/shm` while it imported, for example matplotlib's list of fonts. A template
below has folders of its own, and gets copies. A worker needs none: it sees its template's files through an overlay.
"""

from __future__ import annotations

import os
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    Written = List[Tuple[str, int]]

FOLDERS = ("/tmp", "/dev/shm")


def written() -> Written:
    """The folders that contain something, each with a descriptor. To be called before the namespaces are entered."""
    opened = []
    for folder in FOLDERS:
        try:
            if os.listdir(folder):
                opened.append((folder, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
        except OSError:
            pass  # a sandbox without this folder
    return opened


def are_used() -> bool:
    """Whether they contain something, or hold a file that has no name any more. The folder itself uses one inode."""
    for folder in FOLDERS:
        try:
            used = posix.statvfs(folder)
        except OSError:
            continue  # a sandbox without this folder
        if used.f_files - used.f_ffree > 1:
            return True
    return False


def carry_over(written: Written) -> None:
    """Copies them into the folders of the same names. What cannot be copied (a socket, a pipe) is left out and logged."""
    for folder, fd in written:
        try:
            if not os.path.samestat(os.fstat(fd), os.stat(folder)):
                _copy(f"/proc/self/fd/{fd}", folder)
        finally:
            posix.close(fd)


def _copy(source: str, target: str) -> None:
    import shutil

    for entry in os.scandir(source):
        to = os.path.join(target, entry.name)
        try:
            if entry.is_dir(follow_symlinks=False):
                shutil.copytree(entry.path, to, symlinks=True)
            elif entry.is_symlink() or entry.is_file():
                shutil.copy2(entry.path, to, follow_symlinks=False)
        except OSError as error:  # shutil.Error is one, too
            print(f"a file of the environment's imports is missing: {to}: {error}", file=sys.stderr, flush=True)
