"""The times that SeBS's functions report, microseconds."""

import time


class Clock:
    def __init__(self):
        self.began = time.perf_counter()

    def lap(self):
        began, self.began = self.began, time.perf_counter()
        return (self.began - began) * 1e6
