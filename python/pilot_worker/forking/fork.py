"""What a child does between the fork and its first own work (PROTOCOL.md, section 3, steps 1 to 4).

All of it is in this file, so that it can be reviewed in one piece. The template has prepared everything that can be prepared
(the parsed specification, ctypes structures, the bounding set). After an OSError from here, the child must not continue.
"""

from __future__ import annotations

import os

from .. import kernel
from ..interfaces.errors import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from ..protocol.control import ForkRequest
    from ..spec import TemplateSpec

# A template needs these to put its children into namespaces and to change their uid. It keeps no other capability.
KEPT_BY_TEMPLATES = sum(
    1 << capability
    for capability in (
        kernel.CAP_SETGID,
        kernel.CAP_SETUID,
        kernel.CAP_SETPCAP,
        kernel.CAP_SYS_CHROOT,
        kernel.CAP_SYS_ADMIN,
    )
)


class SandboxError(Fault):
    """A step of the isolation failed. The message names the step."""

    def __init__(self, message: str) -> None:
        super().__init__("Runtime.SandboxError", message)


def join(request: ForkRequest) -> None:
    """Step 2: process group, log, cgroups and namespaces. Closes every descriptor of the request except its channel."""
    step = "process group"
    try:
        # kill(0, …) would reach the template and all its children: process groups are not limited to PID namespaces (kill(2)).
        os.setpgid(0, 0)
        if request.log >= 0:
            os.dup2(request.log, 1)
            os.dup2(request.log, 2)
        step = "cgroup"
        for fd in request.cgroups:
            os.write(fd, b"0")
        step = "namespace"
        for fd in request.namespaces:
            kernel.setns(fd, 0)
    except OSError as error:
        raise SandboxError(f"cannot enter the {step}: {error}") from error
    finally:
        request.close()


def confine(spec: TemplateSpec, role: str, bounding: List[int]) -> None:
    """Steps 2 (directory), 3 and 4: drop privileges. A step comes before the privilege that it needs is dropped."""
    step = f"change to the directory {spec.cwd}"
    try:
        if spec.cwd is not None:
            os.chdir(spec.cwd)
        keeps = role == "template" and spec.keep_caps
        kept = kernel.permitted_capabilities() & KEPT_BY_TEMPLATES if keeps else 0
        if keeps:
            # Whoever enters a user namespace has every capability there.
            bounding = [held for held in kernel.bounding_capabilities() if not 1 << held & KEPT_BY_TEMPLATES]
        _empty_bounding_set(bounding)
        step = f"take uid {spec.uid} and gid {spec.gid}"
        _take_ids(spec, keeps)
        step = "drop capabilities"
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
        kernel.set_capabilities(kept)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if role == "worker":
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
            if spec.filter is not None:
                step = "install the filter"
                spec.filter.install()
    except OSError as error:
        raise SandboxError(f"cannot {step}: {error}") from error


def _empty_bounding_set(bounding: List[int]) -> None:
    """Without CAP_SETPCAP the set stays. With no_new_privs this is harmless, because exec adds no privilege."""
    try:
        for capability in bounding:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    except PermissionError:
        pass


def _take_ids(spec: TemplateSpec, keeps_capabilities: bool) -> None:
    if spec.uid is None and spec.gid is None:
        return
    try:
        os.setgroups([])
    except PermissionError:
        pass  # no CAP_SETGID, or a user namespace that denies it (user_namespaces(7)): then there is nothing to drop
    if spec.gid is not None and os.getresgid() != (spec.gid,) * 3:
        os.setresgid(spec.gid, spec.gid, spec.gid)
    if spec.uid is not None and os.getresuid() != (spec.uid,) * 3:
        if keeps_capabilities:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setresuid(spec.uid, spec.uid, spec.uid)
        if keeps_capabilities:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 0)  # workers inherit it
