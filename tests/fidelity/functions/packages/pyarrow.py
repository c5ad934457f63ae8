"""A table of the module, written as Parquet and read again."""

import io

import pyarrow
import pyarrow.compute
import pyarrow.parquet

TABLE = pyarrow.table({"city": ["a", "b", "a"], "sales": [1, 2, 3]})


def work():
    file = io.BytesIO()
    pyarrow.parquet.write_table(TABLE, file)
    read = pyarrow.parquet.read_table(io.BytesIO(file.getvalue()))
    sums = read.group_by("city").aggregate([("sales", "sum")]).sort_by("city")
    return [sums.to_pydict(), pyarrow.compute.sum(read["sales"]).as_py(), pyarrow.cpu_count() > 0]


def fail():
    pyarrow.array([1, "a"])
