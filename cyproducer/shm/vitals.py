"""Signs of life of a sender, read from its state region without mapping it: what a supervisor looks at."""

import os
import struct
from typing import NamedTuple

__all__ = ["Vitals", "read_vitals"]

_OFFSET = 128  # of tick in cyp_state_header, asserted in layout.h
_FIELDS = struct.Struct("=QQQI")


class Vitals(NamedTuple):
    """tick: rises with every turn of the loop. pending: 0 while the sender may sleep for ever, else it turns at
    least once a second. breadcrumb: attach id and slot whose memory is being handled; attach id 0: nobody's."""

    tick: int
    pending: int
    breadcrumb_attach: int
    breadcrumb_slot: int


def read_vitals(state_fd: int) -> Vitals:
    """Of the state region that this descriptor holds. Raises OSError if it cannot be read."""
    return Vitals(*_FIELDS.unpack(os.pread(state_fd, _FIELDS.size, _OFFSET)))
