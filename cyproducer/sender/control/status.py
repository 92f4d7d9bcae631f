"""Describes the sender to processes that ask: its status, and in short whether it is healthy."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from cyproducer.errors import name_for_code
from cyproducer.observe.logfmt import fields
from cyproducer.sender.cluster.client_id import ClientId
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.cluster.metadata import Metadata
from cyproducer.sender.cluster.transactions import Transactions
from cyproducer.sender.control.ending import Ending
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.control.failures import Failures
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer
from cyproducer.sender.engine.connection_state import ConnectionState
from cyproducer.sender.engine.native import FrontEnds, Loop
from cyproducer.sender.handover.handover import Line
from cyproducer.transaction_states import TransactionState
from cyproducer.version import VERSION

__all__ = ["Status"]

#: What the status calls the states of a transactional producer.
_PHASES = {
    TransactionState.UNINITIALIZED: "new",
    TransactionState.READY: "ready",
    TransactionState.IN_TRANSACTION: "open",
    TransactionState.COMMITTING_TRANSACTION: "committing",
    TransactionState.ABORTING_TRANSACTION: "aborting",
    TransactionState.FATAL_ERROR: "fatal",
}
_TOTALS = ("records", "bytes", "batches", "requests", "retries", "errors")


class Status:
    """Answers "status" and "health" from the same objects."""

    def __init__(
        self,
        front_ends: FrontEnds,
        loop: Loop,
        client_id: ClientId,
        connections: Connections,
        metadata: Metadata,
        transactions: Transactions,
        table: PeerTable,
        ending: Ending,
        failures: Failures,
        line: Line,
        facts: Facts,
        log: logging.Logger,
    ) -> None:
        self._front_ends = front_ends
        self._loop = loop
        self._client_id = client_id
        self._connections = connections
        self._metadata = metadata
        self._transactions = transactions
        self._table = table
        self._ending = ending
        self._failures = failures
        self._line = line
        self._facts = facts
        self._log = log
        self._began_at = time.time()

    def keep_cluster_id(self) -> None:
        """Keep the last known cluster id: in an outage the engine starts from the bootstrap servers, without it."""
        found = self._metadata.cluster_id
        known = self._facts.cluster_id
        if found is not None and found != known:
            if known is not None:
                text = "the brokers are those of another cluster, or have lost their data: the cluster id has changed"
                self._log.warning(text, extra=fields(former=known, present=found))
            self._facts.cluster_id = found
            self._line.tell({"op": "cluster", "id": found})

    def describe(self) -> dict[str, Any]:
        """Return the status as `cyproducer status --json` shows it."""
        self.keep_cluster_id()
        self._failures.collect()
        facts, figures, totals = self._facts, self._front_ends.describe(), self._loop.totals()
        return {
            "socket": facts.socket,
            "version": VERSION,
            "log": facts.log,
            "cluster_id": facts.cluster_id,
            "bootstrap_servers": list(facts.settings["bootstrap_servers"]),
            "client_id": self._client_id.present,
            "sender_pid": os.getpid(),
            "supervisor_pid": self._line.supervisor_pid,
            "started_at": facts.started_at,
            "restarts": facts.restarts,
            "totals_since": self._began_at,
            "front_ends": [
                _front_end_row(attach_id, peer, figures.get(attach_id, {}))
                for attach_id, peer in sorted(self._table.front_ends.items())
            ],
            "transactions": [
                _transaction_row(row, self._table.app_of(row["attach_id"])) for row in self._transactions.describe()
            ],
            "connections": self._connections.describe(),
            "totals": {name: totals[name] for name in _TOTALS},
            "counts": self._front_ends.counts(),
            "ledger": self._failures.ledger.rows(),
            "last_error": self._metadata.present_error(),
        }

    def health(self) -> dict[str, Any]:
        """Return in short whether the sender works, for a probe that asks often.

        state  "draining": it ends, and takes no new front-ends
               "disconnected": no broker can be used now, last_error says why
               "starting": no broker has answered yet, and none has failed
               "running": else, also if it is idle and has closed its connections
        ok     whether it is starting or running
        """
        self.keep_cluster_id()
        connected = sum(row["state"] == ConnectionState.READY for row in self._connections.describe())
        last_error = self._metadata.present_error()
        if self._ending.is_draining:
            state = "draining"
        elif last_error and not connected:
            state = "disconnected"
        elif self._facts.cluster_id is None:
            state = "starting"
        else:
            state = "running"
        return {
            "ok": state in ("starting", "running"),
            "state": state,
            "version": VERSION,
            "sender_pid": os.getpid(),
            "supervisor_pid": self._line.supervisor_pid,
            "uptime_s": round(max(0.0, time.time() - self._began_at), 3),
            "restarts": self._facts.restarts,
            "brokers_connected": connected,
            "front_ends": len(self._table.front_ends),
            "undelivered": self._front_ends.undelivered(),
            "last_error": last_error,
        }


def _front_end_row(attach_id: int, peer: Peer, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the front-end's row of the status; `figures` come from the engine and replace the default values."""
    return {
        "attach_id": attach_id,
        "pid": peer.shown_pid,
        "uid": peer.uid,
        "app": peer.app,
        "client_id": peer.client_id,
        "buffer_memory": 0,
        "buffer_in_use": 0,
        "records_sent": 0,
        "oldest_unacked_ms": None,
        "blocked_ms": 0,
        **figures,
    }


def _transaction_row(row: Mapping[str, Any], app: str) -> dict[str, Any]:
    """Return the status's row of a transactional producer; `row` comes from the engine."""
    return {
        "transactional_id": row["transactional_id"],
        "app": app if row["participants"] is None else None,
        "phase": _PHASES[row["state"]],
        "phase_ms": row["state_ms"],
        "failed": name_for_code(row["failed"]) if row["failed"] else None,
        "participants": row["participants"],
    }
