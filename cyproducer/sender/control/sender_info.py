"""Describes a sender to its control plane, and a front-end in the sender's status."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cyproducer.errors import name_for_code
from cyproducer.host.rendezvous import secret_settings
from cyproducer.sender.control.peers import Peer
from cyproducer.transaction_states import TransactionState

__all__ = ["DRAIN_S", "Facts", "describe_front_end", "describe_transaction"]

#: Time limit of a drain. Less than the 30 s that Kubernetes allows between SIGTERM and SIGKILL.
DRAIN_S = 25.0
#: What the status calls the states of a transactional producer.
PHASES = {
    TransactionState.UNINITIALIZED: "new",
    TransactionState.READY: "ready",
    TransactionState.IN_TRANSACTION: "open",
    TransactionState.COMMITTING_TRANSACTION: "committing",
    TransactionState.ABORTING_TRANSACTION: "aborting",
    TransactionState.FATAL_ERROR: "fatal",
}


@dataclass
class Facts:
    """The properties of a sender that its control plane uses. With `idle_timeout_s` None it never ends by itself."""

    socket: str
    settings: Mapping[str, Any]
    idle_timeout_s: float | None
    allow_uids: Collection[int] = ()
    allow_gids: Collection[int] = ()
    drain_s: float = DRAIN_S
    started_at: float = field(default_factory=time.time)
    restarts: int = 0
    #: From the former sender; None if that one did not know it.
    cluster_id: str | None = None
    #: Path of the log (None: standard error), and path of the file with the ledger of failures.
    log: str | None = None
    failures: str = ""
    #: Whether a process with higher resource limits may replace it. False if `cyproducer sender` started it.
    replaceable: bool = False
    #: Whether front-ends find it by their settings: then each has to prove that it knows the secrets.
    private: bool = True

    @cached_property
    def secrets(self) -> dict[str, Any]:
        """The secrets among the settings."""
        return secret_settings(self.settings)


def describe_front_end(attach_id: int, peer: Peer, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the front-end's row of the status; `figures` come from the engine and replace the default values."""
    return {
        "attach_id": attach_id,
        "pid": peer.shown_pid,
        "uid": peer.uid,
        "app": peer.app,
        "buffer_memory": 0,
        "buffer_in_use": 0,
        "records_sent": 0,
        "oldest_unacked_ms": None,
        "blocked_ms": 0,
        **figures,
    }


def describe_transaction(row: Mapping[str, Any], app: str) -> dict[str, Any]:
    """Return the status's row of a transactional producer; `row` comes from the engine."""
    return {
        "transactional_id": row["transactional_id"],
        "app": app if row["participants"] is None else None,
        "phase": PHASES[row["state"]],
        "phase_ms": row["state_ms"],
        "failed": name_for_code(row["failed"]) if row["failed"] else None,
        "participants": row["participants"],
    }
