"""Tokens."""

from authlib.common.security import generate_token
from authlib.oauth2.rfc6749 import InvalidGrantError, scope_to_list
from authlib.oauth2.rfc7636 import create_s256_code_challenge


def work():
    return [create_s256_code_challenge("verifier"), scope_to_list("a b"), dict(InvalidGrantError("no").get_body())]


def random():
    return generate_token(30)


def fail():
    raise InvalidGrantError(description="expired")
