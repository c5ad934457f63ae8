"""How much is measured, and where."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .world import LOOPBACK, Link, World


@dataclass(frozen=True)
class Setting:
    binary: Path
    turns: int
    is_smoke: bool

    @contextmanager
    def world(self, link: Link = LOOPBACK) -> Iterator[World]:
        with tempfile.TemporaryDirectory(prefix="pilot-truffle-") as home:
            with World(self.binary, Path(home), link) as world:
                yield world
