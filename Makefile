# The usual commands. `make` lists them. The scripts do the work.

.DEFAULT_GOAL := help
.PHONY: help run test build lint bench fidelity chaos fuzz vm arm64 package

help:
	@echo 'make run     build the release, start the daemon on 127.0.0.1:8080, deploy the examples, call one; Ctrl-C stops it'
	@echo '             PILOT_LISTEN=127.0.0.1:9090 make run: on another address'
	@echo 'make test    install what the tests need, and run all of them'
	@echo 'make fidelity  forked workers with real packages: 20 bursts of 200 workers, 1,000 calls on each connection, 100 packages (25 minutes)'
	@echo 'make chaos    faults under load with an oracle: five seeds of two minutes, as root; CHAOS="--seed 7" make chaos: one of them'
	@echo 'make fuzz     each fuzz target for a minute with libFuzzer; FUZZ="--seconds 600 heads" make fuzz: one target, ten minutes'
	@echo 'make vm      the package, its systemd units and the suites in a virtual machine with cgroup v2, as root'
	@echo 'make arm64   everything built for 64-bit ARM, and its unit tests in an emulator'
	@echo 'make lint    formatting, clippy, licences, ruff and mypy alone'
	@echo 'make build   the release binary: target/release/pilot'
	@echo 'make package  a Debian package and a tar archive with a static binary, in target/package; debug symbols beside them'
	@echo 'make bench   Pilotlight beside uvicorn, gunicorn and a fresh interpreter, in one run'

run:
	@scripts/run

test:
	@scripts/test

lint:
	@scripts/test fmt clippy deny ruff ruff-format mypy

build:
	cargo build --release --locked -p pilot

bench:
	cargo build --release --locked -p pilot
	bench/peers/run --json target/peers.json

fidelity:
	@PILOT_FIDELITY_RUNS=20 PILOT_FIDELITY_PACKAGES=all scripts/test build fidelity

chaos:
	cargo build --locked -p pilot
	tests/chaos/run $(or $(CHAOS),--seed 1 --seed 2 --seed 3 --seed 4 --seed 5)

fuzz:
	@scripts/fuzz $(FUZZ)

vm:
	@scripts/test build vm

arm64:
	@scripts/test arm64

package:
	@scripts/package
