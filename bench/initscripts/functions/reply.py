"""Maps a message, and says how long that took."""

import time

import pilotlight


def handler(event):
    began = time.perf_counter()
    view = pilotlight.init.recv_msg(0)
    ends = view[0], view[-1]
    took = (time.perf_counter() - began) * 1e6
    return {"bytes": len(view), "ends": ends, "measurement": {"map_time": took}}
