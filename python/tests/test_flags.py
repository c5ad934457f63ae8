"""Interpreters that a function starts with the flags of its own: those of multiprocessing, joblib and others."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from conftest import Functions
from harness import Process, Stream

SOURCE = """
import json, multiprocessing, os, subprocess, sys
import package

def double(number):
    return package.double(number)

def handler(event, context):
    arguments = subprocess._args_from_interpreter_flags()
    if event == "arguments":
        return arguments
    if event == "path":
        import site
        return sys.path
    if event == "spawn":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.map(double, [1, 2])
    script = "import json, package, site, sys; print(json.dumps([package.double(3), bool(exit), sys.flags.isolated]))"
    return json.loads(subprocess.run([sys.executable, *arguments, "-c", script], capture_output=True, check=True).stdout)
"""


def check(worker: Stream) -> None:
    assert not {"-I", "-S", "-E", "-s", "-P"} & set(worker.result("arguments"))
    assert worker.result("program") == [6, True, 0]
    assert worker.result("spawn") == [2, 4]
    assert not any("site-packages" in folder for folder in worker.result("path")), "those of the host"


@pytest.fixture
def spec(functions: Functions, tmp_path: Path) -> dict[str, Any]:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "package.py").write_text("def double(number): return 2 * number\n")
    spec = functions.spec()
    environment = {**spec["environment"], "PYTHONPATH": str(packages)}
    return {**spec, "environment": environment, "sys_path": [*spec["sys_path"], str(packages)]}


def test_children_of_a_forked_worker_find_its_packages_and_site(functions: Functions, spec: dict[str, Any]) -> None:
    check(functions.worker(SOURCE, **spec))


@pytest.mark.parametrize("at_start", [{}, {"PYTHONHASHSEED": "0"}])
def test_children_of_a_worker_without_a_template_find_its_packages_and_site(
    functions: Functions, spec: dict[str, Any], at_start: dict[str, str]
) -> None:
    functions.write(SOURCE)
    process = Process("worker", socket.SOCK_STREAM, spec, at_start=at_start)
    worker = Stream(process.ours)
    worker.ready()
    check(worker)
    assert process.end() == 0


MAIN_AGAIN = """
import json, subprocess, sys
# What `anyio.to_process` does in the interpreter that it starts.
AGAIN = '''
import json, sys
from importlib.util import module_from_spec, spec_from_file_location
before = list(sys.path)
spec = spec_from_file_location("__mp_main__", sys.argv[1])
spec.loader.exec_module(module_from_spec(spec))
print(json.dumps(sys.path == before))
'''
def handler(event, context):
    arguments = [sys.executable, "-c", AGAIN, sys.modules["__main__"].__file__]
    return json.loads(subprocess.run(arguments, stdout=subprocess.PIPE, check=True).stdout)
"""


def test_the_file_of_main_can_be_run_again_under_another_name(functions: Functions) -> None:
    assert functions.worker(MAIN_AGAIN).result({}) is True
