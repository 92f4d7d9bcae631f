"""Names the states of a connection."""

from enum import StrEnum

__all__ = ["ConnectionState"]


class ConnectionState(StrEnum):
    """The states of a connection, in the order of the loop's enum of this name (model.pyx)."""

    CLOSED = "closed"
    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    NEGOTIATING = "negotiating"
    READY = "ready"
