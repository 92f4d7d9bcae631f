"""Declares the types of outcome_reader.pyx."""

from typing import Never, final

@final
class OutcomeReader:
    def __init__(self, *args: Never) -> None: ...
    @property
    def failures(self) -> int: ...
