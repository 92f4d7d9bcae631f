"""Warnings of the sender's log, told to the front-ends."""

import logging

from cyproducer.sender.control import Control

__all__ = ["FrontEndHandler"]

WARNING_REPEAT_S = 60.0
WARNINGS_PER_INTERVAL = 20


class FrontEndHandler(logging.Handler):
    """Brings warnings of the sender's log to the front-ends' logger, each text at most once a minute."""

    def __init__(self, control: Control) -> None:
        super().__init__(logging.WARNING)
        self.control = control
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        extra = getattr(record, "fields", {})
        if extra:
            text += " (" + ", ".join(f"{name} {value}" for name, value in extra.items()) + ")"
        now = self.control.clock()
        self._told = {known: at for known, at in self._told.items() if now - at < WARNING_REPEAT_S}
        if text not in self._told and len(self._told) < WARNINGS_PER_INTERVAL:
            self._told[text] = now
            self.control.tell(text, getattr(record, "app", None))
