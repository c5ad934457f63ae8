"""Retries without waiting."""

import tenacity

attempts = []


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none())
def unsteady(works_at):
    attempts.append(works_at)
    if len(attempts) % 3 != works_at:
        raise ConnectionError("not yet")
    return len(attempts)


def work():
    return [unsteady(0), tenacity.wait_exponential(max=8)(tenacity.RetryCallState(None, None, (), {}))]


def fail():
    unsteady.retry_with(reraise=True)(7)


def random():
    return tenacity.wait_random(0, 1)(tenacity.RetryCallState(None, None, (), {}))
