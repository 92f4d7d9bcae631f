"""Starts daemon threads, so that an exception of a signal's handler leaves no doubt whether the thread runs.

threading.Thread.start() waits for the new thread, and a handler may raise meanwhile. The caller then has to know
whether to give back what the thread uses, or to leave that to the thread.
"""

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ThreadStart"]


class ThreadStart:
    """A daemon thread that calls `function(*arguments)` once, or never: `begun` says which when start() has ended."""

    def __init__(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        # One key, which the thread or a failed start() sets: setdefault() is one step for threads and for handlers.
        self._fate: dict[str, bool] = {}
        self._calls = [(function, arguments)]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raise RuntimeError if there can be no more, and exceptions of handlers."""
        try:
            self._thread.start()
        except BaseException:
            if not self._fate.setdefault("begun", False):
                self._calls.clear()  # nothing is kept alive
            raise

    @property
    def begun(self) -> bool:
        """Whether the function is called, or was. After start() has raised: False, it never will be."""
        return self._fate.get("begun", False)

    @property
    def ident(self) -> int | None:
        """The identity of the thread; None: it was not started."""
        return self._thread.ident

    def is_alive(self) -> bool:
        """Return whether the thread was started and has not ended. False in a forked child."""
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the end of the thread, if it was started."""
        if self.begun:
            self._thread.join(timeout)

    def is_current(self) -> bool:
        """Return whether this is the calling thread."""
        return self._thread is threading.current_thread()

    def _run(self) -> None:
        if self._fate.setdefault("begun", True):
            function, arguments = self._calls.pop()
            function(*arguments)
