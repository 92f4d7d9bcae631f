"""Raises an exception at a chosen moment of a call, as a signal's handler can do.

CPython runs the handlers of signals when a function is entered, when a call has returned, and in loops. A trace
function makes the moment certain: it raises when the N-th function is entered, or a coroutine goes on after an await.
With `steps`, it raises before the N-th instruction of some files, which includes all these moments.
Generators do not count: the interpreter enters one that is freed, and only prints the exception then. Nor do the import
of modules and the functions of logging: an exception in them leaves a lock held, for which other threads wait for ever.
"""

import gc
import inspect
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

SIGNAL = signal.SIGUSR2
KEEPS_LOCKS = ("<frozen importlib", logging.__file__)


class HandlerError(TimeoutError):
    """What the handler of a signal raises in these tests. It must not be taken for the error of a system call."""


class Interrupted:
    """What has become of a call.

    raised   whether the exception was raised at the chosen moment
    where    the file and the function of that moment
    result   what the call has returned, if it returned
    error    what it has raised, if it raised
    """

    def __init__(self) -> None:
        self.raised = False
        self.where = ""
        self.result: Any = None
        self.error: BaseException | None = None


def is_finalizer(frame: FrameType) -> bool:
    """Return whether a finalizer of this package runs: the interpreter prints its exceptions only."""
    called: FrameType | None = frame
    while called is not None:
        if called.f_code.co_name in ("__del__", "close_descriptors"):
            return True
        called = called.f_back
    return False


def interrupt(
    call: Callable[[], Any], at: int, skip: Callable[[FrameType], bool] = lambda frame: False, steps: str = ""
) -> Interrupted:
    """Make a call, and raise HandlerError at the moment number `at` (from 0 on) in this thread.

    skip   whether the moments in a frame's function do not count
    steps  count the instructions of the files in this folder instead of the entries of all functions
    """
    told = Interrupted()
    left = at

    def count(frame: FrameType) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            sys.settrace(None)
            told.raised = True
            told.where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_qualname}:{frame.f_lineno}"
            handle(SIGNAL, frame)

    def handle(number: int, frame: FrameType | None) -> None:
        raise HandlerError(told.where)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code is call.__code__ or _is_passed_over(code) or skip(frame):
            return None
        if not steps:
            count(frame)
        elif steps in code.co_filename:
            frame.f_trace_opcodes = True
            return step
        return None

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        if told.raised:
            return None
        if event == "opcode":
            count(frame)
        return step

    collecting = gc.isenabled()
    gc.disable()  # the interpreter only prints what its callbacks and finalizers raise
    former = signal.signal(SIGNAL, handle)  # never sent: the package finds the handlers by their registration
    sys.settrace(trace)
    try:
        told.result = call()
    except BaseException as error:
        told.error = error
    finally:
        sys.settrace(None)
        signal.signal(SIGNAL, former)
        if collecting:
            gc.enable()
    return told


def _is_passed_over(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_GENERATOR) or code.co_filename.startswith(KEEPS_LOCKS)


def at_each_entry(
    call: Callable[[], Callable[[], Any]], begin: int = 0, every: int = 1, **options: Any
) -> Iterator[Interrupted]:
    """Interrupt a call at each of its moments, one after the other. `call` prepares a new call for each time.

    begin, every   the first moment, and the distance to the next one
    """
    at = begin
    while True:
        told = interrupt(call(), at, **options)
        if not told.raised:
            return
        yield told
        at += every
