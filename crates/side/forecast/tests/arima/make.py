"""Makes vectors.json: ten series, and what statsmodels' ARIMA(2,1,2) forecasts for the value after each.

Run from this folder, in an environment of its own:

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install statsmodels==0.15.0 && /tmp/venv/bin/python make.py

The series are rates as a tick of two seconds sees them (whole requests, so multiples of a half), 30 of them: the window of
the policy. They were chosen before anything was fitted; none was left out. Statsmodels' optimiser starts from one point and
may stop at a local maximum of the likelihood, or before it gets anywhere; for it to find the maximum it starts here from
several points as well, and the best likelihood counts. What a plain fit() finds is kept beside it.
"""

import json
import warnings

import numpy as np
import statsmodels
from statsmodels.tsa.arima.model import ARIMA

TICK_S = 2.0
LENGTH = 30


def counted(rng, rates):
    """Poisson arrivals of so many ticks, as rates."""
    return rng.poisson(np.clip(rates, 0.0, None) * TICK_S) / TICK_S


def integrated(rng, level, scale, ar, ma):
    """A level whose differences are ARMA(ar, ma)."""
    noise = rng.normal(0.0, scale, LENGTH + 50)
    steps = np.zeros(LENGTH + 50)
    for t in range(2, LENGTH + 50):
        steps[t] = noise[t] + sum(c * steps[t - i - 1] for i, c in enumerate(ar))
        steps[t] += sum(c * noise[t - i - 1] for i, c in enumerate(ma))
    path = level + np.cumsum(steps[50:])
    return np.round(np.clip(path, 0.0, None) * TICK_S) / TICK_S


def cycle(t):
    """The paper's bursty ramp with a warm-up of 35 s."""
    t = t % 57.0
    if t < 35:
        return 2.0
    if t < 39:
        return 2.0 + 4.5 * (t - 35)
    if t < 44:
        return 30.0
    return 2.0 if t < 49 else 0.0


def series():
    rng = np.random.default_rng(20260)
    ticks = np.arange(LENGTH)
    yield "steady at 5/s", counted(rng, np.full(LENGTH, 5.0))
    yield "steady at 400/s", counted(rng, np.full(LENGTH, 400.0))
    yield "ramp of 1/s per tick", counted(rng, 3.0 + ticks)
    yield "step from 2/s to 30/s", counted(rng, np.where(ticks < 18, 2.0, 30.0))
    yield "bursty ramp", counted(rng, np.array([cycle(2.0 * t + 1.0) for t in ticks]))
    yield "sine with a period of 24 s", counted(rng, 40 + 30 * np.sin(2 * np.pi * ticks / 12))
    yield "random walk", integrated(rng, 60, 4, [], [])
    yield "autoregressive steps", integrated(rng, 100, 3, [0.6, -0.3], [])
    yield "moving-average steps", integrated(rng, 200, 6, [], [-0.5, 0.3])
    yield "both", integrated(rng, 150, 5, [0.9, -0.5], [0.4, 0.2])


def best_fit(values):
    model = ARIMA(values, order=(2, 1, 2))
    plain = model.fit()
    best = plain
    starts = [
        [a, b, c, d]
        for a in (-0.9, 0.0, 0.9)
        for b in (-0.5, 0.0)
        for c in (-0.9, 0.0, 0.9)
        for d in (0.0, 0.5)
    ]
    variance = max(np.var(np.diff(values)), 1e-6)
    for start in starts:
        try:
            fit = model.fit(start_params=[*start, variance], method_kwargs={"maxiter": 1000})
        except (ValueError, np.linalg.LinAlgError):
            continue  # A start outside of what is stationary and invertible.
        if fit.llf > best.llf + 1e-9:
            best = fit
    # Once more from there, for the optimiser stops when steps become small.
    again = model.fit(
        start_params=best.params, method_kwargs={"maxiter": 5000, "factr": 10.0, "pgtol": 1e-10}
    )
    if again.llf > best.llf:
        best = again
    return plain, best


def main():
    warnings.simplefilter("ignore")
    rows = []
    for name, values in series():
        plain, best = best_fit(values)
        rows.append(
            {
                "name": name,
                "series": [float(value) for value in values],
                "forecast": float(best.forecast(1)[0]),
                "log_likelihood": float(best.llf),
                "plain_forecast": float(plain.forecast(1)[0]),
                "plain_log_likelihood": float(plain.llf),
            }
        )
        print(f"{name}: {rows[-1]['forecast']} (plain {rows[-1]['plain_forecast']}), "
              f"{rows[-1]['log_likelihood']} (plain {rows[-1]['plain_log_likelihood']}) {best.params.round(3)}")
    document = {"made_by": f"make.py, statsmodels {statsmodels.__version__}", "vectors": rows}
    with open("vectors.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
