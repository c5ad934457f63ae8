"""Serves several frames at the same time with threads: event handlers and WSGI applications with concurrency above 1.

The main thread reads. A new thread is started if all others are busy, up to `concurrency` threads. The daemon sends at most
that many requests at a time, which limits the queue. If user code has replaced threads, as gevent does, these are green ones.

A process that user code forks has only the thread that has forked it, but all green threads: its copy of the main one then must
not end it while others run.
"""

from __future__ import annotations

import _socket
import queue
import threading

from . import wire
from .channel import threads_are_green

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

    from .channel import Channel


class Pool:
    """Threads that answer frames with `call`. `told` gets kind, stream and body of frames about responses, if there can be any.
    `fail` gets what `call` raised in a process that user code has forked, and must end that process."""

    def __init__(
        self,
        threads_max: int,
        call: Callable[[int, int, bytes, bytes], None],
        told: Optional[Callable[[int, int, bytes], None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._threads_max = threads_max
        self._call = call
        self._told = told
        self._fail = fail
        self._frames: queue.SimpleQueue[Optional[wire.Frame]] = queue.SimpleQueue()  # None: end
        self._idle = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        self._started = 0
        self._raised: Optional[BaseException] = None

    def serve(self, channel: Channel) -> None:
        """Serves until the daemon closes the channel. Running invocations are then abandoned: their callers are gone.

        Raises what a call has raised: SystemExit of a handler, or that the channel is closed. Only the main thread can wait for
        all others, as at the end of the interpreter."""
        self._channel = channel
        try:
            self._read(channel)
        finally:
            if self._raised is not None:
                raise self._raised

    def _read(self, channel: Channel) -> None:
        are_green = threads_are_green()
        while True:
            if are_green:
                channel.wait_for_green_threads()
            frame: Optional[wire.Frame] = channel.read()
            if frame is None:
                if channel.is_left:
                    self._wait_for_calls()
                return
            if frame[0] in (wire.CANCEL, wire.WINDOW):
                if self._told is not None:
                    kind, stream, _, body = frame
                    self._told(kind, stream, body)
                continue
            if not self._idle.acquire(blocking=False) and self._started < self._threads_max:
                self._started += 1
                thread = threading.Thread(target=self._work, name=f"invocation-{self._started}", daemon=True)
                thread.start()
                if not are_green:
                    # Threads that a handler starts inherit it. They are waited for at the end, and this one is not.
                    thread._daemonic = False  # type: ignore[attr-defined]
            self._frames.put(frame)

    def _wait_for_calls(self) -> None:
        """In a process that user code has forked: what runs ends itself where it would answer."""
        for _ in range(self._started):
            self._frames.put(None)
        for _ in range(self._started):
            self._ended.acquire()

    def _work(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                self._call(*frame)
                self._idle.release()
        except BaseException as error:
            # In a process that user code has forked, this is the thread that has forked it.
            if threading.current_thread() is threading.main_thread():
                self._fail(error)
            if not self._channel.is_left:
                self._raised = error
                self._channel.socket.shutdown(_socket.SHUT_RD)  # the main thread reads the end
        self._ended.release()
