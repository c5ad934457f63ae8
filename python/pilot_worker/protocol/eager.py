"""A task that begins at once, within the call that creates it: an eager task of Python 3.12, for older versions too.

If the application of a request never waits, the request is complete when `start` returns. The loop has nothing to do for it.
"""

from __future__ import annotations

import asyncio
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Coroutine, List, Tuple

    Work = Coroutine[Any, Any, None]

if sys.version_info >= (3, 12):

    def start(work: Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def start(work: Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """A new task asks its loop to call its first step soon. This function intercepts that and calls the step at once."""
        if asyncio.current_task(loop) is not None:  # a patched loop that runs within itself
            return asyncio.Task(work, loop=loop)
        asked: List[Tuple[Callable[..., object], Any]] = []

        def call_soon(step: Callable[..., object], *, context: Any) -> None:
            asked.append((step, context))

        loop.call_soon = call_soon  # type: ignore[method-assign,assignment]
        try:
            task = asyncio.Task(work, loop=loop)
        finally:
            del loop.call_soon
        step, context = asked[0]
        context.run(step)
        return task
