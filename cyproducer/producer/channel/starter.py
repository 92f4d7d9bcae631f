"""Starts a sender for this process, if no other process is starting it, and watches it until it is ready."""

import sys
from typing import Any

from cyproducer.config.settings import Settings
from cyproducer.errors import SenderUnavailableError
from cyproducer.host.interrupts import pass_on
from cyproducer.host.rendezvous import Rendezvous
from cyproducer.producer.channel.limited_sender import LimitedSenderError
from cyproducer.producer.channel.spawn import Spawned, SpawnLock, interpreters, spawn_sender
from cyproducer.shm import system_clock

__all__ = ["Starter"]

_SPAWN_PAUSE_S = 0.05
_LOOK_S = 0.5


class Starter:
    """Starts a sender if this process gets the lock for that, and watches it until it is ready."""

    def __init__(self, settings: Settings, place: Rendezvous, description: dict[str, Any]) -> None:
        self.settings = settings
        self.place = place
        self.description = description
        self.lock = SpawnLock(place.spawn_lock)
        self.child: Spawned | None = None
        self.candidates: list[str] | None = None
        self.rejected: list[str] = []
        self.not_before = 0.0
        self.look_at = 0.0
        self.replacements = 0

    def step(self, limited: LimitedSenderError | None) -> None:
        """Continue the start if no sender or a limited one answered. Raise SenderUnavailableError if that fails."""
        try:
            self._step(limited is not None)
        except SenderUnavailableError as error:
            if limited is None:
                raise
            raise limited.to_error(f"it cannot be replaced: {error}") from error

    def may_look(self) -> bool:
        """Return whether to ask a limited sender again: it may have been replaced. False while a replacement starts."""
        now = system_clock.monotonic()
        if self.child is not None or (self.lock.fd < 0 and now < self.look_at):
            return False
        self.look_at = now + _LOOK_S
        return True

    def _step(self, replace: bool) -> None:
        if self.lock.fd >= 0:
            self.lock.beat()
        if self.child is not None:
            self._watch(self.child)
        if self.child is None and system_clock.monotonic() >= self.not_before and self._may_start():
            self._start(replace)

    def _may_start(self) -> bool:
        try:
            if self.lock.fd >= 0:
                return True
            # Start in the next step: the last holder may have started a sender since this process looked.
            self.lock.try_acquire()
            return False
        except OSError as error:
            pass_on(error)
            raise SenderUnavailableError(
                f"cannot lock {self.place.spawn_lock}: {error.strerror}; check the runtime directory"
            ) from error

    def _start(self, replace: bool) -> None:
        if self.candidates is None:
            self.candidates = interpreters()
        if not self.candidates:
            raise SenderUnavailableError(
                f"no interpreter can run the sender ({'; '.join(self.rejected)}); set CYPRODUCER_PYTHON "
                f"to a Python of the same version as this program's ({sys.implementation.cache_tag})"
            )
        python = self.candidates[0]
        try:
            self.child = spawn_sender(python, self.place, {**self._order(), "replace": replace})
            self.replacements += replace
        except OSError as error:
            pass_on(error)
            self._reject(f"{python}: {error.strerror or error}")

    def _order(self) -> dict[str, Any]:
        return {
            "stem": self.place.stem,
            "socket": self.place.socket,
            "description_path": self.place.description,
            "identity": self.description,
            "settings": self.settings.sender_settings() | self.settings.secrets(),
            "sender_idle_timeout_ms": self.settings.sender_idle_timeout_ms,
        }

    def _reject(self, reason: str) -> None:
        assert self.candidates is not None
        self.rejected.append(reason)
        del self.candidates[0]

    def _watch(self, child: Spawned) -> None:
        report = child.news()
        if report is None:
            return
        self.child = None
        self.not_before = system_clock.monotonic() + _SPAWN_PAUSE_S
        child.close()
        if "interpreter" in report:
            self._reject(f"{child.python} is {report['interpreter']}")
            self.not_before = 0.0
        elif "error" in report:
            raise SenderUnavailableError(f"the sender could not start: {report['error']}")
        elif not report:
            self._reject(f"{child.python} ended without a report")
            if not self.candidates:
                raise SenderUnavailableError(self._crash(child))
            self.not_before = 0.0

    def _crash(self, child: Spawned) -> str:
        tail = child.log_tail()
        return f"the sender ended right after its start ({child.python}); " + (
            f"the end of its log {self.place.log}:\n{tail}" if tail else f"its log {self.place.log} is empty"
        )

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when the started process reports."""
        return [self.child.fd] if self.child is not None and self.child.fd >= 0 else []

    def failure(self, seen: str, limited: LimitedSenderError | None) -> SenderUnavailableError:
        """Return the error for a deadline that came before a sender was ready."""
        text = self._describe_failure(seen)
        return SenderUnavailableError(text) if limited is None else limited.to_error(f"it was not replaced: {text}")

    def _describe_failure(self, seen: str) -> str:
        if self.child is not None:
            tail = self.child.log_tail()
            return f"the sender did not come up in time ({seen})" + (
                f"; its log {self.place.log}:\n{tail}" if tail else ""
            )
        return f"no sender at {self.place.socket} in time ({seen}); see its log {self.place.log}, or raise max_block_ms"

    def close(self) -> None:
        """Release the lock. A sender that is starting continues."""
        if self.child is not None:
            self.child.close()
            self.child = None
        self.lock.release()
