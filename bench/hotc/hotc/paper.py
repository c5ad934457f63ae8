"""Figures from the text of the HotC paper (sections II and V). None was read from a picture."""

from __future__ import annotations

NOT_GIVEN = "not given"

# Figure 4(b): the program that sums integers from 0 to 10 million.
LANGUAGES = {
    "node": "hot 0.38 s",
    "java": "hot 1.07 s; cold doubles it",
    "go": "cold 3.06 × hot",
    "python": NOT_GIVEN,
}

# Figure 4(c), on a single host.
NETWORKS = {
    "none": "the base",
    "bridge": "close to none",
    "outbound": "(bridge) close to none",
    "host": "close to none",
    "container": "half of none",
}

# Section V-B, of figure 9.
WEB = (
    "the URL's transition 60 ms, the majority of the time set-up; with HotC the first few as without, then dropped dramatically"
)

# Section V-D.
SERIAL = "without HotC, every request is cold; with HotC, only the first"
PARALLEL_RATIO = 0.09
LINEAR_RATIO_AT_5 = 0.21
LINEAR_DOWN = "always low, except in the first round"
EXPONENTIAL_UP = "at least half of the requests of each round reuse a container"
EXPONENTIAL_DOWN = "reduced dramatically"
BURST_FIRST_RATIO = 0.91
BURST_LATER_RATIO = 0.27

# Section V-C, figure 10(a): 7th to 10th index, the real number jumps from 8 to 19.
JUMP = (8, 19)
JUMP_ERRORS = "29 % → 10 %"

# Section V-E, figure 15(a).
CPU_OF_TEN = "< 1 %"
MB_PER_CONTAINER = 0.7
