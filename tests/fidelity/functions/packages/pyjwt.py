"""Tokens with a key of the module."""

import jwt
from jwt.algorithms import HMACAlgorithm

KEY = "0123456789abcdef0123456789abcdef"
HASHED = HMACAlgorithm(HMACAlgorithm.SHA256)


def work():
    token = jwt.encode({"sub": "a", "exp": 4_000_000_000}, KEY, algorithm="HS256")
    return [token, jwt.decode(token, KEY, algorithms=["HS256"]), HASHED.sign(b"a", KEY.encode()).hex()]


def fail():
    jwt.decode(jwt.encode({"exp": 1}, KEY, algorithm="HS256"), KEY, algorithms=["HS256"])
