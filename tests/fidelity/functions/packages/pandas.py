"""A frame of the module."""

import io

import pandas

FRAME = pandas.DataFrame({"city": ["a", "b", "a"], "sales": [1, 2, 3.5], "at": pandas.to_datetime(["2026-01-01"] * 3)})


def work():
    sums = FRAME.groupby("city")["sales"].sum()
    read = pandas.read_csv(io.StringIO("x,y\n1,2\n3,4\n"))
    return [sums.to_dict(), read.describe().loc["mean"].to_dict(), FRAME["at"].dt.year.tolist()]


def random():
    return float(FRAME["sales"].sample(1000, replace=True).cumsum().iloc[-1]) + float(
        pandas.Series(range(10**6)).sample(1).iloc[0]
    )


def fail():
    FRAME["no such column"]
