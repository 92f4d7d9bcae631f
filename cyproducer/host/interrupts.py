"""Distinguishes exceptions of signal handlers, which any step of Python code can raise, from system call errors."""

import functools
import inspect
import signal
from types import CodeType
from typing import Any

__all__ = ["pass_on"]


def pass_on(error: BaseException) -> None:
    """Raise `error` again if a signal's handler raised it. Return if a system call failed.

    A handler may raise any OSError, most often TimeoutError, while this package is in a system call. Such an error
    does not come from the kernel and is for the caller. The traceback distinguishes the two: it contains a frame of
    one of the present handlers. (The innermost frame says less: a library may wrap or replace a system call.)
    """
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code in handlers:
            raise error
        entry = entry.tb_next


def _code(handler: Any) -> CodeType | None:
    """Return the code that runs first when a signal's handler is called, or None if it is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not inspect.isroutine(handler):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)
