"""Functions that would notice that the template of their environment has imported packages before their own code ran."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from conftest import Functions
from harness import Process, Template, reported

READS = "import os\nMODE = os.environ.get('READS_MODE', 'unset')\n"
USES = "import os, sys, reads\ndef handler(event, context):\n    return reads.MODE\n"


def environment_of(functions: Functions, source: str = READS, name: str = "reads") -> Template:
    functions.write(source, f"{name}.py")
    return functions.template(handler=None, level="environment", imports=[name], environment={"PATH": os.environ["PATH"]})


def spec_with(functions: Functions, **variables: str) -> dict[str, Any]:
    return functions.spec(environment={"PATH": os.environ["PATH"], **variables})


def test_a_function_without_such_variables_is_forked_from_its_environment(functions: Functions) -> None:
    above = environment_of(functions, "import os\nMODE = os.environ.get('READS_MODE', 'unset')\nPID = os.getpid()\n")
    functions.write("import os, reads\ndef handler(event, context):\n    return [reads.MODE, reads.PID == os.getppid()]\n")
    template = above.template(spec_with(functions, OTHER="x"))
    assert "own_imports" not in template.report
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == ["unset", False]  # imported one level above


@pytest.mark.parametrize(
    "read",
    [
        "os.environ.get('READS_MODE')",
        "os.getenv('READS_MODE')",
        "'READS_MODE' in os.environ",
        "os.environ.setdefault('READS_MODE', 'unset')",
        "os.environb.get(b'READS_MODE')",
        "os.environ.pop('READS_MODE', None)",
    ],
)
def test_a_variable_that_a_package_has_read_makes_a_function_do_its_own_imports(functions: Functions, read: str) -> None:
    above = environment_of(functions, f"import os\nMODE = {read}\n")
    functions.write(USES)
    spec = spec_with(functions, READS_MODE="mine")
    report = reported(above, spec)
    assert report["own_imports"] == "reads reads READS_MODE at import"
    assert "error" not in report and report["imports"] == []
    # the daemon then forks it from the interpreter's template, where nothing of this is in the way
    template = functions.root.template(spec, log=functions.log.write_fd)
    assert "own_imports" not in template.report


def test_a_value_that_the_package_has_seen_changes_nothing(functions: Functions) -> None:
    functions.write(READS, "reads.py")
    same = {"PATH": os.environ["PATH"], "READS_MODE": "same"}
    above = functions.template(handler=None, level="environment", imports=["reads"], environment=same)
    functions.write(USES)
    assert "own_imports" not in reported(above, spec_with(functions, READS_MODE="same"))
    assert "own_imports" in reported(above, spec_with(functions, READS_MODE="other"))
    assert "own_imports" in reported(above, spec_with(functions))


def test_a_package_that_reads_all_variables_has_read_those_of_the_configuration(functions: Functions) -> None:
    above = environment_of(functions, "import os\nMODE = {name: value for name, value in os.environ.items()}\n")
    functions.write(USES)
    assert reported(above, spec_with(functions, X="1"))["own_imports"] == "reads reads all variables at import, also X"
    # each function has its own value of these
    assert "own_imports" not in reported(above, spec_with(functions, AWS_LAMBDA_FUNCTION_NAME="f", _HANDLER="app.handler"))


def test_what_the_standard_library_reads_counts_for_the_package_that_uses_it(functions: Functions) -> None:
    source = "import ctypes.util, tempfile\nctypes.util.find_library('no_such_library')\nMODE = tempfile.gettempdir()\n"
    above = environment_of(functions, source)
    functions.write(USES)
    assert "own_imports" not in reported(above, spec_with(functions, OTHER="1"))
    assert reported(above, spec_with(functions, TMPDIR="/"))["own_imports"].endswith(" reads TMPDIR at import")


def test_what_a_module_of_python_reads_when_it_is_imported_counts_for_the_package_that_imports_it(functions: Functions) -> None:
    above = environment_of(functions, "import pydoc\n")
    functions.write(USES)
    assert reported(above, spec_with(functions, PYTHONDOCS="x"))["own_imports"] == "reads reads PYTHONDOCS at import"


def test_the_copy_of_the_variables_in_wsgiref_is_made_again(functions: Functions) -> None:
    above = environment_of(functions, "from wsgiref.handlers import format_date_time\n")
    functions.write(
        "from wsgiref.handlers import BaseHandler\nimport reads\n"
        "def handler(event, context):\n    return [BaseHandler.os_environ.get(name) for name in ('X', 'PATH')]\n"
    )
    template = above.template(spec_with(functions, X="1"))
    assert "own_imports" not in template.report
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == ["1", os.environ["PATH"]]


@pytest.mark.parametrize(
    "change",
    [
        "os.environ['READS_MODE'] = 'code'",
        "os.environ.update(READS_MODE='code')",
        "os.putenv; os.environ.setdefault('READS_MODE', 'x')",
    ],
)
def test_a_variable_that_the_code_sets_before_the_import_counts_too(functions: Functions, change: str) -> None:
    above = environment_of(functions)
    functions.write(f"import os\n{change}\nopen('after', 'w').close()\n{USES}")
    report = reported(above, spec_with(functions))
    assert report["own_imports"] == "reads reads READS_MODE at import, and the code sets it first"
    assert not (functions.directory / "after").exists()  # it ends there, and another template runs the code


def test_a_variable_of_its_own_does_not_matter(functions: Functions) -> None:
    above = environment_of(functions)
    functions.write(f"import os\nos.environ['MINE'] = 'x'\ndel os.environ['MINE']\n{USES}")
    template = above.template(spec_with(functions))
    assert "own_imports" not in template.report
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == "unset"


def test_a_variable_that_a_package_sets_is_there_only_if_the_function_may_import_it(functions: Functions) -> None:
    packages = functions.directory / "packages"
    functions.write("import os\nos.environ['SET_AT_IMPORT'] = '1'\nclass Set: pass\n", "packages/sets/__init__.py")
    functions.write("from sets import Set\n", "packages/uses/part.py")
    functions.write("from uses.part import Set as _\n", "packages/uses/__init__.py")
    functions.write("import uses\ndef f(): pass\n", "packages/outer.py")
    functions.write("", "packages/other.py")
    path = {"PATH": os.environ["PATH"]}
    above = functions.template(
        handler=None, level="environment", imports=["other", "outer", "sets"], environment=path, sys_path=[str(packages)]
    )
    read = "import os, other\n{}\ndef handler(event, context):\n    {}\n    return os.environ.get('SET_AT_IMPORT')\n"
    for at_import, in_handler, wanted in [
        ("", "", None),
        ("# without a setsquare", "", None),
        ("import sets", "", "1"),
        ("", "import sets", "1"),
        ("from uses.part import Set", "", "1"),
        ("import outer", "", "1"),
        ("import importlib; importlib.import_module('uses')", "", "1"),
    ]:
        folder = functions.directory / "code"
        functions.write(read.format(at_import, in_handler), "code/app.py")
        spec = functions.spec(environment=path, cwd=str(folder), sys_path=[str(folder), str(packages)])
        worker = above.template(spec).worker()
        worker.ready()
        assert worker.result({}) == wanted, at_import or in_handler
    # Its own value stays.
    functions.write(read.format("", ""), "code/app.py")
    spec = functions.spec(environment={**path, "SET_AT_IMPORT": "own"}, cwd=str(folder), sys_path=[str(folder), str(packages)])
    worker = above.template(spec).worker()
    worker.ready()
    assert worker.result({}) == "own"


def test_os_environ_is_as_before_after_the_imports(functions: Functions) -> None:
    above = environment_of(functions)
    methods = "[vars(type(os.environ))[name].__module__ for name in ('__getitem__', '__iter__', '__setitem__', '__delitem__')]"
    functions.write(f"import os\ndef handler(event, context):\n    return {methods}\n")
    worker = above.template(spec_with(functions)).worker()
    worker.ready()
    assert worker.result({}) == ["os"] * 4


@pytest.mark.parametrize("name", ["gevent", "eventlet", "pysqlite3"])
def test_a_package_that_replaces_modules_makes_its_functions_do_their_own_imports(functions: Functions, name: str) -> None:
    functions.write("", f"{name}/__init__.py")
    above = environment_of(functions)
    functions.write(USES)
    assert reported(above, spec_with(functions))["own_imports"].startswith(f"{name} replaces modules of Python")


def test_what_a_c_library_reads_is_known_of_some(functions: Functions) -> None:
    above = environment_of(functions, "MODE = 1\n", "numpy")
    functions.write("import numpy\ndef handler(event, context): pass\n")
    assert reported(above, spec_with(functions, OPENBLAS_NUM_THREADS="4"))["own_imports"] == (
        "numpy reads OPENBLAS_NUM_THREADS at import"
    )
    # templates are imported with one thread anyway
    assert "own_imports" not in reported(above, spec_with(functions, OPENBLAS_NUM_THREADS="1"))


def test_a_name_in_the_reason_is_printable_and_not_too_long(functions: Functions) -> None:
    name = "A\x1b[31m" + "x" * 5000
    above = environment_of(functions, f"import os\nMODE = os.environ.get({name!r})\n")
    functions.write(f"import os\nos.environ[{name!r}] = '1'\n{USES}")
    reason = reported(above, spec_with(functions))["own_imports"]
    assert reason.isprintable() and len(reason) < 300


def test_a_template_works_although_its_code_replaces_close_and_poll(functions: Functions) -> None:
    """gevent does: its `os.close` closes later, when the descriptor may be another one."""
    source = """
