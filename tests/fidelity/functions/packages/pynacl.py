"""A box, a signature and a hash."""

from nacl import encoding, hash, secret, signing, utils

BOX = secret.SecretBox(b"k" * 32)
SIGNING = signing.SigningKey(b"s" * 32)


def work():
    return [
        BOX.decrypt(BOX.encrypt(b"a")).decode(),
        SIGNING.sign(b"m", encoder=encoding.HexEncoder).decode(),
        hash.sha256(b"a").decode(),
    ]


def random():
    return [utils.random(16).hex(), signing.SigningKey.generate().encode().hex(), BOX.encrypt(b"same").hex()]


def fail():
    BOX.decrypt(b"x" * 50)
