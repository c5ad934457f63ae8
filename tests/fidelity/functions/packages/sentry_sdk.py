"""Initialised at import, with a transport that keeps the events."""

import sentry_sdk
from sentry_sdk.utils import Dsn

events = []


def keep(event, hint):
    events.append(event["message"])


sentry_sdk.init("http://key@127.0.0.1:9/1", before_send=keep, default_integrations=False)


def work():
    sentry_sdk.capture_message("hello")
    return [events[-1], sentry_sdk.get_client().is_active(), Dsn("http://key@127.0.0.1:9/1").project_id]


def random():
    return sentry_sdk.start_transaction(name="own").trace_id


def fail():
    Dsn("no address")
