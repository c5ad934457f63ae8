"""A frame of the module, and a lazy query, which runs in a pool of threads."""

import polars

FRAME = polars.DataFrame({"city": ["a", "b", "a"], "sales": [1, 2, 3]})


def work():
    sums = FRAME.lazy().group_by("city").agg(polars.col("sales").sum()).sort("city").collect()
    return [sums.to_dicts(), FRAME.select(polars.col("sales").mean()).item(), polars.thread_pool_size() > 0]


def fail():
    FRAME.select("no such column")
