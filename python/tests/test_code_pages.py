"""The page table of the interpreter's code, which a fork copies."""

from __future__ import annotations

import ctypes
from pathlib import Path

from conftest import Functions

from pilot_worker import kernel

HANDLER = """
import ctypes, os
def handler(event, context):
    return [os.getppid(), ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value]
"""


def mapping_of(pid: int, address: int) -> dict[str, int]:
    """The fields of the mapping at an address, in KiB (proc_pid_smaps(5))."""
    fields: dict[str, int] = {}
    is_inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            is_inside = begin <= address < end
        elif is_inside and len(rest) == 2:
            fields[name.rstrip(":")] = int(rest[0])
    return fields


def test_a_worker_has_the_pages_of_its_templates_code_before_it_runs(functions: Functions) -> None:
    template = functions.template(HANDLER)
    worker = template.worker()
    worker.ready()
    pid, address = worker.result({})
    worker.close()
    template.message("exited")
    worker = template.worker()
    worker.ready()
    (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    of_template, of_worker = mapping_of(pid, address), mapping_of(child, address)
    assert of_template["Anonymous"] == 4, "the page that was written to"
    assert of_worker["Rss"] >= of_template["Rss"] > 500
    worker.close()


def test_the_code_is_as_the_file_says_and_cannot_be_written() -> None:
    from pilot_worker.forking import code_pages

    address = kernel.address_of(ctypes.pythonapi.Py_IsInitialized)
    begin, end = next(area for area in code_pages.code() if area[0] <= address < area[1])
    before = ctypes.string_at(begin, end - begin)
    code_pages.share()
    assert ctypes.string_at(begin, end - begin) == before
    assert (begin, end) in list(code_pages.code()), "still one mapping, read-only"
