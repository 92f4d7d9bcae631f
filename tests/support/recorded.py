"""Shows what programs that record errors, such as Sentry, store of an exception besides its text."""

import os
import traceback
from collections.abc import Iterator

import cyproducer

__all__ = ["recorded_locals"]

_PACKAGE = os.path.dirname(cyproducer.__file__)


def recorded_locals(error: BaseException | None) -> Iterator[str]:
    """Yield the repr() of the local variables of cyproducer's functions in the traceback, and in those before it."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith(_PACKAGE):
                yield from map(repr, frame.f_locals.values())
        error = error.__cause__ or error.__context__
