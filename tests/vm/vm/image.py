"""The machine's disk: Debian with systemd, its kernel and what the suites need, made from packages and kept below `target`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# The oldest release, and so the oldest kernel, that the suites run on.
RELEASE = "bookworm"
DISK_MB = 8192

PACKAGES = [
    # The machine.
    "dbus",
    "initramfs-tools",
    "kmod",
    "linux-image-amd64",
    "qemu-guest-agent",
    "systemd-sysv",
    "udev",
    # What the product uses.
    "ca-certificates",
    "curl",
    "iproute2",
    "nftables",
    "nodejs",
    "python3",
    "python3-pip",
    "python3-venv",
    # What the tests use.
    "binutils",
    "bsdutils",
    "procps",
    "python3-pytest",
    "python3-pytest-timeout",
]

# Modules of hardware that the machine does not have; most of the kernel's package.
HARDWARE = ["gpu", "media", "infiniband", "iio", "hwmon", "usb", "staging", "scsi", "net/ethernet", "net/wireless", "platform"]

# Modules of the kernel of User Mode Linux, by version.
UML_MODULES = Path("/usr/lib/uml/modules")

# Runs once, on the new file system, whose folder is the first argument.
CUSTOMIZE = """
set -eu
root=$1
echo pilot-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost pilot-vm\\n::1 localhost\\n' >"$root/etc/hosts"
printf '[Match]\\nName=e*\\n[Network]\\nDHCP=ipv4\\n' >"$root/etc/systemd/network/80-user.network"
# The resolver of QEMU's user-mode network.
rm -f "$root/etc/resolv.conf"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
# User Mode Linux has no virtio: there, the agent listens on a serial line.
cat >"$root/etc/systemd/system/agent-on-serial.service" <<'END'
[Unit]
ConditionVirtualization=uml
[Service]
ExecStart=/usr/sbin/qemu-ga --method=isa-serial --path=/dev/ttyS0
Restart=always
[Install]
WantedBy=multi-user.target
END
if [ -d /usr/lib/uml/modules ]; then
    cp -a /usr/lib/uml/modules/. "$root/lib/modules/"
fi
chroot "$root" systemctl enable --quiet systemd-networkd.service agent-on-serial.service
chroot "$root" systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer systemd-networkd-wait-online.service
"""


class Unavailable(Exception):
    """Something that this machine lacks, with what to install."""


@dataclass(frozen=True)
class Image:
    """The files that a hypervisor boots; User Mode Linux brings its own kernel. The disk is never written to."""

    disk: Path
    kernel: Path
    initrd: Path


def prepare(folder: Path) -> Image:
    """The image in this folder, made anew if what it is made of has changed."""
    image = Image(folder / "root.img", folder / "vmlinuz", folder / "initrd.img")
    versions = sorted(path.name for path in UML_MODULES.iterdir()) if UML_MODULES.is_dir() else []
    recipe = [RELEASE, str(DISK_MB), *PACKAGES, *HARDWARE, CUSTOMIZE, *versions]
    digest = hashlib.sha256("\n".join(recipe).encode()).hexdigest()
    done = folder / "complete"
    if done.exists() and done.read_text() == digest:
        return image
    for program, package in (("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs")):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed: apt-get install --no-install-recommends {package}")
    if os.geteuid() != 0:
        raise Unavailable("the image is made as root: the files in it belong to root")
    print(f"making the image of the machine from Debian's packages in {folder} (once)", flush=True)
    done.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="root-") as root:
        _install(Path(root))
        for found, name in (("vmlinuz", image.kernel), ("initrd.img", image.initrd)):
            (newest,) = Path(root, "boot").glob(f"{found}-*")
            shutil.copyfile(newest, name)
        # A sparse file; hypervisors write what changes into another one.
        image.disk.unlink(missing_ok=True)
        command = ["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1,root_owner=0:0", "-d", root]
        command += [str(image.disk), f"{DISK_MB}M"]
        subprocess.run(command, check=True)
    done.write_text(digest)
    return image


def _install(root: Path) -> None:
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--include=" + ",".join(PACKAGES)]
    command += [f"--dpkgopt=path-exclude=/lib/modules/*/kernel/drivers/{driver}/*" for driver in HARDWARE]
    command += ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(CUSTOMIZE)
        script.flush()
        command += [f'--customize-hook=sh {script.name} "$1"', RELEASE, str(root), *_sources()]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=1800)


def _sources() -> list[str]:
    """The lines of this machine's own package sources for the release; none: those of mmdebstrap."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({f"deb {line}" for line in listed if line.split()[1].startswith(RELEASE) and line.endswith(" main")})
