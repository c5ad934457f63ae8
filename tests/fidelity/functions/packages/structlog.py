"""A logger of the module that writes JSON."""

import io
import json

import structlog

STREAM = io.StringIO()
structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
    logger_factory=structlog.PrintLoggerFactory(STREAM),
)
LOGGER = structlog.get_logger().bind(service="own")


def work():
    STREAM.truncate(0)
    LOGGER.info("made", number=1)
    return json.loads(STREAM.getvalue().strip("\0"))


def fail():
    structlog.stdlib.filter_by_level(None, "info", {})
