"""Templates: the chain interpreter, environment, function, worker, and what must not be shared across a fork."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from pathlib import Path

import pytest
from conftest import Functions, Start
from harness import Closed, Process, Stream, Template

from pilot_worker.protocol import wire


def test_a_chain_of_templates_ends_in_a_worker(functions: Functions) -> None:
    functions.write("import os\nNAME = 'library'\nPID = os.getpid()\n", "library.py")
    environment = functions.template(handler=None, level="environment", imports=["library", "no_such_package"])
    assert environment.report["threads"] == 1
    assert [failed["module"] for failed in environment.report["failed"]] == ["no_such_package"]
    # The report begins with what took longest: on a busy machine that may be the search for the missing one.
    assert "library" in [imported["module"] for imported in environment.report["imports"]]
    functions.write("import library, os\ndef handler(event, context):\n    return [library.PID, os.getppid(), event]\n")
    function = environment.template(functions.spec())
    worker = function.worker()
    stamps = worker.ready()
    assert stamps["forked_ns"] <= stamps["sandboxed_ns"] <= stamps["initialised_ns"]
    library_pid, parent_pid, event = worker.result({"a": [1, "ü"]})
    assert event == {"a": [1, "ü"]}
    assert library_pid != parent_pid  # imported by the grandparent template
    worker.close()
    assert Functions.exit_of(function, 1) == {"code": 0}
    function.close()
    assert Functions.exit_of(environment, 1) == {"code": 0}


def test_a_worker_from_the_level_above_imports_for_itself(functions: Functions) -> None:
    functions.write("def handler(event, context):\n    return context.function_name\n")
    environment = functions.template(handler=None, level="environment")
    worker = environment.worker(functions.spec())
    worker.ready()
    assert worker.result(None) == "test"


def test_an_import_failure_of_such_a_worker_is_an_init_error(functions: Functions) -> None:
    functions.write("import no_such_module\n")
    fork_id, sock = functions.root.fork("worker", functions.spec())
    worker = Stream(sock)
    kind, stream, _, body = worker.frame()
    assert (kind, stream) == (wire.INIT_ERROR, 0)
    assert b"Unable to import module 'app': No module named 'no_such_module'" in body
    assert worker.is_closed()
    assert Functions.exit_of(functions.root, fork_id) == {"code": 1}


def test_a_worker_without_a_template_is_started_by_exec(functions: Functions) -> None:
    functions.write("import os\ndef handler(event, context):\n    return sorted(os.listdir('/proc/self/fd'))\n")
    process = Process("worker", socket.SOCK_STREAM, functions.spec())
    worker = Stream(process.ours)
    stamps = worker.ready()
    assert stamps["forked_ns"] <= stamps["sandboxed_ns"] <= stamps["initialised_ns"]
    assert len(worker.result({})) == 5  # 0, 1, 2, the channel, and the listing itself
    assert process.end() == 0


def test_an_event_may_lie_in_the_socket_before_the_worker_is_up(functions: Functions) -> None:
    template = functions.template("def handler(event, context):\n    return event\n")
    _, sock = template.fork("worker")
    worker = Stream(sock)
    first, second = worker.ask(1), worker.ask(2)
    worker.ready()
    assert worker.frame()[:2] == (wire.RESULT, first)
    assert worker.frame()[:2] == (wire.RESULT, second)


RANDOMS = """
import copy, os, pickle, random, secrets, sqlite3, ssl, time, uuid, tempfile, zlib, multiprocessing.process
from datetime import datetime
try:
    import numpy.random
except ImportError:
    numpy = None
own = random.Random()
twin = copy.deepcopy(own)
pickled = pickle.loads(pickle.dumps(random.Random()))
taken = [random.Random(os.urandom(16)), random.Random(secrets.randbits(130)), random.Random(secrets.token_hex()), random.Random(time.time()),
         random.Random(time.time_ns()), random.Random(int(time.time()))]
