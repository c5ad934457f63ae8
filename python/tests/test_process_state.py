"""What packages change of the whole process when the template of an environment imports them."""

from __future__ import annotations

import os
from typing import Any

import pytest
from conftest import Functions
from harness import Template, reported

WITHOUT = "import sys\ndef handler(event, context): pass\n"


def above_and_spec(functions: Functions, code: str, **packages: str) -> tuple[Template, dict[str, Any]]:
    """The template of an environment with these modules, and a function with this code."""
    folder, code_folder = functions.directory / "packages", functions.directory / "code"
    for name, source in packages.items():
        functions.write(source, f"packages/{name}.py")
    functions.write(code, "code/app.py")
    variables = {"PATH": os.environ["PATH"]}
    above = functions.template(
        handler=None, level="environment", imports=list(packages), sys_path=[str(folder)], environment=variables
    )
    assert above.report["failed"] == []
    spec = functions.spec(environment=variables, cwd=str(code_folder), sys_path=[str(code_folder), str(folder)])
    return above, spec


CHANGES = {
    "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\n": "sys.stdout",
    "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 2)\n": "descriptor 2",
    "import sys\nsys.excepthook = lambda *_: None\n": "sys.excepthook",
    "import threading\nthreading.excepthook = lambda *_: None\n": "threading.excepthook",
    "import logging\nlogging.getLogger().addHandler(logging.NullHandler())\n": "the handlers of the root logger",
    "import logging\nlogging.getLogger().setLevel('DEBUG')\n": "the level of the root logger",
    "import logging\nclass Own(logging.Logger): pass\nlogging.setLoggerClass(Own)\n": "the class of loggers",
    "import logging\nlogging.addLevelName(50, 'FATAL')\n": "the names of log levels",
    "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n": "the handlers of signals",
    "import asyncio\nclass Own(asyncio.DefaultEventLoopPolicy): pass\nasyncio.set_event_loop_policy(Own())\n": "the event loop policy",
    "import pickle, types\npickle._Pickler.dispatch[types.CodeType] = lambda *_: None\n": "how pickle writes objects",
    "import copyreg, types\ncopyreg.pickle(types.CodeType, lambda _: (int, ()))\n": "how pickle writes objects",
    "import warnings\nwarnings.simplefilter('error', DeprecationWarning)\n": "the warnings that are errors",
    "import sys\nclass Own:\n    def find_spec(*_): pass\nsys.meta_path.insert(0, Own())\n": "the importers",
    "import builtins\nbuiltins.unicode = str\n": "the names of builtins",
    "import builtins\nopened = open\nbuiltins.open = lambda *given, **more: opened(*given, **more)\n": "the names of builtins",
}


@pytest.mark.parametrize("source", CHANGES)
def test_a_function_that_does_not_import_what_changes_its_process_does_its_own_imports(
    functions: Functions, source: str
) -> None:
    above, spec = above_and_spec(functions, WITHOUT, changer=source, other="import json\n")
    expected = f"changer changes {CHANGES[source]} at import, and the code does not import it"
    assert reported(above, spec)["own_imports"] == expected


@pytest.mark.parametrize(
    "code", [WITHOUT + "import changer\n", WITHOUT + "import user\n", WITHOUT + "def later(): import user\n"]
)
def test_a_function_that_may_import_it_is_forked_from_its_environment(functions: Functions, code: str) -> None:
    source = "import sys\nsys.excepthook = lambda *_: None\n"
    above, spec = above_and_spec(functions, code, changer=source, user="import changer\n")
    assert "own_imports" not in reported(above, spec)


def test_it_is_the_package_that_is_named_and_not_the_one_that_imports_it(functions: Functions) -> None:
    """The first import of an environment has all others in it."""
    source = "import sys\nsys.excepthook = lambda *_: None\n"
    above, spec = above_and_spec(functions, WITHOUT + "import changer\n", user="import changer\n", changer=source)
    assert "own_imports" not in reported(above, spec)


HARMLESS = """
import asyncio, collections, copyreg, pickle, sys, warnings
warnings.filterwarnings("ignore", message="numpy.dtype size changed")
class Finder:
    def find_spec(*_): pass
sys.meta_path.append(Finder())
class Own: pass
copyreg.pickle(Own, lambda _: (Own, ()))
__import__("builtins").__pybind11_internals_v4__ = object()
asyncio.get_event_loop_policy()
"""


def test_what_most_packages_change_costs_no_function_its_environment(functions: Functions) -> None:
    above, spec = above_and_spec(functions, WITHOUT, changer=HARMLESS)
    assert "own_imports" not in reported(above, spec)
