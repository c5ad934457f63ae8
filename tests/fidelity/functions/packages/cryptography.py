"""A key of the module, and a signature and a token with it."""

from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

SIGNING = ec.derive_private_key(12345, ec.SECP256R1())
TOKENS = Fernet(b"0" * 43 + b"=")


def work():
    SIGNING.public_key().verify(SIGNING.sign(b"message", ec.ECDSA(hashes.SHA256())), b"message", ec.ECDSA(hashes.SHA256()))
    return [
        Scrypt(salt=b"salt", length=16, n=16, r=8, p=1).derive(b"password").hex(),
        TOKENS.decrypt(TOKENS.encrypt(b"a")).decode(),
    ]


def random():
    return [Fernet.generate_key().decode(), SIGNING.sign(b"message", ec.ECDSA(hashes.SHA256())).hex()]


def fail():
    TOKENS.decrypt(b"no token")