parent = random.Random()
def long(draw): return next(number for number in iter(draw, None) if number >> 24)
taken += [random.Random(random.getrandbits(64)), random.Random(long(lambda: random.getrandbits(32))), random.Random(long(lambda: random.randint(1, 10**9))),
          random.Random(random.random()), random.Random(parent.getrandbits(128)), random.Random(random.getrandbits(128).to_bytes(16, "little"))]
for _ in range(700):
    taken.append(random.Random(random.getrandbits(64)))  # at each position of the state
taken += [random.Random(secrets.randbelow(1000)), random.Random(int.from_bytes(os.urandom(2), "big")), random.Random(os.urandom(2)),
          random.Random(uuid.uuid4().int), random.Random(str(uuid.uuid4())), random.Random(uuid.uuid4().hex), random.Random(uuid.uuid4().int & 0xFFFFFFFF),
          random.Random(str(time.time())), random.Random(str(datetime.now())), random.Random(datetime.now().isoformat()),
          random.Random(f"job-{secrets.randbits(40)}"), random.Random(int(time.time() * 1000) % 2**32), random.Random(time.perf_counter()),
          random.Random(secrets.SystemRandom().randint(1000, 9999)), random.Random(secrets.SystemRandom().random())]
computed = int(time.time() * 1000) ^ os.getpid()
taken.append(random.Random(computed))
taken.append(random.Random(datetime.now().microsecond))
taken.append(random.Random(random.randint(1, 1000) + 10**6))  # no constant of this code
taken.append(random.Random(
    zlib.crc32(os.urandom(8))))
drawn_for_numpy = random.getrandbits(128)
before = random.getstate()
random.seed(1)
random.random()
random.setstate(before)
database = sqlite3.connect(":memory:")
database.execute("select random()").fetchone()
random.random(); ssl.RAND_bytes(1); uuid.uuid1(); tempfile.mktemp()
if numpy:
    generators = [numpy.random.default_rng(), numpy.random.Generator(numpy.random.SFC64()), numpy.random.RandomState()]
    generators.append(generators[0].spawn(1)[0] if hasattr(generators[0], "spawn") else numpy.random.default_rng())
    generators[2].standard_normal()  # keeps the second of a pair
    generators.append(numpy.random.default_rng(secrets.randbits(128)))
    generators.append(numpy.random.default_rng(drawn_for_numpy))
    before = numpy.random.get_state()
    numpy.random.seed(1)
    numpy.random.standard_normal()
    numpy.random.set_state(before)
    numpy.random.standard_normal()
def handler(event, context):
    return {"random": random.random(), "ssl": ssl.RAND_bytes(8).hex(), "uuid1": str(uuid.uuid1()), "uuid4": str(uuid.uuid4()),
            "uuid1 without the time": str(uuid.uuid1())[19:], "tempfile": tempfile.mktemp(), "authkey": bytes(multiprocessing.process.current_process().authkey).hex(),
            "own": own.random(), "bits": own.getrandbits(64), "twin": twin.random(), "pickled": pickled.random(),
            **{f"taken {index}": one.random() for index, one in enumerate(taken)},
            "sqlite": database.execute("select hex(randomblob(16))").fetchone()[0], **({"numpy": numpy.random.standard_normal(),
            **{f"numpy seed {index}": one.standard_normal() for index, one in enumerate(generators)}} if numpy else {})}
"""

SEEDED = """
import copy, datetime, os, random, secrets, time
try:
    import numpy.random
except ImportError:
    numpy = None
random.getrandbits(1 << 14)
drawn_before = [random.Random(seed) for seed in (42, 20261125, (1 << 32) + 42, 0.5, b"constant")]
random.seed(1)
drawn_before.append(random.Random(random.getrandbits(64)))
own, again, from_state = random.Random(1), random.Random(), random.Random()
again.seed(2)
from_state.setstate(own.getstate())
class Own(random.Random): pass
generators = [random, own, again, from_state, Own(3), random.Random("x"), *drawn_before]
for _ in range(20): secrets.randbelow(10)
password = [secrets.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(40)]
def made(seed=None):
    if seed is None:
        seed = time.time()
    return random.Random(seed)
