"""Runs callbacks that were added in an asyncio event loop in that loop, as asyncio's own futures do."""

import contextvars
import sys
from typing import Any


class LoopCallback:
    """Calls `function` in `loop`. Compares equal to `function`, so that `remove_done_callback` finds it."""

    __slots__ = ("context", "function", "loop")

    def __init__(self, function: Any, loop: Any, context: Any) -> None:
        self.function, self.loop, self.context = function, loop, context

    def __call__(self, future: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(self.function, future, context=self.context)
        except RuntimeError:
            pass  # the loop is closed; it would not call callbacks of asyncio's futures either

    def __eq__(self, other: object) -> bool:
        return bool(self.function == (other.function if isinstance(other, LoopCallback) else other))

    __hash__ = None  # type: ignore[assignment]


def in_running_loop(function: Any, context: Any = None) -> Any:
    """Return `function`, or a LoopCallback for it if an event loop runs in this thread.

    context   in which the loop calls the function; None: a copy of the present one
    """
    events = sys.modules.get("asyncio.events")  # a program that has not imported asyncio has no loop
    loop = None if events is None else events._get_running_loop()
    if loop is None:
        return function
    return LoopCallback(function, loop, contextvars.copy_context() if context is None else context)
