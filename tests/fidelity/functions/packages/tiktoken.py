"""An encoding of the module, made of bytes, because those of models would have to be downloaded."""

import tiktoken

ENCODING = tiktoken.Encoding(
    "own",
    pat_str=r"\w+|\W",
    mergeable_ranks={**{bytes([n]): n for n in range(256)}, b"th": 256, b"the": 257},
    special_tokens={},
)


def work():
    tokens = ENCODING.encode("the other")
    return [tokens, ENCODING.decode(tokens), ENCODING.encode_batch(["the", "a"], num_threads=2)]


def fail():
    tiktoken.get_encoding("no such encoding")
