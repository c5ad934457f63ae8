"""A cipher, a signature and random bytes."""

from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.PublicKey import ECC
from Crypto.Random import get_random_bytes
from Crypto.Random.random import getrandbits
from Crypto.Signature import DSS

KEY = ECC.construct(curve="P-256", d=12345)


def work():
    cipher = AES.new(b"k" * 16, AES.MODE_GCM, nonce=b"n" * 12)
    secret, tag = cipher.encrypt_and_digest(b"text")
    return [secret.hex(), tag.hex(), DSS.new(KEY, "deterministic-rfc6979").sign(SHA256.new(b"a")).hex()]


def random():
    return [get_random_bytes(16).hex(), getrandbits(64), DSS.new(KEY, "fips-186-3").sign(SHA256.new(b"a")).hex()]


def fail():
    AES.new(b"k" * 16, AES.MODE_GCM, nonce=b"n" * 12).decrypt_and_verify(b"text", b"t" * 16)
