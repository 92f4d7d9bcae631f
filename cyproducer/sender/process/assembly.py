"""Makes the objects of a control server, each from those that it uses."""

import logging
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from cyproducer.observe.ledger import Ledger
from cyproducer.sender.cluster.engine import Parts
from cyproducer.sender.control.attaching import Attaching
from cyproducer.sender.control.ending import Ending
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.control.failures import Failures
from cyproducer.sender.control.listening import Listening
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.quotas import UserLimits
from cyproducer.sender.control.requests import Requests
from cyproducer.sender.control.reserve import Reserve
from cyproducer.sender.control.server import ControlServer, FrontEndHandler
from cyproducer.sender.control.status import Status
from cyproducer.sender.control.takeover import Takeover
from cyproducer.sender.control.token_suppliers import TokenSuppliers
from cyproducer.sender.handover.handover import Line

__all__ = ["Control", "assemble"]


class Control(NamedTuple):
    """The control server, and what else of it the sender process uses."""

    server: ControlServer
    ending: Ending
    attaching: Attaching
    takeover: Takeover
    failures: Failures
    status: Status
    handler: FrontEndHandler


def assemble(
    parts: Parts,
    listener: socket.socket,
    facts: Facts,
    line: Line,
    ledger: Ledger,
    log: logging.Logger,
    clock: Callable[[], float] = time.monotonic,
) -> Control:
    """Make a control server around an engine, which serves `listener`."""
    (
        front_ends,
        regions,
        loop,
        client_id,
        connections,
        metadata,
        telemetry,
        queries,
        transactions,
        violations,
        tokens,
    ) = parts
    reserve = Reserve()
    listening = Listening(loop, listener, reserve, facts, log, clock)
    limits = UserLimits.of(loop, log, clock)
    table = PeerTable(front_ends, loop, client_id, metadata, violations, line, reserve, listening, limits)
    failures = Failures(front_ends, loop, table, line, ledger, facts.failures, log)
    ending = Ending(front_ends, loop, telemetry, transactions, table, line, facts, log, clock)
    attaching = Attaching(front_ends, regions, line, table, limits, ending, facts, tokens is not None and facts.private)
    suppliers = TokenSuppliers(tokens, table, limits.refusals, line, log, clock)
    takeover = Takeover(front_ends, regions, tokens, table, listening, ending, attaching, failures, line, facts, log)
    status = Status(
        front_ends, loop, client_id, connections, metadata, transactions, table, ending, failures, line, facts, log
    )
    requests = Requests(
        front_ends,
        metadata,
        telemetry,
        queries,
        transactions,
        table,
        limits,
        ending,
        attaching,
        suppliers,
        takeover,
        status,
    )
    server = ControlServer(reserve, listening, table, limits, failures, ending, suppliers, status, requests, log, clock)
    return Control(server, ending, attaching, takeover, failures, status, FrontEndHandler(table, clock))
