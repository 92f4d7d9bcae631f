"""Has the properties of a sender that its control server uses."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cyproducer.host.rendezvous import public_settings, secret_settings

__all__ = ["DRAIN_S", "Facts"]

#: Time limit of a drain. Less than the 30 s that Kubernetes allows between SIGTERM and SIGKILL.
DRAIN_S = 25.0


@dataclass
class Facts:
    """The properties of a sender that its control server uses. With `idle_timeout_s` None it never ends by itself."""

    socket: str
    settings: Mapping[str, Any]
    idle_timeout_s: float | None
    allow_uids: Collection[int] = ()
    allow_gids: Collection[int] = ()
    drain_s: float = DRAIN_S
    started_at: float = field(default_factory=time.time)
    restarts: int = 0
    #: The last known one; at first from the former sender, or None.
    cluster_id: str | None = None
    #: Path of the log (None: standard error), and path of the file with the ledger of failures.
    log: str | None = None
    failures: str = ""
    #: Whether a process with higher resource limits may replace it. False if `cyproducer sender` started it.
    replaceable: bool = False
    #: Whether front-ends find it by their settings: then each has to prove that it knows the secrets.
    private: bool = True

    @cached_property
    def public_settings(self) -> dict[str, Any]:
        """The settings with which a front-end has to agree."""
        return public_settings(self.settings)

    @cached_property
    def secrets(self) -> dict[str, Any]:
        """The secrets among the settings."""
        return secret_settings(self.settings)
