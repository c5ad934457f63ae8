"""The small disk of the data directory. It is mounted in a mount namespace of this program, so that nothing stays on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MARK = "PILOT_CHAOS_HAS_MOUNTS"


def own_mounts() -> None:
    """Starts this program again in a mount namespace of its own, in this process. Returns there."""
    if os.environ.pop(_MARK, None) == str(os.getpid()):
        return
    unshare = shutil.which("unshare")
    if unshare is None:
        raise SystemExit("there is no unshare(1) (Debian: apt-get install util-linux)")
    os.environ[_MARK] = str(os.getpid())
    os.execv(unshare, [unshare, "--mount", "--propagation", "private", sys.executable, "-m", "chaos", *sys.argv[1:]])


@contextmanager
def data_mounted(folder: Path, size_mb: int) -> Iterator[None]:
    """A tmpfs at the folder. When the run is over, what is in it is copied to the folder itself, except the file that filled it."""
    options = f"size={size_mb}m,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "pilot-chaos", folder], check=True, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        aside = folder.with_name("kept")
        shutil.copytree(folder, aside, symlinks=True, ignore=shutil.ignore_patterns("filler", "*.sock", "reserve"))
        subprocess.run(["umount", "--lazy", folder], check=False, stdin=subprocess.DEVNULL)
