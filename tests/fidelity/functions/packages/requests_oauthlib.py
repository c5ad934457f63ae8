"""A session of the module. Nothing is sent."""

from requests_oauthlib import OAuth1Session, OAuth2Session

SESSION = OAuth2Session("client", redirect_uri="http://a/b", scope=["c"], state=lambda: "state")


def work():
    return [list(SESSION.authorization_url("https://a/authorize")), OAuth1Session("a", client_secret="b").authorized]


def random():
    return OAuth2Session("client").new_state()


def fail():
    SESSION.fetch_token("http://127.0.0.1:9/token")
