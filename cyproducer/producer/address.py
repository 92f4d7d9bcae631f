"""Where the sender of a producer's settings is to be found.

A worker that was just forked pays a page fault for nearly every page that it touches, so what can be computed before
the fork is computed with the producer, and used as long as nothing that it depends on is another one.
"""

import os
import sys
from typing import Any

from cyproducer.config import Settings
from cyproducer.shm import handshake, rendezvous
from cyproducer.shm.arena import LAYOUT_VERSION
from cyproducer.shm.rendezvous import Rendezvous, RendezvousError, Surroundings
from cyproducer.shm.whereabouts import whereabouts

__all__ = ["Address"]


class Address:
    """Of one producer. `hello`: what an attach says of its settings, encoded (see shm/handshake.py).

    A sender that is named by `sender` has to have the settings that were given, another one all.
    """

    def __init__(self, settings: Settings) -> None:
        named = settings.sender is not None
        self._expected = rendezvous.public_settings(
            settings.explicit_sender_settings() if named else settings.sender_settings()
        )
        self.hello = handshake.encode(
            {
                "op": "attach",
                "layout": LAYOUT_VERSION,
                "app": _application_name(),
                "settings": settings.front_end_settings(),
                "sender_settings": self._expected,
            }
        )
        self._depends_on: tuple[Any, ...] | None = None
        self._found: tuple[Rendezvous, dict[str, Any]] | None = None
        if not named:
            try:
                self._find(whereabouts(), make=False)
            except (OSError, RendezvousError):
                pass  # the first use will tell

    def find(self, again: bool = False) -> tuple[Rendezvous, dict[str, Any]]:
        """(the place to meet, the sender's identity); `again`: there was nobody at the place.

        Makes the runtime directory. Raises RendezvousError.
        """
        now = whereabouts()
        if again or self._found is None or now != self._depends_on:
            self._find(now, make=True)
        assert self._found is not None
        return self._found

    def _find(self, where: tuple[Any, ...], make: bool) -> None:
        directory = rendezvous.runtime_directory(make=make)
        description = rendezvous.identity(LAYOUT_VERSION, self._expected, Surroundings(*where[:4]))
        self._found = rendezvous.of_sender(directory, description), description
        self._depends_on = where


def _application_name() -> str:
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return ("".join(c for c in name if c.isprintable()) or os.path.basename(sys.executable or "python"))[:100]
