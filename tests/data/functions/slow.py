"""The same, in a module that takes 400 ms to import."""

import time

time.sleep(0.4)

from app import digest  # noqa: E402, F401
