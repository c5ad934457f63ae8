"""A signed request."""

from oauthlib import oauth1, oauth2
from oauthlib.common import generate_nonce, generate_token

CLIENT = oauth1.Client("key", client_secret="secret", nonce="1", timestamp="2")


def work():
    url, headers, _ = CLIENT.sign("http://a/b?c=d")
    return [url, headers["Authorization"], oauth2.WebApplicationClient("a").prepare_request_uri("https://a", state="s")]


def random():
    return [generate_token(), generate_nonce()]


def fail():
    oauth2.WebApplicationClient("a").parse_request_body_response('{"error": "invalid_grant"}')
