"""Random values of many libraries. Each generator is used once at import, so it has a state that a fork would copy."""

import ctypes
import glob
import os
import random
import secrets
import socket
import ssl
import tempfile
import uuid

import bson
import faker
import grpc
import jwt
import numpy
import psycopg2
import redis
from Crypto.Random import get_random_bytes
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PACKAGES = [grpc.__name__, redis.__name__]
SIGNING = ec.generate_private_key(ec.SECP256R1())
OWN = random.Random()
GENERATOR = numpy.random.default_rng()
LEGACY = numpy.random.RandomState()
NAMES = faker.Faker()
LIBPQ_CRYPTO = ctypes.CDLL(
    glob.glob(os.path.join(os.path.dirname(psycopg2.__file__), "..", "psycopg2_binary.libs", "libcrypto*"))[0]
)


def libpq_random() -> str:
    """From the OpenSSL that psycopg2 brings along."""
    space = ctypes.create_string_buffer(16)
    assert LIBPQ_CRYPTO.RAND_bytes(space, 16) == 1
    return space.raw.hex()


def private(key) -> str:
    raw = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.DER, raw, serialization.NoEncryption()).hex()


SOURCES = {
    "cryptography: EC key": lambda: private(ec.generate_private_key(ec.SECP256R1())),
    "cryptography: Ed25519 key": lambda: private(ed25519.Ed25519PrivateKey.generate()),
    "cryptography: AES key": lambda: AESGCM.generate_key(256).hex(),
    "cryptography: ECDSA signature": lambda: SIGNING.sign(b"same", ec.ECDSA(hashes.SHA256())).hex(),
    "PyJWT: ES256": lambda: jwt.encode({"same": 1}, SIGNING, "ES256"),
    "pycryptodome": lambda: get_random_bytes(16).hex(),
    "bson: ObjectId": lambda: str(bson.ObjectId())[8:],
    "psycopg2: libcrypto": libpq_random,
    "ssl": lambda: ssl.RAND_bytes(16).hex(),
    "secrets": lambda: secrets.token_hex(16),
    "uuid1": lambda: str(uuid.uuid1()),
    "uuid4": lambda: str(uuid.uuid4()),
    "tempfile": lambda: next(tempfile._get_candidate_names()),
    "random": lambda: random.getrandbits(128),
    "random.Random()": lambda: OWN.getrandbits(128),
    "random.gauss": lambda: [random.gauss(0, 1), random.gauss(0, 1)],
    "numpy.random": lambda: numpy.random.bytes(16).hex(),
    "numpy.random.normal": lambda: [numpy.random.normal(), numpy.random.normal()],
    "numpy default_rng()": lambda: GENERATOR.bytes(16).hex(),
    "numpy RandomState()": lambda: LEGACY.bytes(16).hex(),
    "faker": lambda: NAMES.uuid4() + NAMES.sha256(),
}
# Too slow to be made for every call of a burst.
SLOW = {"cryptography: RSA key": lambda: private(rsa.generate_private_key(65537, 1024))}
for make in [*SOURCES.values(), *SLOW.values()]:
    make()


def handler(event, context):
    sources = {**SOURCES, **SLOW} if event.get("slow") else SOURCES
    values = {name: make() for name, make in sources.items()}
    # Every call of the burst needs a worker of its own, so each waits until all are here.
    with socket.create_connection(("127.0.0.1", event["meet"])) as connection:
        connection.recv(1)
    return {"pid": os.getpid(), "values": values}
