"""What runs the machine: QEMU with KVM, User Mode Linux, or QEMU's emulation. Each has a command, a socket to the guest agent, and its
own way to show a folder."""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vm.image import Image, Unavailable

# Mappings that a process of the host must be allowed for the largest process of the tests, with 4 KiB each: 4 GiB.
MAPPINGS_MIN = 1 << 20


@dataclass(frozen=True)
class Share:
    """A folder that the machine sees at the same path. QEMU shows the owner of files in one that can be written to to the machine
    alone."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class Hardware:
    """What the machine has. `folder`: for the hypervisor's own files, such as the console's log."""

    image: Image
    shares: list[Share]
    folder: Path
    cpus: int
    memory_mb: int

    @property
    def console(self) -> Path:
        return self.folder / "console.log"


class Hypervisor(Protocol):
    """`name`: as on the command line. `what`: for the output. `patience`: the factor by which the limits of time are longer in it."""

    name: str
    what: str
    patience: int

    def missing(self) -> str | None:
        """Why it cannot be used here, if so, and what to do."""

    def short_of(self) -> str | None:
        """What this host gives too little of, if so: what then fails in the machine, and what to do."""

    def command(self, hardware: Hardware) -> list[str]:
        """Runs the machine in the foreground."""

    def inherited(self) -> list[int]:
        """The descriptors that the command needs."""

    def agent(self) -> socket.socket:
        """A connection to the guest agent, which perhaps does not run yet. Raises OSError while there is none."""

    def mount(self, number: int, share: Share) -> str:
        """A script of the shell that mounts a share in the machine."""

    def close(self) -> None:
        """Removes what it has made."""


class Qemu:
    """QEMU, with KVM or as an emulator."""

    def __init__(self, folder: Path, emulated: bool) -> None:
        self.name = "emulated" if emulated else "kvm"
        self.what = "QEMU's emulation" if emulated else "KVM"
        self.emulated = emulated
        # At least this much slower.
        self.patience = 15 if emulated else 1
        self.socket_path = folder / "agent.sock"

    def missing(self) -> str | None:
        if shutil.which("qemu-system-x86_64") is None:
            return "qemu-system-x86_64 is not installed: apt-get install --no-install-recommends qemu-system-x86"
        if not self.emulated and not _kvm_works():
            return "KVM does not work here: it needs /dev/kvm, and a processor with vmx or svm"
        return None

    def short_of(self) -> str | None:
        return None

    def command(self, hardware: Hardware) -> list[str]:
        self.socket_path.unlink(missing_ok=True)
        # A machine that is itself virtual often offers this register and refuses to set it.
        accelerator = ["-accel", "kvm", "-cpu", "host,arch-capabilities=off"]
        if self.emulated:
            accelerator = ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", *accelerator]
        command += ["-smp", str(hardware.cpus), "-m", str(hardware.memory_mb)]
        command += ["-kernel", str(hardware.image.kernel), "-initrd", str(hardware.image.initrd)]
        command += ["-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=no panic=1", "-no-reboot"]
        command += ["-chardev", f"file,id=console,path={hardware.console}", "-serial", "chardev:console"]
        command += ["-drive", f"file={hardware.image.disk},format=raw,if=virtio,snapshot=on,cache=unsafe"]
        command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"]
        command += ["-chardev", f"socket,id=agent,path={self.socket_path},server=on,wait=off", "-device", "virtio-serial"]
        command += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
        for number, share in enumerate(hardware.shares):
            model = "mapped-xattr" if share.writable else "none,readonly=on"
            command += ["-fsdev", f"local,id=share{number},path={share.path},multidevs=remap,security_model={model}"]
            command += ["-device", f"virtio-9p-pci,fsdev=share{number},mount_tag=share{number}"]
        return command

    def inherited(self) -> list[int]:
        return []

    def agent(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1)
        try:
            connection.connect(str(self.socket_path))
        except OSError:
            connection.close()
            raise
        return connection

    def mount(self, number: int, share: Share) -> str:
        cache = "none" if share.writable else "loose,ro"
        return f"mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache={cache} share{number} '{share.path}'"

    def close(self) -> None:
        self.socket_path.unlink(missing_ok=True)


class UserModeLinux:
    """The kernel as a process, from Debian's package `user-mode-linux`. It needs no KVM, and programs run at the processor's own speed;
    what is slower are system calls and page faults. It has one processor and no network."""

    name = "uml"
    what = "User Mode Linux"
    patience = 4

    def __init__(self) -> None:
        self.ours, self.machines = socket.socketpair()

    def missing(self) -> str | None:
        if shutil.which("linux.uml") is None:
            return "linux.uml is not installed: apt-get install --no-install-recommends user-mode-linux"
        return None

    def short_of(self) -> str | None:
        # Each page of a process in the machine is a mapping of a process here, as far as neighbouring ones cannot be merged. Beyond the
        # limit the machine's kernel kills the process, and no counter of the machine says so.
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
        if allowed >= MAPPINGS_MIN:
            return None
        return (
            f"vm.max_map_count is {allowed}: User Mode Linux kills processes of more than about {allowed * 4 >> 10} MB, so that tests of "
            f"memory limits fail. Set it for the time of the run: sysctl -w vm.max_map_count={MAPPINGS_MIN}"
        )

    def command(self, hardware: Hardware) -> list[str]:
        # What the machine writes goes into this file, and the disk stays as it is.
        changes = hardware.folder / "changes.cow"
        changes.unlink(missing_ok=True)
        return [
            # Its processes do not end with it, but with the first process of their namespace.
            *["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
            *["sh", "-c", 'exec "$@" >"$0" 2>&1', str(hardware.console)],
            "linux.uml",
            f"mem={hardware.memory_mb}M",
            f"ubd0={changes},{hardware.image.disk}",
            "root=/dev/ubda",
            "rw",
            "con=null",
            "con0=null,fd:1",
            "ssl=null",
            f"ssl0=fd:{self.machines.fileno()}",
            "quiet",
            "systemd.show_status=no",
            "panic=1",
        ]

    def inherited(self) -> list[int]:
        return [self.machines.fileno()]

    def agent(self) -> socket.socket:
        return self.ours.dup()

    def mount(self, number: int, share: Share) -> str:
        return f"mount -t hostfs -o '{'' if share.writable else 'ro,'}{share.path}' share{number} '{share.path}'"

    def close(self) -> None:
        self.ours.close()
        self.machines.close()


def choose(name: str | None, folder: Path) -> Hypervisor:
    """The one of this name, or the fastest that works here."""
    known: list[Hypervisor] = [Qemu(folder, emulated=False), UserModeLinux(), Qemu(folder, emulated=True)]
    wanted = [one for one in known if name in (None, one.name)]
    reasons = []
    for one in wanted:
        reason = one.missing()
        if reason is None:
            return one
        reasons.append(reason)
    raise Unavailable("; ".join(reasons))


def _kvm_works() -> bool:
    """Whether an unchanged kernel runs with KVM. There are also modules (kvm_pvm) that run only kernels made for them; they offer
    `/dev/kvm` on a processor without the extensions."""
    extensions = re.search(r"^flags\s*:.*\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return extensions is not None and os.access("/dev/kvm", os.R_OK | os.W_OK)