generators += [random.Random(7), *(random.Random(number) for number in (0, 1, 2, 3)), made(5), made(len("abc")), random.Random(int(os.environ["NUMBER"])),
               random.Random(datetime.date.today().toordinal()), random.Random(int(time.time()) // 86400), random.Random("job-7")]
if numpy:
    numpy.random.seed(1)
    generators += [numpy.random, numpy.random.default_rng(1), numpy.random.RandomState(1), numpy.random.default_rng(2**127 + 1)]
def handler(event, context):
    return [one.random() for one in generators]
"""


NUMPY = """
import os, random, secrets, time
import numpy
from numpy.random import MT19937, PCG64, Generator, RandomState, SeedSequence, default_rng
SEED
sequence = SeedSequence()
child = sequence.spawn(1)[0]
twins = default_rng(child), default_rng(child)
generators = [default_rng(int(time.time())), default_rng(secrets.randbelow(1000)), default_rng([secrets.randbits(32), 7]), RandomState(int(time.time())),
              RandomState(int.from_bytes(os.urandom(4), "big")), RandomState(next(number for number in iter(lambda: random.getrandbits(32), None) if number >> 24)), Generator(PCG64(secrets.randbits(100))),
              Generator(MT19937(sequence)), RandomState(int(time.time() * 1000) % 2**32)]
used = RandomState(int(time.time()))
used.standard_normal(999)
generators.append(used)
def handler(event, context):
    assert twins[0].random() == twins[1].random() == default_rng(child).random()
    return [numpy.random.random(), numpy.random.standard_normal(), default_rng(sequence.spawn(1)[0]).random(), twins[0].random(),
            *(one.standard_normal() for one in generators)]
"""


@pytest.mark.parametrize(
    "seed",
    [
        "None",
        "int(time.time())",
        "secrets.randbelow(1000)",
        "secrets.randbelow(1)",  # a number that the code also has as a constant
        "random.randrange(2**32)",
        # More than the constants of the code: a computed number that is one of them counts as chosen.
        "time.time_ns() % 12345 + 20_000",
    ],
)
def test_what_numpy_was_given_by_the_system_is_each_workers_own(functions: Functions, seed: str) -> None:
    site = os.environ.get("PILOT_TEST_SITE_PACKAGES")
    if site is None:
        pytest.skip("PILOT_TEST_SITE_PACKAGES names no packages")
    source = NUMPY.replace("SEED\n", f"numpy.random.seed({seed})\n")
    template = functions.template(source, sys_path=[str(functions.directory), site])
    workers = [template.worker() for _ in range(3)]
    for worker in workers:
        worker.ready()
    drawn = [worker.result({}) for worker in workers]
    for index in range(len(drawn[0])):
        assert len({values[index] for values in drawn}) == len(workers), index


ENGINES = """
import numpy
from scipy.stats import qmc
class Own(qmc.Halton):
    def __init__(self): super().__init__(2)
def engines():
    return [qmc.Sobol(2), qmc.Halton(2), Own(), qmc.Sobol(2, bits=40, rng=numpy.random.default_rng()), qmc.MultivariateNormalQMC([0.0]).engine]
unseeded, used = engines(), engines()
for engine in used: engine.random(8)
seeded = [qmc.Sobol(2, rng=1), qmc.Halton(2, rng=numpy.random.default_rng(1)), qmc.Sobol(2, scramble=False), qmc.Halton(2, scramble=False)]
numbers = [engine.random(4) for engine in seeded]
def goes_on(engine):
    position, points = engine.num_generated, engine.random(4)
    return (engine.reset().random(position + 4)[position:] == points).all().item()
def handler(event, context):
    # The first eight points of a Sobol sequence have one number in each eighth, and so have the next eight.
    eighths = [len(set((used[index].random(8)[:, 0] * 8).astype(int).tolist())) for index in (0, 3)]
    again = [engine.reset().random(4).tolist() == drawn.tolist() for engine, drawn in zip(seeded, numbers)]
    first = [engine.random(2).tolist() for engine in unseeded]
    return [first, [engine.random(2).tolist() for engine in used], [engine.reset().random(2).tolist() == drawn for engine, drawn in zip(unseeded, first)],
            eighths, again, [engine.random(2).tolist() for engine in seeded], [goes_on(engine) for engine in used]]
"""


def test_the_scrambling_of_scipy_is_each_workers_own(functions: Functions) -> None:
    site = os.environ.get("PILOT_TEST_SITE_PACKAGES")
    if site is None or not Path(site, "scipy").exists():
        pytest.skip("PILOT_TEST_SITE_PACKAGES names no folder with scipy")
    template = functions.template(ENGINES, sys_path=[str(functions.directory), site])
    workers = [template.worker() for _ in range(3)]
    for worker in workers:
        worker.ready()
    drawn = [worker.result({}) for worker in workers]
    for kind in (0, 1):
        for values in zip(*(result[kind] for result in drawn)):
            assert len({json.dumps(points) for points in values}) == len(workers)
    for result in drawn:
        assert result[2:5] == [[True] * 5, [8, 8], [True] * 4]
        assert result[6] == [True] * 5
        assert result[5] == drawn[0][5]


# The part of torch that matters: its generator has a seed of the system from the beginning, and `seed` takes another one.
TORCH = """
import os
class Generator:
    def __init__(self): self.seed()
    def seed(self): self.manual_seed(int.from_bytes(os.urandom(8), "big"))
    def manual_seed(self, number): self.number = number
    def initial_seed(self): return self.number
default_generator = Generator()
"""


@pytest.mark.parametrize(("seeding", "is_own"), [("", True), ("torch.default_generator.manual_seed(1)", False)])
def test_the_generator_of_torch_is_each_workers_own(functions: Functions, seeding: str, is_own: bool) -> None:
    functions.write(TORCH, "torch.py")
    source = f"import torch\n{seeding}\ndef handler(event, context): return torch.default_generator.number\n"
    template = functions.template(source)
    workers = [template.worker() for _ in range(3)]
    for worker in workers:
        worker.ready()
    assert len({worker.result({}) for worker in workers}) == (3 if is_own else 1)


# The part of uuid_utils and fastuuid that matters: a sequence that nobody can set.
UUID_UTILS = """
import itertools
sequence = itertools.count()
def uuid1(node=None, clock_seq=None): return next(sequence)
def uuid6(node=None, clock_seq=None): return next(sequence)
"""


@pytest.mark.parametrize(("module", "function"), [("uuid_utils", "uuid6"), ("fastuuid", "uuid1")])
def test_the_sequence_of_uuid1_is_each_workers_own(functions: Functions, module: str, function: str) -> None:
    functions.write(UUID_UTILS, f"{module}.py")
    source = (
        f"import {module} as ids\nids.{function}()\ndef handler(event, context): return [ids.uuid1(), ids.uuid1.__name__]\n"
    )
    template = functions.template(source)
    workers = [template.worker() for _ in range(4)]
    for worker in workers:
        worker.ready()
    drawn = [worker.result({}) for worker in workers]
    assert len({number for number, _ in drawn}) > 1 and {name for _, name in drawn} == {"uuid1"}


def test_a_seed_that_only_the_source_explains_is_reported(functions: Functions) -> None:
    source = "import os, random, time\nnumber = time.time_ns() % 1000 + 7\nrng = random.Random(number)\ndef handler(e, c): return rng.random()\n"
    template = functions.template(source)
    row = {"where": "app.py:3", "what": "took a seed from time.time_ns at import", "instead": "each worker takes a new one"}
    assert row in template.report["findings"]


def test_siblings_share_no_randomness(functions: Functions) -> None:
    site = os.environ.get("PILOT_TEST_SITE_PACKAGES")  # one with numpy, when there is one
    template = functions.template(RANDOMS, sys_path=[str(functions.directory), *([site] if site else [])])
    workers = [template.worker() for _ in range(4)]
    for worker in workers:
        worker.ready()
    drawn = [worker.result({}) for worker in workers]
    for key in drawn[0]:
        assert len({values[key] for values in drawn}) == len(workers), key


def test_a_worker_knows_the_number_of_its_main_thread(functions: Functions) -> None:
    worker = functions.worker(
        "import os, threading\n"
        "def handler(event, context):\n"
        "    return [threading.main_thread().native_id == threading.get_native_id() == os.getpid()]\n"
    )
    assert worker.result({}) == [True]


def test_what_a_program_seeds_stays_as_it_is(functions: Functions) -> None:
    site = os.environ.get("PILOT_TEST_SITE_PACKAGES")
    variables = {**functions.spec()["environment"], "NUMBER": "3"}
    template = functions.template(SEEDED, sys_path=[str(functions.directory), *([site] if site else [])], environment=variables)
    workers = [template.worker() for _ in range(2)]
    for worker in workers:
        worker.ready()
    first, second = [worker.result({}) for worker in workers]
    assert first == second


def test_data_that_the_import_takes_from_the_system_costs_its_size_once(functions: Functions) -> None:
    source = (
        "import os, resource, uuid\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "before = peak()\n"
        "data = os.urandom(48 << 20)\n"
        "many = [uuid.uuid4() for _ in range(50_000)]\n"
        "taken = peak() - before\n"
        "def handler(event, context): return taken\n"
    )
    functions.write(source)
    template = functions.template()
    worker = template.worker()
    worker.ready()
    assert worker.result({}) < 48 + 32
    worker.close()
    template.close()


LAZY = """
import http.client, socket
try:
    import numpy.random
except ImportError:
    numpy = None
asked = []
class Lazy:
    @property
    def __class__(self):
        asked.append(1)
        raise RuntimeError("not configured yet")
lazy = Lazy()
server = socket.create_server(("127.0.0.1", 0))
connection = http.client.HTTPConnection(*server.getsockname())
connection.connect()
def handler(event, context):
    return asked
"""


KEPT = """
import sys, time, random
from random import seed
from os import urandom
NUMPY
def noted():
    ours = [sys.modules[f"pilot_worker.randomness.{name}"] for name in ("seeds", "generators", "numpy_generators")]
    return [len(ours[0]._taken) + len(ours[0]._short), ours[1]._state.is_global_seeded, len(ours[2]._entropy), ours[2]._state.is_global_of_system]
def handler(event, context):
    before = noted()
    seed(1)
    first = random.random()
    urandom(8), USE
    return [first == random.Random(1).random(), before == noted()]
"""


def test_functions_that_a_module_has_kept_note_nothing_in_a_worker(functions: Functions) -> None:
    site = os.environ.get("PILOT_TEST_SITE_PACKAGES")
    numpy = "from numpy.random import default_rng, seed as seed_numpy" if site else ""
    use = "default_rng(int(time.time())), seed_numpy(int(time.time()))" if site else "None"
    source = KEPT.replace("NUMPY", numpy).replace("USE", use)
    worker = functions.template(source, sys_path=[str(functions.directory), *([site] if site else [])]).worker()
    worker.ready()
    assert worker.result({}) == [True, True]


def test_lazy_objects_are_not_asked_what_they_are(functions: Functions) -> None:
    site = os.environ.get("PILOT_TEST_SITE_PACKAGES")
    worker = functions.template(LAZY, sys_path=[str(functions.directory), *([site] if site else [])]).worker()
    worker.ready()
    assert worker.result({}) == []


def test_modules_that_only_the_code_imports_are_reported(functions: Functions) -> None:
    for name, source in {
        "parts/__init__.py": "",
        "parts/light.py": "",
        "parts/heavy.py": "import parts.light",
        "parts/third.py": "",
        "other/__init__.py": "",
        "other/deep.py": "",
        "broken.py": "raise ImportError",
    }.items():
        functions.write(source, f"packages/{name}")
    packages = str(functions.directory / "packages")
    environment = functions.template(handler=None, level="environment", imports=["parts"], sys_path=[packages])
    assert environment.report["modules"] == []
    functions.write("import json, parts.third", "own.py")
    functions.write(
        "import own, parts\nfrom parts import heavy\nimport parts.light, other.deep\n"
        "try:\n    import broken\nexcept ImportError:\n    pass\n"
        "def handler(event, context):\n    return 1\n"
    )
    spec = functions.spec(sys_path=[str(functions.directory), packages])
    assert environment.template(spec).report["modules"] == ["parts.third", "parts.heavy", "other.deep"]
    # Below a template that has imported them, too.
    more = environment.template(functions.spec(handler=None, level="environment", imports=["parts.heavy"], sys_path=[packages]))
    assert more.template(spec).report["modules"] == ["parts.third", "other.deep"]


def test_generators_of_a_declared_import_are_renewed_too(functions: Functions) -> None:
    functions.write("import random\nOWN = random.Random()\n", "library.py")
    environment = functions.template(handler=None, level="environment", imports=["library"])
    functions.write("import library\ndef handler(event, context):\n    return library.OWN.random()\n")
    function = environment.template(functions.spec())
    workers = [function.worker(), function.worker(), environment.worker(functions.spec())]
    for worker in workers:
        worker.ready()
    assert len({worker.result({}) for worker in workers}) == 3


HOOKS = """
import os
from snapshot_restore_py import register_after_restore, register_before_snapshot
order = [("import", os.getpid())]
note = lambda name, *args, **kwargs: order.append((name, os.getpid()))
register_before_snapshot(note, "before 1", 1, k=2)
register_after_restore(note, "after 1")
@register_before_snapshot
def before_2(): note("before 2")
@register_after_restore
def after_2(): note("after 2")
def handler(event, context):
    return order
"""


@pytest.mark.parametrize("is_installed", [False, True])
def test_hooks_run_in_the_order_of_snapshot_restore_py(functions: Functions, is_installed: bool) -> None:
    if is_installed:  # a fake with the package's interface: a package on sys.path has priority over ours
        functions.write(
            "before, after = [], []\n"
            "def register_before_snapshot(f, *a, **k): before.append((f, a, k)); return f\n"
            "def register_after_restore(f, *a, **k): after.append((f, a, k)); return f\n"
            "def get_before_snapshot(): return before\n"
            "def get_after_restore(): return after\n",
            "snapshot_restore_py.py",
        )
    template = functions.template(HOOKS)
    for _ in range(2):
        worker = template.worker()
        worker.ready()
        order = worker.result({})
        assert [name for name, _ in order] == ["import", "before 2", "before 1", "after 1", "after 2"]
        template_pid, worker_pid = order[0][1], order[-1][1]
        assert [pid for _, pid in order] == [template_pid] * 3 + [worker_pid] * 2


def test_a_hook_that_fails_is_reported(functions: Functions) -> None:
    before = "from snapshot_restore_py import *\n@register_before_snapshot\ndef f(): raise OSError('cold')\ndef handler(e, c): pass\n"
    assert functions.refused(before)["errorType"] == "OSError"
    worker = functions.template(before.replace("before_snapshot", "after_restore")).worker()
    kind, _, _, body = worker.frame()
    assert kind == wire.INIT_ERROR and b"cold" in body


FDS = """
import os
def handler(event, context):
    return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
"""


def test_nothing_of_the_template_leaks_into_a_worker(functions: Functions) -> None:
    template = functions.template(FDS)
    template.worker().ready()  # a sibling
    worker = template.worker(log=functions.log.write_fd, mnt=open_namespace("mnt"), cgroup=[os.open("/dev/null", os.O_WRONLY)])
    worker.ready()
    fds = worker.result({})
    sockets = [target for target in fds.values() if target.startswith("socket:")]
    assert len(sockets) == 1, fds
    assert fds["1"] == fds["2"] == os.readlink(f"/proc/self/fd/{functions.log.write_fd}")
    assert set(fds) - {"0", "1", "2"} == {fd for fd, target in fds.items() if target in sockets}, fds


def open_namespace(name: str) -> int:
    return os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def test_a_template_of_several_threads_refuses_to_fork(functions: Functions) -> None:
    template = functions.template(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\ndef handler(e, c): pass\n"
    )
    assert template.report["threads"] == 2
    template.fork("worker")
    assert "2 threads" in template.message("fork_failed")["error"]


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os._exit(7)", {"code": 7}),
        ("os.kill(os.getpid(), signal.SIGKILL)", {"signal": signal.SIGKILL}),
        ("ctypes.string_at(0)", {"signal": signal.SIGSEGV}),
        ("print('last words', end=''); sys.exit(3)", {"code": 3}),
        ("sys.exit()", {"code": 0}),
        ("sys.exit('gone')", {"code": 1}),
    ],
)
def test_the_end_of_a_worker_is_reported(functions: Functions, body: str, how: dict[str, int]) -> None:
    template = functions.template(f"import ctypes, os, signal, sys\ndef handler(event, context):\n    {body}\n")
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    worker.ask({})
    assert worker.is_closed()
    assert Functions.exit_of(template, 1) == how
    log = functions.log.read_now()
    assert ("last words" in log) == ("last words" in body)
    assert ("gone\n" in log) == ("gone" in body)
    assert ("Fatal Python error: Segmentation fault" in log) == ("string_at" in body)


INTERRUPTED = """
import _thread, os, signal, threading, time
AT_IMPORT = signal.getsignal(signal.SIGINT) is signal.default_int_handler
def handler(event, context):
    if event == "parent": return os.getppid()
    try:
        if event == "signal": os.kill(os.getpid(), signal.SIGINT)
        if event == "thread": threading.Thread(target=_thread.interrupt_main).start()
        if event == "raised": _thread.interrupt_main()
        for _ in range(3000): time.sleep(0.01)
    except KeyboardInterrupt:
        if event == "raised": raise
        return [AT_IMPORT, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))]
