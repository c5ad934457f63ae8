"""A template: a process that has imported what its children need. After that it only forks.

`serve` returns only in a child. If the native loop (`forking/native.py`) can be loaded, it is used, and passes on the
messages that it does not support. The loop in this file polls the control channel and the pipe to which Python's C-level
signal handler writes. Therefore a SIGCHLD that arrives just before the system call wakes the loop too. Children are reaped
in this loop and not in the handler, so `exited` is never sent before `forked`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # C half of signal, in every CPython; mypy has no stub for it
import functools
import gc
import json
import os
import posix
import select
import sys
import time

from . import kernel, worker
from .forking import atfork, descriptors, findings, folders, forkable, huge_pages, native, opened
from .importing import imports, namesakes, process_state, setters, variables
from .interfaces import errors, handler, warmup
from .protocol.channel import Channel
from .protocol.control import Control, ForkRequest, RequestError, close_all
from .randomness import entropy, generators
from .sdk import hooks
from .spec import SpecError, TemplateSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional


# Of a report. The daemon takes fewer.
MODULES_MAX = 100

_new_poll = select.poll  # before user code replaces it, as gevent does


class Template:
    """One level of the tree. `function` is set when a handler has been loaded."""

    def __init__(self, control_fd: int, spec: Optional[TemplateSpec]) -> None:
        self.spec = spec
        self.function: Optional[handler.Function] = None
        self.bounding = kernel.bounding_capabilities()
        self.forked_ns = 0
        self._control = Control(control_fd)
        self._children: Dict[int, int] = {}
        self._own_pid_namespace = -1
        self._is_elsewhere = False  # the next child would be in another PID namespace than the template
        self._threads = 1
        self._must_not_fork = ""
        self._wakeup = (-1, -1)
        self._native: Optional[native.ForkServer] = None
        self.prepared: Optional[worker.Prepared] = None
        self._previous_sigchld: Any = _signal.SIG_DFL
        self._previous_mask: Any = ()

    def prepare(self) -> bool:
        """Imports what the specification says and reports `ready`. False: the process must exit, because the handler failed, or
        because its template must be forked from another one."""
        report: Dict[str, Any] = {"op": "ready", "threads": 1, "imports": [], "failed": []}
        timer = imports.ImportTimer()
        descriptors.begin()
        try:
            if self.spec is not None:
                imports.apply(self.spec)
                if self.spec.handler is not None:
                    why = variables.own_imports(self.spec) or namesakes.own_imports(self.spec)
                    if why:
                        self._leave_imports_to_another(why)
                        return False
                    namesakes.give_way(self.spec)
                with opened.Watch():
                    with timer, imports.SingleThreaded(), generators.Watch():
                        report["failed"] = self._import_declared()
                        if self.spec.handler is not None:
                            with variables.Changes(self._give_up):
                                self.function = handler.load(self.spec)
                    if self.function is not None:
                        hooks.run_before_snapshot()
        except BaseException as error:  # user code at import: everything that it raises is reported as its error
            report["error"] = json.loads(errors.body(error))
        imports.note_environment()
        kernel.flush_lines()  # or each worker would write what the import has left
        self._threads = report["threads"] = forkable.stop_threads(has_templates_below=self.function is None)
        report["imports"] = timer.slowest()
        found = findings.Report(descriptors.settle(self._threads))
        self._must_not_fork = descriptors.must_not_fork()
        if self._must_not_fork:
            report["must_not_fork"] = self._must_not_fork
        generators.collect()
        for row in generators.said():
            found.add(*row)
        report["findings"] = found.rows()
        report["python"] = sys.version.split()[0]
        self._native = self._load_native()
        report["native"] = self._native is not None
        report["wrote_files"] = self.function is not None and folders.are_used()
        report["modules"] = timer.direct[:MODULES_MAX] if self.function is not None else []
        self._freeze()
        self._make_huge()
        self._watch_children()
        self._control.send(report)
        return "error" not in report

    def _import_declared(self) -> List[Dict[str, str]]:
        assert self.spec is not None, "a template without one imports nothing"
        if not self.spec.imports:
            return []
        namesakes.begin_packages()
        try:
            with variables.Watch(), process_state.Watch():
                return imports.import_declared(self.spec.imports)
        finally:
            setters.imported(self.spec.sys_path)
            imports.note_packages(self.spec.sys_path)

    def _leave_imports_to_another(self, why: str) -> None:
        """Reports `ready` with the reason why this function's template must not be forked from one with packages."""
        report = {"op": "ready", "threads": 1, "imports": [], "failed": [], "python": sys.version.split()[0]}
        self._control.send({**report, "own_imports": why})

    def _give_up(self, why: str) -> NoReturn:
        """The same, in the middle of the import of the handler, which another template begins anew."""
        self._leave_imports_to_another(why)
        os._exit(1)

    def refuse(self, error: errors.Fault) -> None:
        """Reports `ready` with an error, instead of `prepare`: the isolation failed."""
        body = json.loads(errors.body(error))
        report = {"op": "ready", "threads": 1, "imports": [], "failed": [], "python": sys.version.split()[0], "error": body}
        self._control.send(report)

    def serve(self) -> Optional[ForkRequest]:
        """Handles messages. Returns, in a child, the request that created it; in the template, None when the daemon closes."""
        if self._native is not None:
            return self._serve_native(self._native)
        return self._serve_here()

    def _serve_native(self, server: native.ForkServer) -> Optional[ForkRequest]:
        """The native loop. Its workers do not return here."""
        prepared = self.prepared
        if prepared is None:
            return self._pass_messages(server, _not_a_worker)
        if prepared.event_loop is not None:
            request: Optional[ForkRequest] = prepared.run_event_loop(
                lambda: self._pass_messages(server, prepared.go_on, prepared.go_on_after_entropy)
            )
            return request
        become = prepared.run_with_descriptors if descriptors.has_work() else prepared.run
        if prepared.function.spec.secrets:
            become = prepared.run_with_secrets
        return self._pass_messages(server, become)

    def _pass_messages(self, server: native.ForkServer, *become: native.Become) -> Optional[ForkRequest]:
        """Handles the messages that the native loop passes on. Returns also in a worker that inherits an event loop."""
        while True:
            result = server.serve(*become)
            if result != native.MESSAGE:
                return None
            request = self._carry_out(*server.message())
            if request is not None:
                return request

    def _serve_here(self) -> Optional[ForkRequest]:
        poll = _new_poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup[0], select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._wakeup[0] in ready:
                self._reap()
            if self._control.fileno() in ready:
                received = self._control.receive()
                if received is None:
                    return None
                request = self._carry_out(*received)
                if request is not None:
                    return request

    def _carry_out(self, text: bytes, fds: List[int]) -> Optional[ForkRequest]:
        message: Dict[str, Any] = {}
        try:
            message = _object(text)
            if message.get("op") == "fork":
                return self._fork(ForkRequest(message, fds, self.spec))
            close_all(fds)
            if message.get("op") == "memory":
                self._freeze()
            else:
                raise RequestError(f"op is {message.get('op')!r}, not one of fork, memory")
        except (RequestError, SpecError) as error:
            close_all(fds)
            self._fail(message.get("id", 0), error)
        return None

    def _fork(self, request: ForkRequest) -> Optional[ForkRequest]:
        try:
            if self._threads > 1:
                raise OSError(f"this template has {self._threads} threads and must not fork")
            if self._must_not_fork:
                raise OSError(f"this template must not fork: it {self._must_not_fork}")
            self._enter_pid_namespace(request.pid)
            entropy.before_fork()
            child = posix.fork()
            if child == 0:
                entropy.after_fork()
        except OSError as error:
            request.close()
            self._fail(request.id, error)
            return None
        if child == 0:
            self.forked_ns = time.monotonic_ns()
            self._leave()
            return request
        if self._native is not None:
            self._native.track(child, request.id)
        else:
            self._children[child] = request.id
        self._control.send({"op": "forked", "id": request.id})
        request.close()
        return None

    def _leave(self) -> None:
        """In the child: closes what belongs only to the template."""
        if self._native is not None:
            self._native.leave()
        else:
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, self._previous_sigchld)  # without signal's enumerations: 60 page faults
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._previous_mask)
        self._control.close()
        for fd in (*self._wakeup, self._own_pid_namespace):
            if fd >= 0:
                posix.close(fd)

    def _enter_pid_namespace(self, fd: int) -> None:
        """The setting applies only to children, and remains. For a child without a PID namespace, it is set back."""
        if self._native is not None:
            self._is_elsewhere = self._native.is_elsewhere()
        if fd >= 0:
            self._pid_namespace()
            kernel.setns(fd, kernel.CLONE_NEWPID)
            self._is_elsewhere = True
            if self._native is not None:
                self._native.entered_pid_namespace(False)
        elif self._is_elsewhere:
            kernel.setns(self._pid_namespace(), kernel.CLONE_NEWPID)
            self._is_elsewhere = False
            if self._native is not None:
                self._native.entered_pid_namespace(True)

    def _pid_namespace(self) -> int:
        if self._own_pid_namespace < 0:
            self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        return self._own_pid_namespace

    def _fail(self, fork_id: object, error: Exception) -> None:
        self._control.send({"op": "fork_failed", "id": fork_id, "error": f"{type(error).__name__}: {error}"})

    def _load_native(self) -> Optional[native.ForkServer]:
        """Loaded also in a template that must not fork: the loop then answers fork requests with an error."""
        library = _native_library()
        if library is None or self._threads > 1 or self._must_not_fork or not native.has_room():
            return None
        try:
            server = native.ForkServer(library, self._control.fileno(), self.spec, self.bounding)
        except OSError:
            return None
        if self.function is not None:
            # A socket object needs an open descriptor. Which descriptor it is now does not matter.
            os.dup2(self._control.fileno(), server.channel_fd)
            self.prepared = worker.Prepared(Channel(server.channel_fd), self.function)
            posix.close(server.channel_fd)
            warmup.run(self.function)
            if self.prepared.event_loop is not None:
                server.renew_event_loop(self.prepared.event_loop.descriptors)
                atfork.expect_workers(server.is_child, self.prepared.channel)
            if self.prepared.can_say_ready_at_once():
                server.say_ready()
                self.prepared.has_said_ready = True
                if self.prepared.loop is not None:
                    server.call_loop(*self.prepared.loops())
                    atfork.expect_workers(server.is_child, self.prepared.channel)
            else:
                warmup.warm_up(lambda channel: worker.ready(channel, worker.Stamps(0, 0)))
        return server

    def _watch_children(self) -> None:
        """Called after the imports, because user code may have set a handler for SIGCHLD. Children get that handler back.

        From now on, SIGINT is blocked, which a process that the import has left behind can send: no KeyboardInterrupt is raised
        in the loop. Children get the mask from before; the native loop has already kept it for them."""
        self._previous_mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGINT,))
        if self._native is not None:
            return  # the native loop does this itself
        self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        self._previous_sigchld = _signal.signal(_signal.SIGCHLD, _ignore_signal)

    def _reap(self) -> None:
        try:
            os.read(self._wakeup[0], 512)
        except BlockingIOError:
            pass
        while True:
            try:
                child, status = posix.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            fork_id = self._children.pop(child, None)
            if fork_id is None:
                continue  # not forked by us: user code started it at import, or it is an orphan of this PID namespace
            how = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
            self._control.send({"op": "exited", "id": fork_id, **how})

    def _make_huge(self) -> None:
        """Of a template above functions, now: its children share the pages. Of a function's, when nobody waits for a worker."""
        spans = huge_pages.spans()
        if self.function is None:
            huge_pages.collapse(spans)
            huge_pages.note_inherited()
        elif self._native is not None:
            self._native.make_huge(spans)

    def _freeze(self) -> None:
        """Excludes all objects from garbage collection, so that a collection in a child does not write to shared pages."""
        gc.collect()
        gc.freeze()
        kernel.release_free_memory()


def _not_a_worker(forked_ns: int, sandboxed_ns: int, problem: str) -> NoReturn:
    os._exit(1)  # a request for a worker of a template without a function


@functools.cache
def _native_library() -> Any:
    return native.load()


def _object(text: bytes) -> Dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise RequestError(f"message is not JSON, or was cut off: {error}") from error
    if not isinstance(message, dict):
        raise RequestError("message is not an object")
    return message


def _ignore_signal(number: int, frame: object) -> None:
    """Python writes to the wake-up pipe only if a Python-level handler exists."""
