"""Times in zones."""

from datetime import datetime

import pytz

BERLIN = pytz.timezone("Europe/Berlin")


def work():
    at = BERLIN.localize(datetime(2026, 7, 1, 12))
    return [at.isoformat(), at.astimezone(pytz.utc).isoformat(), len(pytz.all_timezones) > 400]


def fail():
    pytz.timezone("Europe/Nowhere")
