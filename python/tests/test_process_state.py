"""What packages change of the whole process when the template of an environment imports them."""

from __future__ import annotations

import os
import sys
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
    "import warnings\nwarnings.showwarning = lambda *_: None\n": "how warnings are shown",
    "import logging\nlogging.disable(logging.INFO)\n": "logging.disable",
    "import sys\nsys.setrecursionlimit(3000)\n": "the recursion limit",
    "import sys\nsys.tracebacklimit = 3\n": "sys.tracebacklimit",
    "import threading\nthreading.stack_size(1 << 20)\n": "the stack size of threads",
    "import gc\ngc.set_threshold(50_000)\n": "the garbage collector",
    "import gc\ngc.callbacks.append(lambda *_: None)\n": "the garbage collector",
    "import locale\nlocale.setlocale(locale.LC_TIME, 'C.UTF-8')\n": "the locale",
    "import os\nos.umask(0o007)\n": "the umask",
    "import json\njson.JSONEncoder.default = lambda self, value: str(value)\n": "how json writes and reads",
    "import json\ndump = json.dump\njson.dump = lambda *given: dump(*given)\n": "how json writes and reads",
    "import json.encoder\njson.encoder.c_make_encoder = None\n": "how json writes and reads",
    "import sqlite3, decimal\nsqlite3.register_adapter(decimal.Decimal, str)\n": "how sqlite3 stores and reads values",
    "import sqlite3, datetime\nsqlite3.register_adapter(datetime.date, str)\n": "how sqlite3 stores and reads values",
    "import sqlite3\nsqlite3.register_converter('date', bytes.decode)\n": "how sqlite3 stores and reads values",
    "import xml.etree.ElementTree as t\nt.register_namespace('dcterms', 'http://purl.org/dc/terms/')\n": (
        "the prefixes of XML namespaces"
    ),
    "import mimetypes\nmimetypes.add_type('application/x-own', '.own')\n": "the types of files",
    "import mimetypes\nmimetypes.add_type('application/x-own', '.txt')\n": "the types of files",
    "import csv\ncsv.field_size_limit(1 << 30)\n": "csv.field_size_limit",
    "import socket\nsocket.setdefaulttimeout(5)\n": "the timeout of new sockets",
    "import ssl\nssl._create_default_https_context = ssl._create_unverified_context\n": "how HTTPS checks servers",
    "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n": "the start method of multiprocessing",
    "import decimal\ndecimal.getcontext().prec = 6\n": "the contexts of decimal",
    "import decimal\ndecimal.DefaultContext.rounding = decimal.ROUND_DOWN\n": "the contexts of decimal",
}
if hasattr(sys, "set_int_max_str_digits"):
    CHANGES["import sys\nsys.set_int_max_str_digits(0)\n"] = "the limit for digits of integers"


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
import asyncio, atexit, collections, copyreg, csv, decimal, json, mimetypes, multiprocessing, pickle, socket, sqlite3, ssl, sys, warnings
import xml.etree.ElementTree
warnings.filterwarnings("ignore", message="numpy.dtype size changed")
class Finder:
    def find_spec(*_): pass
sys.meta_path.append(Finder())
class Own: pass
copyreg.pickle(Own, lambda _: (Own, ()))
__import__("builtins").__pybind11_internals_v4__ = object()
asyncio.get_event_loop_policy()
atexit.register(print)
decimal.getcontext().sqrt(decimal.Decimal(2))
mimetypes.add_type("text/plain", ".txt")
multiprocessing.get_context()
sqlite3.register_adapter(Own, str)
json.dumps([1.5])
socket.setdefaulttimeout(None)
"""


def test_what_most_packages_change_costs_no_function_its_environment(functions: Functions) -> None:
    above, spec = above_and_spec(functions, WITHOUT, changer=HARMLESS)
    assert "own_imports" not in reported(above, spec)


def test_the_look_at_the_process_makes_no_context_of_decimal(functions: Functions) -> None:
    """One that is made before its default is set would not follow it."""
    code = "import other\nimport decimal\ndecimal.DefaultContext.prec = 6\nprecision = decimal.getcontext().prec\n"
    above, spec = above_and_spec(functions, code + "def handler(event, context): return precision\n", other="import decimal\n")
    worker = above.template(spec).worker()
    worker.ready()
    assert worker.result(None) == 6
