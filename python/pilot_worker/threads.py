"""Serves several frames at the same time with threads: event handlers and WSGI applications with concurrency above 1.

The main thread reads. A new thread is started if all others are busy, up to `concurrency` threads. The daemon sends at most
that many requests at a time, which limits the queue. If user code has replaced threads, as gevent does, these are green ones.
"""

from __future__ import annotations

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
    `fail` gets what `call` raised, and must end the process."""

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
        self._frames: queue.SimpleQueue[wire.Frame] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def serve(self, channel: Channel) -> None:
        """Serves until the daemon closes the channel. Running invocations are then abandoned: their callers are gone."""
        are_green = threads_are_green()
        while True:
            if are_green:
                channel.wait_for_green_threads()
            frame: Optional[wire.Frame] = channel.read()
            if frame is None:
                return
            if frame[0] in (wire.CANCEL, wire.WINDOW):
                if self._told is not None:
                    kind, stream, _, body = frame
                    self._told(kind, stream, body)
                continue
            if not self._idle.acquire(blocking=False) and self._started < self._threads_max:
                self._started += 1
                threading.Thread(target=self._work, name=f"invocation-{self._started}", daemon=True).start()
            self._frames.put(frame)

    def _work(self) -> None:
        try:
            while True:
                self._call(*self._frames.get())
                self._idle.release()
        except BaseException as error:  # SystemExit of a handler, or the channel was closed
            self._fail(error)
