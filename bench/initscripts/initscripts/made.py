"""Data of the experiments, made here: no packages, no downloads."""

from __future__ import annotations

import os
import random
import struct
import zlib
from array import array


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


def vectors(count: int, dims: int) -> bytes:
    """A shard of vecdb (services/vecdb.c)."""
    some = random.Random(7)
    block = array("f", (some.uniform(-1, 1) for _ in range(99_991))).tobytes()
    numbers = (block * (4 * count * dims // len(block) + 1))[: 4 * count * dims]
    return b"VECTORS1" + struct.pack("<II", count, dims) + array("Q", range(count)).tobytes() + numbers


def shard(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A shard of cached (services/cached.c)."""
    slots = 1 << (2 * len(entries)).bit_length()
    table = [0] * slots
    parts, at = [], 16 + 8 * slots
    for key, value in entries:
        place = fnv1a(key) % slots
        while table[place]:
            place = (place + 1) % slots
        table[place] = at
        part = struct.pack("<II", len(key), len(value)) + key + value
        part += bytes(-len(part) % 8)
        parts.append(part)
        at += len(part)
    return b"CACHED01" + struct.pack("<II", slots, len(entries)) + array("Q", table).tobytes() + b"".join(parts)


def fnv1a(content: bytes) -> int:
    total = 2166136261
    for byte in content:
        total = ((total ^ byte) * 16777619) & 0xFFFFFFFF
    return total


# Inputs and outputs of the three layers of imgrec's network: 13.3 MB, the paper's size. The first one sees 3 × 16 × 16 pixels at a time.
LAYERS = ((3 * 16 * 16, 1024), (1024, 1254), (1254, 1000))


def weights() -> bytes:
    """The numbers of the network, float32: of each layer its outputs, of each output its inputs."""
    count = sum(inputs * outputs for inputs, outputs in LAYERS)
    some = random.Random(7)
    # Of a prime length, so that no two outputs have the same numbers.
    block = array("f", (some.uniform(-0.05, 0.05) for _ in range(99_991))).tobytes()
    return (block * (4 * count // len(block) + 1))[: 4 * count]


def network(numbers: bytes) -> bytes:
    """The network with these numbers as a file of ONNX (onnx.proto): `x`, 1 × 3 × 224 × 224, becomes `y`, one number per class."""
    parts, at, last = [], 0, "x"
    for layer, (inputs, outputs) in enumerate(LAYERS):
        side = 16 if layer == 0 else 1
        here = numbers[at : at + 4 * inputs * outputs]
        shape = (outputs, inputs // side**2, side, side)
        # TensorProto: dims, data_type (1: float32), name, raw_data.
        tensor = b"".join(number(1, one) for one in shape) + number(2, 1) + text(8, f"w{layer}") + text(9, here)
        sides = b"".join(number(8, side) for _ in range(2))
        # AttributeProto: name, ints, type (7: INTS).
        strides = text(5, text(1, "strides") + sides + number(20, 7))
        parts += [
            text(5, tensor),
            node("Conv", [last, f"w{layer}"], f"c{layer}", strides),
            node("Relu", [f"c{layer}"], f"r{layer}"),
        ]
        at, last = at + len(here), f"r{layer}"
    parts.append(node("GlobalAveragePool", [last], "y"))
    graph = b"".join(parts) + text(2, "imgrec") + text(11, value("x", (1, 3, 224, 224))) + text(12, value("y", (1, 1000, 1, 1)))
    # ModelProto: ir_version, graph, opset_import.
    return number(1, 8) + text(7, graph) + text(8, text(1, "") + number(2, 13))


def node(kind: str, inputs: list[str], output: str, attributes: bytes = b"") -> bytes:
    """A field of GraphProto."""
    return text(1, b"".join(text(1, name) for name in inputs) + text(2, output) + text(4, kind) + attributes)


def value(name: str, shape: tuple[int, ...]) -> bytes:
    """A ValueInfoProto of float32."""
    dimensions = b"".join(text(1, number(1, one)) for one in shape)
    return text(1, name) + text(2, text(1, number(1, 1) + text(2, dimensions)))


def number(field: int, content: int) -> bytes:
    """A field of protobuf."""
    return varint(field << 3) + varint(content)


def text(field: int, content: bytes | str) -> bytes:
    encoded = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(encoded)) + encoded


def varint(content: int) -> bytes:
    parts = bytearray()
    while content > 127:
        parts.append(content & 127 | 128)
        content >>= 7
    parts.append(content)
    return bytes(parts)
