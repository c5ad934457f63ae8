"""Functions with pyarrow: one that gets a table, and one that makes some. The template imports it."""

import base64

import pyarrow

COLUMNS = {"n": [1, 2, 3], "price": [0.5, None, -2.0], "city": ["Köln", "", None]}


def handler(event, context):
    given = context.inputs["x"]
    before = pyarrow.total_allocated_bytes()
    table = given.table
    return {
        "rows": table.to_pylist() if event.get("whole") else given.rows,
        "names": table.column_names,
        "last": table.column("n")[-1].as_py(),
        "same": given.table is table,
        "copied": pyarrow.total_allocated_bytes() - before,
    }


def tables(event, context):
    """The same table in a format of Arrow, perhaps compressed. `count`: so many rows of numbers instead."""
    columns = {"n": list(range(event["count"]))} if "count" in event else COLUMNS
    table = pyarrow.table(columns)
    sink = pyarrow.BufferOutputStream()
    new = pyarrow.ipc.new_file if event["format"] == "file" else pyarrow.ipc.new_stream
    options = pyarrow.ipc.IpcWriteOptions(compression=event.get("compression"))
    with new(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()
