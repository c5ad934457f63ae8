"""A logger of the module that writes JSON."""

import io
import json
import logging

from pythonjsonlogger.json import JsonFormatter

STREAM = io.StringIO()
HANDLER = logging.StreamHandler(STREAM)
HANDLER.setFormatter(JsonFormatter("%(levelname)s %(message)s", static_fields={"service": "own"}))
LOGGER = logging.getLogger("own")
LOGGER.addHandler(HANDLER)
LOGGER.propagate = False


def work():
    LOGGER.warning("made", extra={"number": 1})
    return json.loads(STREAM.getvalue().splitlines()[-1])


def fail():
    JsonFormatter("%(levelname)s", style="wrong")