"""


@pytest.mark.parametrize("is_short", [True, False])
def test_an_interrupt_is_raised_in_a_handler(functions: Functions, is_short: bool) -> None:
    template = functions.template(INTERRUPTED)
    spec = None if is_short else functions.spec()
    worker = template.worker(spec)
    worker.ready()
    for event in ("signal", "thread", "signal"):
        assert worker.result(event) == [True, []]
    assert worker.error("raised")["errorType"] == "KeyboardInterrupt"


def test_an_interrupt_does_not_end_a_template_or_reach_its_workers(functions: Functions) -> None:
    template = functions.template(INTERRUPTED)
    worker = template.worker()
    worker.ready()
    os.kill(worker.result("parent"), signal.SIGINT)
    template.send({"op": "memory"})  # the loop returns to Python
    later = template.worker(log=functions.log.write_fd)
    later.ready()
    assert later.result("signal") == [True, []]
    assert functions.log.read_now() == ""


def test_an_interrupt_between_invocations_ends_a_worker_without_a_traceback(functions: Functions) -> None:
    template = functions.template("import os\ndef handler(event, context): return os.getpid()\n")
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    os.kill(worker.result({}), signal.SIGINT)
    assert worker.is_closed()
    assert Functions.exit_of(template, 1) == {"code": 130}
    assert functions.log.read_now() == ""


def test_what_user_code_does_with_interrupts_stays(functions: Functions) -> None:
    functions.write("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n", "library.py")
    environment = functions.template(handler=None, level="environment", imports=["library"])
    functions.write("import signal\ndef handler(e, c): return signal.getsignal(signal.SIGINT) == signal.SIG_IGN\n")
    worker = environment.template(functions.spec()).worker()
    worker.ready()
    assert worker.result({}) is True


def test_exits_are_reported_though_many_children_end_at_once(functions: Functions) -> None:
    template = functions.template("def handler(event, context): pass\n")
    workers = [template.worker() for _ in range(20)]
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.close()
    assert {template.message("exited")["id"] for _ in workers} == set(range(1, 21))


def test_forked_comes_before_exited(functions: Functions) -> None:
    template = functions.template("def handler(event, context): pass\n")
    spec = functions.spec()
    for _ in range(20):
        fork_id, sock = template.fork("worker", spec)
        sock.close()
        assert [template.message()["op"], template.message()["op"]] == ["forked", "exited"], fork_id


def test_the_short_form_is_answered_by_exited_alone(functions: Functions) -> None:
    template = functions.template("def handler(event, context): pass\n")
    for _ in range(20):
        fork_id, sock = template.fork("worker")
        sock.close()
        assert template.message() == {"op": "exited", "id": fork_id, "code": 0}


def test_a_template_ends_with_its_control_channel(functions: Functions) -> None:
    fork_id, sock = functions.root.fork("template", functions.spec(handler=None))
    template = Template(sock)
    template.message("ready")
    template.close()
    assert Functions.exit_of(functions.root, fork_id) == {"code": 0}
    with pytest.raises((Closed, OSError)):
        template.message()


def test_the_memory_message_has_no_answer_and_does_no_harm(functions: Functions) -> None:
    template = functions.template("def handler(event, context): return 1\n")
    template.send({"op": "memory"})
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == 1


def test_a_worker_has_the_variables_of_its_specification(start: Start) -> None:
    worker = start("import os\nat_import = dict(os.environ)\ndef handler(e, c): return [at_import, dict(os.environ)]\n")
    at_import, later = worker.result({})
    assert at_import == later
    assert later["AWS_LAMBDA_FUNCTION_NAME"] == "test" and "HOME" not in later


def test_user_code_neither_sees_nor_shadows_our_modules(start: Start, functions: Functions) -> None:
    functions.write("raise AssertionError('the user has a module of this name')", "wire.py")
    functions.write("mine = True\n", "calendar.py")
    worker = start(
        "import sys, calendar\n"
        "def handler(e, c):\n"
        "    import importlib.util\n"
        "    return [importlib.util.find_spec('fork') is None, getattr(calendar, 'mine', False), sys.path[0], sys.argv[1:]]\n"
    )
    assert worker.result({}) == [True, True, str(functions.directory), []]


def test_a_users_module_comes_before_one_of_the_standard_library(functions: Functions) -> None:
    functions.write("def handler(event, context): return 'mine'\n", "random.py")
    worker = functions.worker("", handler="random.handler")
    assert worker.result({}) == "mine"


def test_paths_with_slashes_and_packages_are_handlers_too(functions: Functions, tmp_path: Path) -> None:
    functions.write("", "pkg/__init__.py")
    functions.write("def handler(event, context): return __name__\n", "pkg/mod.py")
    assert functions.worker("", handler="pkg.mod.handler").result({}) == "pkg.mod"
    assert functions.worker("", handler="pkg/mod.handler").result({}) == "pkg.mod"


def test_a_default_timeout_of_sockets_is_that_of_the_functions_own_sockets(functions: Functions) -> None:
    functions.write("import socket\nsocket.setdefaulttimeout(0.001)\n", "library.py")
    environment = functions.template(handler=None, level="environment", imports=["library"])
    source = "import socket\ndef handler(event, context):\n    return socket.getdefaulttimeout()\n"
    functions.write(source)
    template = environment.template(functions.spec(imports=["library"]), log=functions.log.write_fd)
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    # A worker that waits for its channel with this timeout ends after a millisecond.
    assert not select.select([worker.socket, template.socket], [], [], 0.1)[0]
    assert worker.result({}) == 0.001
    worker.close()
    template.close()
    environment.close()
