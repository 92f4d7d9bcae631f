"""Sends the warnings of the sender's log to the front-ends."""

import logging

from cyproducer.sender.control.control_server import Control

__all__ = ["FrontEndHandler"]

WARNING_REPEAT_S = 60.0
WARNINGS_PER_INTERVAL = 20


class FrontEndHandler(logging.Handler):
    """Sends warnings of the sender's log to the front-ends' logger, each text at most once a minute."""

    def __init__(self, control: Control) -> None:
        super().__init__(logging.WARNING)
        self.control = control
        self._sent: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        extra = getattr(record, "fields", {})
        if extra:
            text += " (" + ", ".join(f"{name} {value}" for name, value in extra.items()) + ")"
        now = self.control.clock()
        self._sent = {known: at for known, at in self._sent.items() if now - at < WARNING_REPEAT_S}
        if text not in self._sent and len(self._sent) < WARNINGS_PER_INTERVAL:
            self._sent[text] = now
            self.control.tell(text, getattr(record, "app", None))
