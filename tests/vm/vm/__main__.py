"""`tests/vm/run`: boots the machine once, runs suites in it, and adds up what they say. See README.md."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from vm.hypervisors import Hardware, Share, choose
from vm.image import Unavailable, prepare
from vm.machine import Machine
from vm.suites import ROOT, SUITES, TARGET, Options, Tally, Workspace

FOLDER = TARGET / "vm"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/vm/run", description=__doc__)
    names = ", ".join(f"{suite.name} ({suite.what})" for suite in SUITES)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {names}; all of them by default")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only tests whose names contain this")
    parser.add_argument("--command", metavar="SCRIPT", help="run this script of the shell in the machine, and no suite")
    how = "what runs it: KVM, User Mode Linux, or an emulator; the fastest that works here by default"
    parser.add_argument("--hypervisor", choices=["kvm", "uml", "emulated"], help=how)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory-mb", type=int, default=4096)
    given = parser.parse_args()
    unknown = set(given.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"unknown suite {min(unknown)}: use {', '.join(suite.name for suite in SUITES)}")
    return given


def main() -> int:
    given = options()
    chosen = [suite for suite in SUITES if not given.suites or suite.name in given.suites]
    hypervisor = choose(given.hypervisor, FOLDER)
    image = prepare(FOLDER)
    inputs, results = FOLDER / "inputs", FOLDER / "results"
    for folder in (inputs, results):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    workspace = Workspace(inputs, results, Options(given.only))
    if given.command is None:
        for suite in chosen:
            suite.prepare(workspace)
    shares = [Share(ROOT), *([] if TARGET.is_relative_to(ROOT) else [Share(TARGET)]), Share(results, writable=True)]
    hardware = Hardware(image, shares, FOLDER, given.cpus, given.memory_mb)
    with Machine(hypervisor, hardware) as machine:
        _settle(machine, results)
        if given.command is not None:
            return machine.run(given.command, 3600, workspace.environment(), results / "command.log").status
        total = Tally()
        for suite in chosen:
            print(f"\n── in the machine: {suite.name}: {suite.what}", flush=True)
            tally = suite.run(machine, workspace)
            print(f"{suite.name}: {tally}", flush=True)
            total += tally
    print(f"\nthe machine ran on {hypervisor.what} and booted in {machine.booted_in_s:.1f} s")
    print(total)
    return 1 if total.failed else 0


def _settle(machine: Machine, results: Path) -> None:
    """Lets the machine trust whom this one trusts, and waits until it has started everything."""
    trusted = Path("/etc/ssl/certs/ca-certificates.crt")
    if trusted.exists():
        shutil.copyfile(trusted, results / trusted.name)
        machine.run(f"cp '{results / trusted.name}' /etc/ssl/certs/", 20)
    state = machine.run("systemctl is-system-running --wait; systemctl list-units --failed --no-legend", 60)
    kernel = machine.run("uname -r; cat /sys/fs/cgroup/cgroup.controllers; systemctl --version | head -1", 20)
    print(f"the machine is {state.output.strip()}: {' | '.join(kernel.output.splitlines())}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as missing:
        sys.exit(f"tests/vm/run: {missing}")
    except KeyboardInterrupt:
        os._exit(130)
