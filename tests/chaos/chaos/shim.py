"""The page of memory that tells the library in the daemon (shim.c) what to disturb."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

_CLOCK, _DELAY, _FAILS = struct.Struct("<q"), struct.Struct("<i"), struct.Struct("<i")
_DELAY_AT, _FAILS_AT = 8, 12


class Shim:
    """The library, compiled, and its page. `reason` says why there is none."""

    def __init__(self, home: Path, binary: Path) -> None:
        self.environment: dict[str, str] = {}
        self.reason = self._missing(binary)
        self._page: mmap.mmap | None = None
        if self.reason:
            return
        library, page = home / "shim.so", home / "shim.page"
        source = Path(__file__).with_name("shim.c")
        command: list[str | Path] = ["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        page.write_bytes(bytes(4096))
        with page.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)
        self.environment = {"LD_PRELOAD": str(library), "PILOT_CHAOS_PAGE": str(page)}

    @staticmethod
    def _missing(binary: Path) -> str:
        if shutil.which("cc") is None:
            return "there is no C compiler (cc)"
        # PT_INTERP is in the first page of a program that is linked dynamically.
        with binary.open("rb") as file:
            if b"ld-linux" not in file.read(4096):
                return f"{binary} is linked statically"
        return ""

    def clock(self, offset_s: int) -> None:
        """The calendar's clock of the daemon is off by this many seconds."""
        if self._page is not None:
            _CLOCK.pack_into(self._page, 0, offset_s)

    def sync(self, delay_ms: int = 0, fails: bool = False) -> None:
        """How long it takes to synchronise a file, and whether it fails with EIO."""
        if self._page is not None:
            _DELAY.pack_into(self._page, _DELAY_AT, delay_ms)
            _FAILS.pack_into(self._page, _FAILS_AT, int(fails))