import os, select, socket, threading
def later(*args): raise RuntimeError('used by the worker')
os.close = os.fork = os.waitpid = select.poll = socket.socketpair = threading.Lock = later
def handler(event, context): return event
"""
    template = functions.template(source)
    for _ in range(2):
        worker = template.worker()
        worker.ready()
        assert worker.result(7) == 7
        worker.close()


AT_START = """
import sys
def handler(event, context):
    return [hash('abc'), sys.flags.optimize, sys.warnoptions, sys.path[0], __doc__]
"""


def test_the_template_of_a_function_can_be_an_interpreter_of_its_own(functions: Functions) -> None:
    functions.write(AT_START)
    at_start = {"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "error"}
    results = []
    for _ in range(2):
        process = Process("function", socket.SOCK_SEQPACKET, functions.spec(), at_start)
        template = Template(process.ours)
        template.report = template.message("ready")
        assert "error" not in template.report
        worker = template.worker()
        worker.ready()
        results.append(worker.result({}))
        worker.close()
        template.close()
        assert process.end() == 0
    first, second = results
    assert first == second
    assert first[1:] == [1, ["error"], str(functions.directory), None]


def test_such_an_interpreter_reports_a_specification_that_is_none(functions: Functions) -> None:
    process = Process("function", socket.SOCK_SEQPACKET, {"handler": 7})
    error = Template(process.ours).message("ready")["error"]
    assert error["errorType"] == "Runtime.SandboxError"
    assert "handler is a int" in error["errorMessage"]


def test_variables_that_the_worker_itself_applies(functions: Functions) -> None:
    source = "import sys\ndef handler(event, context):\n    return [sys.dont_write_bytecode, sys.stdout.encoding, sys.stderr.errors]\n"
    plain = functions.worker(source)
    assert plain.result({}) == [False, "utf-8", "backslashreplace"]
    variables = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "latin-1:replace"}
    worker = functions.worker(source, environment={"PATH": os.environ["PATH"], **variables})
    assert worker.result({}) == [True, "latin-1", "backslashreplace"]
    wrong = functions.worker(source, environment={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "no-such-encoding"})
    assert wrong.result({}) == [False, "utf-8", "backslashreplace"]
