"""Credentials of the module, which sign. Nothing is sent."""

import json

from google.auth import credentials, jwt
from google.auth.crypt import es256
from google.oauth2.credentials import Credentials

OWN = Credentials(token="a", refresh_token="b", client_id="c", client_secret="d", token_uri="http://127.0.0.1:9/token")


def work():
    return [
        OWN.valid,
        isinstance(OWN, credentials.Credentials),
        json.loads(OWN.to_json())["client_id"],
        es256.ES256Signer.__name__,
    ]


def fail():
    jwt.decode("no.token", verify=False)
