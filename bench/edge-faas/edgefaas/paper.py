"""Figures from the text of the Edge FaaS paper (sections 5 and 6, table 1). None was read from a picture."""

from __future__ import annotations

NOT_GIVEN = "not given"

# Figure 4: requests over 700 ms per run of the bursty ramp, n = 5, 95 %.
COLD_STARTS = {
    "static:15": "68 ± 189",
    "reactive": "70 ± 1",
    "cusum": "48 ± 19",
    "adaptive-cusum": "0 ± 0",
    "arima": "64 ± 12",
}

# Figure 5: the same without the template.
COLD_STARTS_TEMPLATE_OFF = {
    "static:15": "57 (Δ −11)",
    "reactive": "139 ± 122",
    "cusum": "36 ± 33",
    "adaptive-cusum": "11 ± 7",
    "arima": "92 ± 22",
}

# Figure 6, by the interval W. For W = 35 the text says both "23 ± 20" and "in the single digits" of cusum.
INTERVAL = {
    ("cusum", 5): "69 ± 22",
    ("cusum", 20): "< 10",
    ("cusum", 35): "23 ± 20",
    ("cusum", 60): "< 10",
    ("cusum", 120): "6 ± 18",
    ("adaptive-cusum", 5): "195 ± 11",
    ("adaptive-cusum", 10): "125 ± 13",
    ("adaptive-cusum", 20): "< 10",
    ("adaptive-cusum", 35): "< 10",
    ("adaptive-cusum", 60): "< 10",
}

# Section 6: the step, n = 3.
STEP = {"reactive": "192 ± 3", "cusum": "173 ± 16", "adaptive-cusum": "221 ± 153"}

# Table 1: microseconds per decision, p50 and p99.
TICKS_US = {
    "reactive": "<1 / <1",
    "cusum": "<1 / 191",
    "adaptive-cusum": "<1 / 244",
    "arima": "41,087 / 72,427",
}

# Figure 7: mean PSS of gateway, template and workers, MB. RSS is given as a range of all: 6018 to 6957 MB.
PSS_MB = {"static:15": "2967", "reactive": "2780", "cusum": "2357", "adaptive-cusum": "2610", "arima": "2746"}
RSS_MB = "6018 to 6957"

# The five policies that the paper compares.
POLICIES = ("static:15", "reactive", "cusum", "adaptive-cusum", "arima")
