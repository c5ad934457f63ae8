"""Messages."""

import io

import msgpack

PACKER = msgpack.Packer()


def work():
    packed = PACKER.pack({"a": [1, 2.5, None, "ü"], "b": b"x"})
    return [packed.hex(), repr(msgpack.unpackb(packed)), list(msgpack.Unpacker(io.BytesIO(packed)))[0]["a"]]


def fail():
    msgpack.unpackb(b"\x93\x01")
