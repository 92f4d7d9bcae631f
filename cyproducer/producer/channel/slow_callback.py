"""Names the callback that a flush() or close() waits for, with the stack of its thread."""

import traceback

from cyproducer.producer.core.callbacks import Delivery

__all__ = ["describe"]

_DEPTH = 20  # the innermost frames of the stack that are shown


def describe(delivery: Delivery | None) -> str:
    """Return which callback runs, the usual reason of one that does not end, and its stack: the end of a message."""
    frames = [] if delivery is None else delivery.frames()
    if not frames:
        return "callbacks have not ended"
    code = frames[0].f_code
    stack = traceback.StackSummary.extract((each, each.f_lineno) for each in frames[-_DEPTH:])
    return (
        f"the callback {code.co_qualname} ({code.co_filename}, line {code.co_firstlineno}) has not ended. If it waits "
        "for a lock that the caller holds, release the lock before the call. It is here:\n"
        + "".join(stack.format()).rstrip()
    )
