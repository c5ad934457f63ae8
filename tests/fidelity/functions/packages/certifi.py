"""The certificates, loaded into a context of the module."""

import ssl

import certifi

CONTEXT = ssl.create_default_context(cafile=certifi.where())


def work():
    return [certifi.where(), len(CONTEXT.get_ca_certs()) > 100, len(certifi.contents()) > 100_000]


def fail():
    ssl.create_default_context(cadata=certifi.contents()[:100])
