"""A function with numpy. The template imports it."""

import numpy


def own_kib():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))


def handler(event, context):
    before = own_kib()
    array = context.inputs["x"].array
    assert isinstance(array, numpy.ndarray)
    total = int(array.sum(dtype="u8"))
    return {
        "shape": array.shape,
        "dtype": array.dtype.str,
        "sum": total,
        "grown_kib": own_kib() - before,
        "writeable": array.flags.writeable,
        "owns": array.flags.owndata,
    }
