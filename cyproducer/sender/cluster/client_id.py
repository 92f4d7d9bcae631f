"""Decides which client id the requests of a sender carry."""

from collections import Counter

from cyproducer.config.table import BY_NAME
from cyproducer.sender.engine.native import Loop

__all__ = ["ClientId"]

_DEFAULT: str = BY_NAME["client_id"].default


class ClientId:
    """The client id of all requests: the one that all attached front-ends have, or the default if theirs differ.

    A request has records of several front-ends, and the header of a request has one client id.

    fixed   the client id that the sender itself was started with; those of front-ends do not count then
    """

    def __init__(self, loop: Loop, fixed: str | None) -> None:
        self._loop = loop
        self._fixed = fixed
        self._of_front_ends: Counter[str] = Counter()
        self.present = fixed or _DEFAULT
        loop.set_client_id(self.present)

    def add(self, client_id: str) -> None:
        """Count an attached front-end."""
        self._of_front_ends[client_id] += 1
        self._update()

    def remove(self, client_id: str) -> None:
        """Count a front-end no longer. After the last one, the client id stays: its batches may still be sent."""
        self._of_front_ends[client_id] -= 1
        if not self._of_front_ends[client_id]:
            del self._of_front_ends[client_id]
        if self._of_front_ends:
            self._update()

    def _update(self) -> None:
        if self._fixed is not None:
            return
        present = next(iter(self._of_front_ends)) if len(self._of_front_ends) == 1 else _DEFAULT
        if present != self.present:
            self.present = present
            self._loop.set_client_id(present)
