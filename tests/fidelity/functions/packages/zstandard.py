"""Compression with a dictionary of the module."""

import zstandard

DICTIONARY = zstandard.ZstdCompressionDict(b"the quick brown fox" * 20)
COMPRESSOR = zstandard.ZstdCompressor(level=3, dict_data=DICTIONARY)


def work():
    small = COMPRESSOR.compress(b"the quick brown fox jumps")
    many = zstandard.ZstdCompressor(threads=2).compress(b"a" * 1_000_000)
    again = zstandard.ZstdDecompressor(dict_data=DICTIONARY).decompress(small)
    return [again.decode(), len(zstandard.decompress(many)), zstandard.backend]


def fail():
    zstandard.decompress(b"no frame")
