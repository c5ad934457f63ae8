"""Modules of the code that have the name of a module which packages or the worker itself have loaded before."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Functions
from harness import PYTHON, WORKER, Process, Stream, Template, reported

PATH = {"PATH": os.environ["PATH"]}
# What `python3 app.py` has loaded when it looks at the folder of app.py. A new interpreter of this machine may have more, because
# of its .pth files.
AT_START = {"abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat", "zipimport"}


def environment_of(functions: Functions, packages: dict[str, str], imports: list[str]) -> Template:
    for name, source in packages.items():
        functions.write(source, f"opt/{name}")
    return functions.template(
        handler=None, level="environment", imports=imports, environment=PATH, sys_path=[str(functions.directory / "opt")]
    )


def spec_of(functions: Functions, **changes: Any) -> dict[str, Any]:
    sys_path = [str(functions.directory / name) for name in ("task", "opt", "layer")]
    return functions.spec(sys_path=sys_path, environment=PATH, **changes)


def result(above: Template, spec: dict[str, Any]) -> Any:
    worker = above.template(spec).worker()
    worker.ready()
    return worker.result({})


SAYS = "import {0}\ndef handler(event, context):\n    return getattr({0}, 'WHOSE', 'not that of the code')\n"
MINE = "WHOSE = 'mine'\n"


@pytest.mark.parametrize("file", ["config.py", "config/__init__.py"])
def test_a_module_of_the_code_has_priority_over_one_of_the_packages(functions: Functions, file: str) -> None:
    above = environment_of(functions, {"config/__init__.py": "WHOSE = 'theirs'\n", "uses.py": "import config\n"}, ["uses"])
    functions.write(SAYS.format("config"), "task/app.py")
    spec = spec_of(functions)
    assert result(above, spec) == "theirs"
    functions.write(MINE, f"task/{file}")
    report = reported(above, spec)
    assert report["own_imports"] == f"the code has {file}, and the packages have imported another module config"
    # the daemon then forks it from the interpreter's template
    assert result(functions.root, spec) == "mine"


def test_a_handler_with_the_name_of_a_package_makes_its_function_do_its_own_imports(functions: Functions) -> None:
    above = environment_of(functions, {"config.py": "", "uses.py": "import config\nTHEIRS = config\n"}, ["uses"])
    functions.write("import uses\ndef handler(event, context): return uses.THEIRS.__name__\n", "task/config.py")
    spec = spec_of(functions, handler="config.handler")
    assert "own_imports" in reported(above, spec)


def test_a_module_of_python_that_a_package_has_imported_counts_too(functions: Functions) -> None:
    above = environment_of(functions, {"uses.py": "import sched\nNAME = sched.__name__\n"}, ["uses"])
    functions.write(SAYS.format("sched"), "task/app.py")
    functions.write(MINE, "task/sched.py")
    spec = spec_of(functions)
    assert reported(above, spec)["own_imports"] == "the code has sched.py, and the packages have imported another module sched"
    assert result(functions.root, spec) == "mine"


@pytest.mark.parametrize("file", ["other.py", "config/data.txt", "config.txt", "uses.py.orig/x"])
def test_what_is_no_module_of_that_name_changes_nothing(functions: Functions, file: str) -> None:
    above = environment_of(functions, {"config.py": "WHOSE = 'theirs'\n", "uses.py": "import config\n"}, ["uses"])
    functions.write(SAYS.format("config"), "task/app.py")
    functions.write("", f"task/{file}")
    assert "own_imports" not in reported(above, spec_of(functions))
    assert result(above, spec_of(functions)) == "theirs"


def test_parts_of_a_namespace_in_the_code_and_in_the_packages_are_found(functions: Functions) -> None:
    above = environment_of(functions, {"space/one.py": "", "uses.py": "import space.one\n"}, ["uses"])
    functions.write("import space.one, space.two\ndef handler(event, context): return space.two.WHOSE\n", "task/app.py")
    functions.write(MINE, "task/space/two.py")
    assert "own_imports" not in reported(above, spec_of(functions))
    assert result(above, spec_of(functions)) == "mine"


def test_layers_come_after_the_packages_as_before(functions: Functions) -> None:
    above = environment_of(functions, {"config.py": "WHOSE = 'theirs'\n", "uses.py": "import config\n"}, ["uses"])
    functions.write(SAYS.format("config"), "task/app.py")
    functions.write("WHOSE = 'of the layer'\n", "layer/config.py")
    assert "own_imports" not in reported(above, spec_of(functions))
    assert result(above, spec_of(functions)) == "theirs"
    assert result(functions.root, spec_of(functions)) == "theirs"


def test_what_the_worker_has_imported_gives_way_without_own_imports(functions: Functions) -> None:
    above = environment_of(functions, {"uses.py": "import uuid\nNAME = uuid.uuid4\n"}, ["uses"])
    functions.write("import uses\n" + SAYS.format("uuid"), "task/app.py")
    functions.write(MINE, "task/uuid.py")
    assert "own_imports" not in reported(above, spec_of(functions))
    assert result(above, spec_of(functions)) == "mine"


def test_an_ordinary_interpreter_has_loaded_at_its_start_what_the_code_cannot_replace(functions: Functions) -> None:
    read = "import sys; print(*(name for name in sys.modules if '.' not in name and name not in sys.builtin_module_names))"
    at_start = subprocess.run([PYTHON, "-I", "-S", "-c", read], capture_output=True, text=True, check=True).stdout.split()
    for name in sorted({*at_start, "os", "stat"} - {"__main__", "linecache"} - {one for one in at_start if one[0] == "_"}):
        assert name in AT_START
        functions.write(SAYS.format(name))
        functions.write(MINE, f"{name}.py")
        assert functions.worker(SAYS.format(name)).result({}) == "not that of the code", name
        (functions.directory / f"{name}.py").unlink()


def loaded_by_workers() -> list[str]:
    """What the worker has loaded in an interpreter's template and for each kind of function, and a new interpreter has not."""
    code = (
        f"import sys; sys.path.insert(0, {str(WORKER.parent)!r})\n"
        "import pilot_worker.main, pilot_worker.protocol.aio, pilot_worker.protocol.threads\n"
        "import pilot_worker.sdk.pilotlight, pilot_worker.drop_ins.http\n"
        "for name in pilot_worker.main._PREIMPORTED: __import__(name)\n"
        "import pilot_worker.importing.namesakes as n, importlib.machinery as m, json\n"
        "for name in n._LATER: __import__(name)\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "print(json.dumps([name for name in tops if not n._is_always_first(name)]))\n"
    )
    out = subprocess.run([PYTHON, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    return sorted(json.loads(out))


EACH = """
import {0} as own
{1}def handler(event, context):
    if event == "fail":
        raise ValueError("asked to")
    return getattr(own, "WHOSE", "not that of the code")
"""


@pytest.mark.parametrize("begin", ["", "async "], ids=["sync", "async"])
def test_each_module_that_the_worker_has_loaded_gives_way_and_the_worker_works(functions: Functions, begin: str) -> None:
    names = loaded_by_workers()
    assert {"asyncio", "datetime", "json", "logging", "random", "socket", "threading", "urllib", "uuid"} <= {*names}
    for name in names:
        file = functions.directory / f"{name}.py"
        file.write_text(MINE)
        # Without bytecode: the sources of two names can have the same time and size.
        worker = functions.worker(EACH.format(name, begin), environment={**PATH, "PYTHONDONTWRITEBYTECODE": "1"})
        assert worker.result({}) == "mine", name
        error = worker.error("fail")
        assert (error["errorType"], error["errorMessage"], len(error["stackTrace"])) == ("ValueError", "asked to", 1), name
        assert worker.result({}) == "mine", name
        worker.close()
        file.unlink()


APPLICATIONS = {
    "asgi": "async def handler(scope, receive, send):\n"
    "    if scope['type'] == 'lifespan':\n"
    "        await receive()\n"
    "        await send({'type': 'lifespan.startup.complete'})\n"
    "        await receive()\n"
    "        return await send({'type': 'lifespan.shutdown.complete'})\n"
    "    await receive()\n"
    "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
    "    await send({'type': 'http.response.body', 'body': (scope['path'] + own.WHOSE).encode()})\n",
    "wsgi": "def handler(environ, start_response):\n"
    "    start_response('200 OK', [])\n"
    "    return [('/fn/test' + environ['PATH_INFO'] + own.WHOSE).encode()]\n",
}


@pytest.mark.parametrize("interface", APPLICATIONS)
@pytest.mark.parametrize("name", ["asyncio", "calendar", "queue", "selectors", "threading", "types", "urllib"])
def test_applications_work_beside_such_modules(functions: Functions, interface: str, name: str) -> None:
    functions.write(MINE, f"{name}.py")
    source = f"import {name} as own\n{APPLICATIONS[interface]}"
    for concurrency in (1, 2):
        worker = functions.worker(source, interface=interface, concurrency=concurrency)
        assert worker.http(path="/a%20b")[2] == b"/fn/test/a bmine"


@pytest.mark.parametrize("name", ["asyncio", "queue", "json", "uuid", "platform", "datetime"])
def test_a_worker_without_a_template_takes_them_too(functions: Functions, name: str) -> None:
    functions.write(MINE, f"{name}.py")
    functions.write(EACH.format(name, "async "))
    process = Process("worker", socket.SOCK_STREAM, functions.spec())
    worker = Stream(process.ours)
    worker.ready()
    assert worker.result({}) == "mine"
    assert process.end() == 0


def test_uuids_of_python_differ_in_workers_whose_code_has_another_uuid(functions: Functions) -> None:
    above = environment_of(functions, {"uses.py": "import uuid\nfirst = uuid.uuid1()\nmake = uuid.uuid1\n"}, ["uses"])
    functions.write("import uses, uuid\ndef handler(event, context): return [uuid.WHOSE, str(uses.make())]\n", "task/app.py")
    functions.write(MINE + "_node = 'x'\n_generate_time_safe = _last_timestamp = None\n", "task/uuid.py")
    template = above.template(spec_of(functions))
    made = []
    for _ in range(2):
        worker = template.worker()
        worker.ready()
        whose, one = worker.result({})
        assert whose == "mine"
        made.append(one[14:])  # the sequence and the node
    assert made[0] != made[1]


def test_the_worker_imports_modules_of_python_inside_functions_only_where_the_code_cannot_be_in_the_way() -> None:
    # `io` and `site` are loaded at the start of each interpreter. `folders` copies files before the code is on the path. What
    # others import is what their packages have imported.
    allowed = {
        ("inputs/__init__", "io"),
        ("main", "site"),
        ("forking/folders", "shutil"),
        ("inputs/decoded", "numpy"),
        ("inputs/decoded", "pyarrow"),
    }
    found: set[tuple[str, str]] = set()
    for file in Path(WORKER).rglob("*.py"):
        module = str(file.relative_to(WORKER).with_suffix(""))
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found.update((module, alias.name.partition(".")[0]) for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add((module, (node.module or "").partition(".")[0]))
    of_python = {(file, name) for file, name in found if name in sys.stdlib_module_names and not file.startswith("drop_ins/")}
    assert of_python <= allowed
