"""A client of the module, blocks and a signature. Nothing is sent."""

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import SectionBlock
from slack_sdk.signature import SignatureVerifier

CLIENT = WebClient("xoxb-own", base_url="http://127.0.0.1:9/")


def work():
    verifier = SignatureVerifier("secret")
    return [SectionBlock(text="a").to_dict(), verifier.generate_signature(timestamp="1", body="b"), CLIENT.base_url]


def fail():
    raise SlackApiError("refused", {"ok": False, "error": "invalid_auth"})
