"""A password."""

import bcrypt

SALT = b"$2b$04$abcdefghijklmnopqrstuu"
STORED = bcrypt.hashpw(b"password", SALT)


def work():
    return [bcrypt.checkpw(b"password", STORED), bcrypt.hashpw(b"other", SALT).decode(), bcrypt.kdf(b"a", b"b", 8, 50).hex()]


def random():
    return bcrypt.gensalt(4).decode()


def fail():
    bcrypt.hashpw(b"password", b"no salt")
