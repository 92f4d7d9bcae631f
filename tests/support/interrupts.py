"""Raises an exception at a chosen entry of a Python function, as a signal's handler can do.

CPython runs the handlers of signals when a function is entered, when a call has returned, and in loops. A trace
function makes the moment certain: it raises when the N-th function is entered, or a coroutine goes on after an await.
Generators do not count: the interpreter enters one that is freed, and only prints the exception then. Nor does the
import of modules, whose locks an exception leaves held.
"""

import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any


class HandlerError(Exception):
    """What the handler of a signal raises in these tests."""


class Interrupted:
    """What has become of a call.

    raised   whether the exception was raised at the chosen entry
    where    the file and the function of that entry
    result   what the call has returned, if it returned
    error    what it has raised, if it raised
    """

    def __init__(self) -> None:
        self.raised = False
        self.where = ""
        self.result: Any = None
        self.error: BaseException | None = None


def interrupt(call: Callable[[], Any], at: int, skip: Callable[[FrameType], bool] = lambda frame: False) -> Interrupted:
    """Make a call, and raise HandlerError at the entry number `at` (from 0 on) of a Python function in this thread.

    skip   whether the entry of a frame's function does not count
    """
    told = Interrupted()
    left = at

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event != "call" or code is call.__code__ or _is_passed_over(code) or skip(frame):
            return
        left -= 1
        if left < 0:
            sys.settrace(None)
            told.raised = True
            told.where = f"{code.co_filename.rpartition('/')[2]}:{code.co_qualname}"
            raise HandlerError(told.where)

    collecting = gc.isenabled()
    gc.disable()  # the interpreter only prints what its callbacks and finalizers raise
    sys.settrace(trace)
    try:
        told.result = call()
    except BaseException as error:
        told.error = error
    finally:
        sys.settrace(None)
        if collecting:
            gc.enable()
    return told


def _is_passed_over(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_GENERATOR) or code.co_filename.startswith("<frozen importlib")


def at_each_entry(call: Callable[[], Callable[[], Any]], **options: Any) -> Iterator[Interrupted]:
    """Interrupt a call at each of its entries, one after the other. `call` prepares a new call for each time."""
    at = 0
    while True:
        told = interrupt(call(), at, **options)
        if not told.raised:
            return
        yield told
        at += 1
