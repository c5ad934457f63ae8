"""Data of the experiments, made here: no packages, no downloads."""

from __future__ import annotations

import os
import random
import struct
import zlib


def image(width: int, height: int) -> bytes:
    """A PNG of noise (RFC 2083): about three bytes per pixel, because noise cannot be compressed."""
    line = 3 * width
    pixels = os.urandom(line * height)
    rows = b"".join(b"\0" + pixels[at : at + line] for at in range(0, line * height, line))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def fasta(bases: int) -> bytes:
    """A sequence of DNA."""
    letters = random.Random(7).choices("ACGT", k=bases)
    lines = ["".join(letters[at : at + 80]) for at in range(0, bases, 80)]
    return ("\n".join([">made", *lines]) + "\n").encode()


def weights(count: int) -> bytes:
    """Small numbers, float32."""
    some = random.Random(7)
    block = struct.pack("<1000f", *(some.uniform(-0.05, 0.05) for _ in range(1000)))
    return (block * (count // 1000 + 1))[: 4 * count]
