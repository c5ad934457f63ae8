"""Packages behave alike in a forked worker, in a fresh interpreter, and with awslambdaric outside (SPECIFICATION, START-19).

`PILOT_FIDELITY_PACKAGES` says which: `often` (the default), `all`, or names with commas. After a run with `all` that compared every
package, the results are written to `results/packages.json`, and docs/packages.md is made from them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import table
from comparison import OF_ONE_INVOCATION
from known import DIFFERENCES, NOT_FORKED, UNSTEADY
from measured import Measured, measure
from packages import OFTEN, PACKAGES, PLAIN, STANDARD_LIBRARY, Package
from pilot_daemon import Daemon

CHOSEN = os.environ.get("PILOT_FIDELITY_PACKAGES", "often")
# pip uses one core. More at once would disturb the measurement of cold starts.
AT_ONCE = 2


def chosen() -> list[Package]:
    every = [STANDARD_LIBRARY, *PACKAGES]
    if CHOSEN == "often":
        return OFTEN
    if CHOSEN == "all":
        return every
    names = CHOSEN.lower().split(",")
    found = [package for package in every if package.name.lower() in names]
    assert len(found) == len(names), f"PILOT_FIDELITY_PACKAGES: {CHOSEN}: known are {', '.join(one.name for one in every)}"
    return found


class Measurements:
    """Packages are measured in advance, while the tests compare earlier ones."""

    def __init__(self, daemon: Daemon, home: Path) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures = {one.name: self._pool.submit(measure, daemon, one, home) for one in (PLAIN, *chosen())}

    def of(self, package: Package) -> Measured:
        future: Future[Measured] = self._futures[package.name]
        return future.result()

    def finished(self) -> list[Measured]:
        """Those that could be measured."""
        return [self._futures[one.name].result() for one in chosen() if self._futures[one.name].exception() is None]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


@pytest.fixture(scope="module")
def measurements(daemon: Daemon) -> Iterator[Measurements]:
    home = Path(tempfile.mkdtemp(prefix="pilot-packages-"))
    measurements = Measurements(daemon, home)
    try:
        yield measurements
    finally:
        measurements.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("package", chosen(), ids=lambda package: package.name)
def test_a_package_behaves_alike_in_all_three(measurements: Measurements, package: Package) -> None:
    measured, plain = measurements.of(package), measurements.of(PLAIN)
    reason = NOT_FORKED.get(package.name)
    assert measured.is_forkable == (reason is None), f"{measured.reason} {measured.findings}"
    assert not measured.repeated()
    known = DIFFERENCES.get(package.name, {})
    unsteady = UNSTEADY.get(package.name, {})
    found = [one for one in measured.differences(plain) if one.aspect not in unsteady]
    unknown = [str(one) for one in found if one.aspect not in known]
    assert not unknown, "\n".join(unknown)
    gone = set(known) - {one.aspect for one in found}
    if os.cpu_count() == 1:
        gone -= {"threads before"}  # numerical libraries start no thread then
    assert not gone, f"known.py lists differences that there are not: {sorted(gone)}"


def test_a_function_without_packages_has_the_same_surroundings(measurements: Measurements) -> None:
    plain = measurements.of(PLAIN)
    for when in ("before", "after"):
        forked, off = plain.forked.answer[when], plain.off.answer[when]
        for name in OF_ONE_INVOCATION:
            assert forked["environment"].pop(name) != off["environment"].pop(name)
        assert forked == off
    assert plain.forked.error["stackTrace"] == plain.outside.error["stackTrace"]


@pytest.mark.skipif(CHOSEN != "all", reason="only after a run with all packages")
def test_nine_of_ten_packages_fork(measurements: Measurements) -> None:
    found = measurements.finished()
    packages = [one for one in found if one.package in PACKAGES]
    assert len(packages) == len(PACKAGES) >= 100, "some packages could not be measured"
    assert sum(one.is_forkable for one in packages) >= 0.9 * len(packages)
    table.write(found, measurements.of(PLAIN))


def test_the_table_shows_the_stored_results() -> None:
    assert table.DOCUMENT.read_text() == table.document(table.stored())
