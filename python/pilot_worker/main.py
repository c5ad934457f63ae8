"""The life of a process: it is a template first; each child becomes what its fork request says.

A child returns to this file after the fork, so that it does not keep the Python frames of its ancestors.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time

from . import flags, kernel, output, worker
from .forking import code_pages, descriptors, folders, fork, parent
from .protocol.channel import Channel
from .sdk import hooks, sentry
from .spec import TemplateSpec
from .template import Template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NoReturn

    from .protocol.control import ForkRequest

FIRST_FD = 3
SPEC_FD = 4
ROLES = ("template", "function", "worker")
USAGE = "usage: python3 -I -S pilot_worker template|function|worker   (started by the daemon; see PROTOCOL.md)"

# Nearly every function imports these. The first template imports them, so all workers of the machine share one copy.
_PREIMPORTED = ("base64", "datetime", "json", "random", "re", "traceback", "urllib.parse", "uuid")


def run(argv: List[str], started_ns: int) -> NoReturn:
    role = argv[1] if len(argv) == 2 else ""
    if role not in ROLES:
        print(USAGE, file=sys.stderr)
        os._exit(2)
    # Until user code is imported (`imports.apply`): there is nothing to clean up, and a traceback would not help.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    output.prepare()
    flags.show_ordinary()
    faulthandler.enable()
    hooks.offer()
    sentry.offer()
    for arguments in (sys.argv, getattr(sys, "orig_argv", [role])):  # the latter since Python 3.10
        del arguments[arguments.index(role) :]
    if role == "worker":
        _name_what_site_names()
        _run_alone(started_ns)
    parent.offer()
    _name_what_site_names()
    for name in _PREIMPORTED:
        __import__(name)
    code_pages.share()
    _run_template(_begin_function() if role == "function" else Template(FIRST_FD, None))


def _name_what_site_names() -> None:
    """Defines `exit` and similar names, and nothing else of `site`. With -S, the host's packages cannot be imported, and
    the host's .pth files, which may import anything, are not run."""
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()


def _run_template(template: Template) -> NoReturn:
    while template.prepare():
        request = template.serve()
        if request is None:
            os._exit(0)
        if request.role == "worker":
            _run_forked(template, request)
        template = _become_template(template, request)
    os._exit(1)


def _become_template(parent: Template, request: ForkRequest) -> Template:
    assert request.spec is not None, "checked when the request was read"
    template = Template(request.take_channel(), request.spec)
    written = folders.written()
    try:
        fork.join(request)
        fork.confine(request.spec, "template", parent.bounding)
    except fork.SandboxError as error:
        template.refuse(error)
        os._exit(1)
    folders.carry_over(written)
    if descriptors.has_work():
        descriptors.in_child(is_template=True)
    return template


def _begin_function() -> Template:
    """The template of a function that has variables which an interpreter reads only when it starts: it is started by exec."""
    try:
        spec = _read_spec()
    except (OSError, ValueError) as error:
        Template(FIRST_FD, None).refuse(fork.SandboxError(f"cannot read the specification: {error}"))
        os._exit(1)
    template = Template(FIRST_FD, spec)
    try:
        fork.confine(spec, "template", template.bounding)
    except fork.SandboxError as error:
        template.refuse(error)
        os._exit(1)
    return template


def _read_spec() -> TemplateSpec:
    with open(SPEC_FD, "rb") as file:
        return TemplateSpec(json.loads(file.read()))


def _run_forked(template: Template, request: ForkRequest) -> NoReturn:
    channel = Channel(request.take_channel())
    spec = request.spec or template.spec
    assert spec is not None, "checked when the request was read"
    try:
        fork.join(request)
        # With a specification, it may have entered a user namespace.
        bounding = template.bounding if request.spec is None else kernel.bounding_capabilities()
        fork.confine(spec, "worker", bounding)
    except fork.SandboxError as error:
        worker.fail(channel, error)
    stamps = worker.Stamps(template.forked_ns, time.monotonic_ns())
    worker.run(channel, template.function if request.spec is None else None, spec, stamps)


def _run_alone(started_ns: int) -> NoReturn:
    """A worker that was started by exec. It has no template, so it has nothing to join."""
    channel = Channel(FIRST_FD)
    try:
        spec = _read_spec()
        fork.confine(spec, "worker", kernel.bounding_capabilities())
    except (OSError, ValueError, fork.SandboxError) as error:
        worker.fail(channel, error)
    worker.run(channel, None, spec, worker.Stamps(started_ns, time.monotonic_ns()))
