"""Retries and errors."""

from google.api_core import exceptions, path_template, retry

RETRY = retry.Retry(predicate=retry.if_exception_type(exceptions.ServiceUnavailable), initial=0.01, maximum=0.01, timeout=2)
attempts = []


@RETRY
def unsteady():
    attempts.append(1)
    if len(attempts) % 2:
        raise exceptions.ServiceUnavailable("not yet")
    return len(attempts) % 2


def work():
    return [
        unsteady(),
        path_template.expand("/v1/{name=shelves/*}", name="shelves/a"),
        exceptions.from_http_status(404, "m").code,
    ]


def fail():
    raise exceptions.from_http_status(404, "no such book")
