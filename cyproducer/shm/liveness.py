"""Reads a sender's liveness from its state region, without mapping it, for the supervisor."""

import os
import struct
from typing import NamedTuple

__all__ = ["Liveness", "read_liveness"]

_OFFSET = 128  # offset of `tick` in cyp_state_header; layout.h asserts it
_FIELDS = struct.Struct("=QQQI")


class Liveness(NamedTuple):
    """The liveness fields of a sender.

    tick: rises with every loop iteration. pending: 0 while the sender may sleep for ever; else it iterates at least
    once a second. breadcrumb: attach id and slot of the memory that is being handled (the crash note);
    attach id 0: none.
    """

    tick: int
    pending: int
    breadcrumb_attach: int
    breadcrumb_slot: int


def read_liveness(state_fd: int) -> Liveness:
    """Read the liveness from the state region of this descriptor. Raise OSError if it cannot be read."""
    return Liveness(*_FIELDS.unpack(os.pread(state_fd, _FIELDS.size, _OFFSET)))
