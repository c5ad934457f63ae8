"""The handler of the function of every package. `case` is the package's own file from `functions/packages`."""

import os
import sys
import time

# Before the package can change them.
GIVEN = {"environment": dict(os.environ), "path": list(sys.path)}
BEGUN = time.perf_counter()

import case  # noqa: E402 - its time is measured

IMPORT_S = time.perf_counter() - BEGUN

import surroundings  # noqa: E402 - it is not a part of that time

# What a template draws. No worker may draw it again.
AT_IMPORT = case.random() if hasattr(case, "random") else None


def handler(event, context):
    if event.get("fail"):
        case.fail()
    before = surroundings.now()
    answer = {"result": case.work(), "before": before, "pid": os.getpid(), "import_s": IMPORT_S, "given": GIVEN}
    if AT_IMPORT is not None:
        answer["drawn"] = {"at import": AT_IMPORT, "in the worker": case.random()}
    return {**answer, "after": surroundings.now()}
