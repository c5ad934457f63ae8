"""Makes WebAssembly modules of scripts that are a sequence of calls with constants: the binary format, as far as they need it.

A text among the arguments is put into the script's memory, and given as its place and length.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

I32, I64 = 0x7F, 0x7E
# The host's functions: parameters and results.
HOST = {
    "connect": ([I32, I32], [I32]),
    "send_rpc": ([I32, I64, I32, I32], [I32]),
    "recv_rpc_reply": ([I32, I64], [I32]),
    "reply_read": ([I32, I64, I32, I32], [I32]),
    "send_msg": ([I64, I32, I32], [I32]),
    "send_reply": ([I64, I32, I64], [I32]),
    "transfer_conn": ([I64, I32, I32, I32], [I32]),
    "recv_msg": ([I64, I32, I32, I32], [I32]),
    "exit": ([I32], []),
}


def _number(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        if value == (-1 if byte & 0x40 else 0):
            out.append(byte)
            return bytes(out)
        out.append(byte | 0x80)


def _count(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _list(items: list[bytes]) -> bytes:
    return _count(len(items)) + b"".join(items)


def _text(text: bytes) -> bytes:
    return _count(len(text)) + text


def module(*calls: tuple[str | int | bytes, ...], loops: bool = False) -> bytes:
    """A module whose `run` makes these calls, and then, with `loops`, never ends."""
    data, body = b"", b""
    for name, *arguments in calls:
        constants: list[int] = []
        for argument in arguments:
            if isinstance(argument, bytes):
                constants += [len(data), len(argument)]
                data += argument
            else:
                assert isinstance(argument, int)
                constants.append(argument)
        parameters, results = HOST[str(name)]
        assert len(constants) == len(parameters), name
        for kind, constant in zip(parameters, constants, strict=True):
            body += (b"\x41" if kind == I32 else b"\x42") + _number(constant)
        body += b"\x10" + _count(list(HOST).index(str(name))) + b"\x1a" * len(results)
    if loops:
        body += b"\x03\x40\x0c\x00\x0b"
    types = [
        b"\x60" + _list([bytes([kind]) for kind in some]) + _list([bytes([kind]) for kind in results])
        for some, results in HOST.values()
    ]
    imports = [_text(b"pilotlight_v1") + _text(name.encode()) + b"\x00" + _count(at) for at, name in enumerate(HOST)]
    exports = [_text(b"memory") + b"\x02\x00", _text(b"run") + b"\x00" + _count(len(HOST))]
    sections = {
        1: _list([*types, b"\x60\x00\x00"]),
        2: _list(imports),
        3: _list([_count(len(HOST))]),
        5: _list([b"\x00\x01"]),
        7: _list(exports),
        10: _list([_text(b"\x00" + body + b"\x0b")]),
        11: _list([b"\x00\x41\x00\x0b" + _text(data)]),
    }
    return b"\0asm\x01\0\0\0" + b"".join(bytes([number]) + _text(content) for number, content in sections.items())


def nested_loops(depth: int, variables: int) -> bytes:
    """A module that changes many variables in loops in loops: a few KB that keep a compiler busy for very long."""
    adds = b"".join(b"\x20" + _count(at) + b"\x41\x01\x6a\x21" + _count(at) for at in range(variables))
    body = b"\x03\x40" * depth + adds + b"\x20\x00\x0d\x00\x0b" * depth
    sections = {
        1: _list([b"\x60\x00\x00"]),
        3: _list([b"\x00"]),
        5: _list([b"\x00\x01"]),
        7: _list([_text(b"memory") + b"\x02\x00", _text(b"run") + b"\x00\x00"]),
        10: _list([_text(b"\x01" + _count(variables) + b"\x7f" + body + b"\x0b")]),
    }
    return b"\0asm\x01\0\0\0" + b"".join(bytes([number]) + _text(content) for number, content in sections.items())


def needs_rust() -> None:
    """Skips a test that builds a script of Rust, where there is no target for it."""
    command = ["rustc", "--print", "target-libdir", "--target", "wasm32-unknown-unknown"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode != 0 or not list(Path(found.stdout.strip()).glob("libcore-*")):
        reason = "there is no Rust for wasm32-unknown-unknown: rustup target add wasm32-unknown-unknown"
        print(f"\nSKIPPED: {reason}")
        pytest.skip(reason)
