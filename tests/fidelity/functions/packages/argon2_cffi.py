"""A password."""

from argon2 import PasswordHasher, low_level

HASHER = PasswordHasher(time_cost=1, memory_cost=64, parallelism=2)
STORED = HASHER.hash("password")


def work():
    raw = low_level.hash_secret_raw(b"a", b"somesalt", 1, 64, 1, 16, low_level.Type.ID)
    return [HASHER.verify(STORED, "password"), HASHER.check_needs_rehash(STORED), raw.hex()]


def random():
    return HASHER.hash("password")


def fail():
    HASHER.verify(STORED, "other")
