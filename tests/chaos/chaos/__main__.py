"""The command line: one run per seed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
from pathlib import Path

from . import machine, oracle
from .daemon import Daemon
from .faults import Faults, functions_folder, wait_for
from .ledger import Ledger
from .load import Clients
from .mounting import data_mounted, own_mounts
from .plan import KINDS, plan
from .servers import Relay, Store, Witness
from .shim import Shim

ROOT = Path(__file__).resolve().parents[3]
FUNCTIONS = Path(__file__).resolve().parents[1] / "functions"

CONFIG = """
[limits]
total_memory_mb = 900
workers = 40

[data]
memory_mb = 64
cache_mb = 8
initscript_networks = ["127.0.0.1/32"]

[stores.objects]
kind = "http"
functions = ["digest", "digest-stream", "node-digest"]
url = "http://127.0.0.1:{relay}/"
"""

PYTHON = """
[functions.{name}]
handler = "app.{handler}"
timeout_s = 5
memory_mb = 128
{keys}
"""


def manifest(witness: int, has_node: bool) -> str:
    """All functions but the one that is deployed again and again."""
    input_ = '[functions.{}.inputs]\ndata = {{ from = "http://objects/{{event.key}}"{} }}\n'
    noting = f'network = "host"\nenvironment = {{ WITNESS = "{witness}" }}\n'
    retrying = "[functions.{}.async]\nretry_wait_s = 0.2\n{}\n"
    rows = [
        ("echo", "echo", "", ""),
        ("url", "url", "", ""),
        ("stream", "stream", 'interface = "asgi"\nconcurrency = 4\n', ""),
        ("hog", "hog", "scale = { max = 3 }\n", ""),
        ("digest", "digest", "", input_.format("digest", "")),
        ("digest-stream", "digest", "", input_.format("digest-stream", ", stream = true")),
        ("note", "note", noting, retrying.format("note", "")),
        ("note-to-file", "note", noting, retrying.format("note-to-file", 'on_success = "file:done.jsonl"')),
        ("note-once", "note", noting, retrying.format("note-once", "retries = 0")),
    ]
    text = "".join(PYTHON.format(name=name, handler=handler, keys=keys) + more for name, handler, keys, more in rows)
    text = text.replace('"app.hog"\ntimeout_s = 5\nmemory_mb = 128', '"app.hog"\ntimeout_s = 10\nmemory_mb = 400')
    text += '[functions.server]\nruntime = "http"\ncommand = ["python3", "server.py"]\ntimeout_s = 5\nconcurrency = 4\n'
    if has_node:
        text += '[functions.node]\nruntime = "node"\nhandler = "index.echo"\ntimeout_s = 5\n'
        text += '[functions.node-digest]\nruntime = "node"\nhandler = "index.digest"\ntimeout_s = 5\n'
        text += input_.format("node-digest", "")
    return text


NUMBER = '[functions.number]\nhandler = "app.number"\ntimeout_s = 5\n'


class Run:
    """One run with one seed."""

    def __init__(self, seed: int, arguments: argparse.Namespace, children: machine.Children) -> None:
        self.seed, self.arguments = seed, arguments
        self.home = Path(tempfile.mkdtemp(prefix=f"pilot-chaos-{seed}-"))
        self.ledger = Ledger()
        self.shim = Shim(self.home, arguments.pilot)
        self.store = Store(seed)
        self.relay = Relay(self.store.port)
        self.witness = Witness()
        config = CONFIG.format(relay=self.relay.port)
        self.daemon = Daemon(arguments.pilot, self.home, config, self.shim.environment, self.ledger, children)
        self.functions = functions_folder(FUNCTIONS, self.home)
        self.clients = Clients(seed, self.daemon, self.store, self.ledger, self.functions)
        self.faults = Faults(self.daemon, self.relay, self.shim, self.ledger)

    def names(self) -> list[str]:
        names = [
            "echo",
            "url",
            "stream",
            "server",
            "digest",
            "digest-stream",
            "number",
            "hog",
            "note",
            "note-to-file",
            "note-once",
        ]
        return names + (["node", "node-digest"] if self.clients.has_node else [])

    def go(self) -> tuple[int, int]:
        """Returns how many promises were kept and broken."""
        (self.home / "data").mkdir()
        with data_mounted(self.home / "data", self.arguments.disk_mb):
            try:
                return self._go()
            finally:
                self.daemon.abandon()
                wait_for("all processes are gone", lambda: not machine.descendants(os.getpid()), 10)
                for server in (self.store, self.relay, self.witness):
                    server.stop()

    def _go(self) -> tuple[int, int]:
        mounts = machine.mounts()
        self.daemon.start()
        self._deploy()
        files = self._files()
        self.daemon.start()
        self._rest()
        # A second round, because the first one may keep what the second one uses again.
        self._rest()
        before = oracle.held_at_rest(self.daemon)
        for what in before:
            print(f"{self.ledger.now():8.2f}  before: {dict(what)}", flush=True)
        faults = plan(self.seed, self.arguments.seconds, self.arguments.only)
        self.clients.start()
        self.faults.run(faults)
        print(f"{self.ledger.now():8.2f}  the faults are over", flush=True)
        self.clients.stop()
        oracle.serves_again(self.daemon, self.ledger, self.names())
        oracle.events_end(self.daemon, self.witness, self.ledger)
        oracle.destination_has_all(self.daemon, self.ledger)
        self._rest()
        oracle.holds_as_before(self.daemon, self.ledger, before, self.arguments.slack)
        after = self._files()
        oracle.nothing_is_left(self.daemon, self.ledger, mounts)
        oracle.files_are_as_before(self.ledger, files, after)
        return oracle.report(self.ledger, self.faults.done, self.faults.skipped)

    def record(self) -> dict[str, object]:
        """What happened, for `--json`."""
        ledger = self.ledger
        return {
            "seed": self.seed,
            "faults": sum(self.faults.done.values()),
            "daemon down": len(ledger.downtimes),
            "answers": sum(sum(outcomes.values()) for outcomes in ledger.outcomes.values()),
            "accepted events": len(ledger.accepted),
            "broken promises": len(ledger.broken),
            "took_s": round(ledger.now(), 1),
            "detail": {
                "answers": {client: dict(outcomes) for client, outcomes in sorted(ledger.outcomes.items())},
                "faults": self.faults.done,
                "skipped": self.faults.skipped,
                "broken": dict(ledger.broken),
            },
        }

    def _deploy(self) -> None:
        (self.functions / "pilot.toml").write_text(manifest(self.witness.port, self.clients.has_node))
        deployed = self.functions / "deployed"
        (deployed / "pilot.toml").write_text(NUMBER)
        shutil.copy(self.functions / "app.py", deployed / "app.py")
        (self.functions / ".pilotignore").write_text("deployed/\n")
        for folder in (self.functions, deployed):
            done = self.daemon.cli("up", folder)
            if done.returncode != 0:
                raise SystemExit(f"the functions cannot be deployed:\n{done.stdout}{done.stderr}")

    def _rest(self) -> None:
        """Uses every function once and ends its workers, so that the daemon has what it always has."""
        oracle.serves_again(self.daemon, self.ledger, self.names(), times=2)
        status, found = self.daemon.api("GET", "/_pilot/v1/functions")
        for function in oracle.rows(found) if status == 200 else []:
            self.daemon.api("POST", f"/_pilot/v1/functions/{function['name']}/scale", {"workers": 0})

    def _files(self) -> list[str]:
        """Removes what no version needs, stops the daemon, and lists its files."""
        pruned = self.daemon.cli("prune", "--versions")
        if pruned.returncode != 0:
            self.ledger.breaks("files are as before", f"pilot prune has failed: {pruned.stderr[:300]}")
        if (status := self.daemon.stop()) != 0:
            self.ledger.breaks("it stops", f"the daemon has ended with {status}")
        return machine.files(self.daemon.data)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/chaos/run", description="Faults under load, and an oracle. See README.md.")
    parser.add_argument("--seed", type=int, action="append", help="repeat the faults of a run; may be given several times")
    parser.add_argument("--seconds", type=float, default=120, help="how long faults come [%(default)s]")
    parser.add_argument("--only", action="append", choices=[*KINDS], help="only these kinds of faults")
    parser.add_argument("--smoke", action="store_true", help="a short run: one seed, 12 s of faults")
    parser.add_argument("--disk-mb", type=int, default=384, help="size of the file system of the data directory [%(default)s]")
    parser.add_argument("--slack", type=int, default=3, help="how many descriptors of a kind may be new [%(default)s]")
    parser.add_argument("--pilot", type=Path, default=ROOT / "target" / "debug" / "pilot", help="the binary [%(default)s]")
    parser.add_argument("--json", type=Path, help="write what happened there, too")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run also if all is well")
    parsed = parser.parse_args()
    parsed.pilot = parsed.pilot.resolve()
    if not parsed.pilot.exists():
        parser.error(f"there is no {parsed.pilot}: run cargo build -p pilot, or use --pilot")
    if parsed.smoke:
        parsed.seconds = 12
    parsed.seed = parsed.seed or [random.randrange(1 << 31)]
    return parsed


def main() -> int:
    parsed = arguments()
    if os.geteuid() != 0:
        print("*** chaos needs root: it mounts a small disk, and daemons that are not root isolate nothing ***")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    own_mounts()
    machine.adopt_orphans()
    # One for all runs: another one would reap the programs of this one, and their exit status would be lost.
    children = machine.Children()
    children.reap_always()
    passed = failed = skipped = 0
    records: list[dict[str, object]] = []
    for seed in parsed.seed:
        print(f"── seed {seed}: repeat it with `tests/chaos/run --seed {seed} --seconds {parsed.seconds:g}`", flush=True)
        run = Run(seed, parsed, children)
        kept, broken = run.go()
        passed, failed, skipped = passed + kept, failed + broken, skipped + len(run.faults.skipped)
        records.append(run.record())
        if parsed.json:
            system = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
            whole = {"machine": system, "seconds": parsed.seconds, "promises": kept + broken, "rows": records}
            parsed.json.write_text(json.dumps(whole, indent=1) + "\n")
        if broken or parsed.keep:
            print(f"the daemon's log and its data are in {run.home}")
        else:
            shutil.rmtree(run.home, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
