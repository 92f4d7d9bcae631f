"""Declares the types of running_sends.pyx."""

import threading
from typing import final

from cyproducer.producer.transactions.call import Call

@final
class RunningSends:
    @property
    def changed(self) -> threading.Condition: ...
    def refuse_own(self, name: str) -> None: ...
    def wait(self, call: Call) -> None: ...
