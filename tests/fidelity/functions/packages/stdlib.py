"""Modules of the standard library that keep random state, counters or files."""

import random as generator
import secrets
import ssl
import tempfile
import uuid

OWN = generator.Random()
SEEDED = generator.Random(7)
CONTEXT = ssl.create_default_context()


def work():
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("written")
        file.seek(0)
        read = file.read()
    return [read, SEEDED.random(), CONTEXT.verify_mode.name, str(uuid.uuid5(uuid.NAMESPACE_DNS, "example.org"))]


def random():
    drawn = [secrets.token_hex(8), str(uuid.uuid1()), str(uuid.uuid4()), generator.random(), OWN.random()]
    return [*drawn, ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names())]


def fail():
    ssl.create_default_context(cafile="/missing.pem")
