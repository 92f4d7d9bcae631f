"""Heirs: what takes the place of a batch that may have been appended and is refused now.

They are parts of it, and find out whether it is there: they go one by one, first of all that the partition has,
to where the broker may expect the next sequence. If the larger one is there, they are neither duplicates of it
(they have fewer records) nor in order.

Such a place is behind what was acknowledged, or behind an entry that was given up while it was unsure
(doubtful_ends), never behind their own: what follows the larger one says nothing of it. Being refused at one of
them proves nothing of the entry before it either, since the larger one may be behind that. So an heir steps back
to the place before, unless it could be taken there for an entry that began at it and may have been appended; and
an heir that is given up leaves behind that nobody knows what the broker expects.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.shm.atomics cimport store_release
from cyproducer.shm.layout cimport CYP_DOUBTS_MAX, CYP_ENTRY_ORDER_STEP, cyp_identity
from cyproducer.sender.entries cimport conclude, give_up
from cyproducer.sender.model cimport Core, Partition, Wire


cdef void place_heir(Partition *partition, Wire *wire) noexcept nogil:
    """Puts it to the last known place that is not behind its own; it stays where it is if there is none."""
    cdef cyp_identity *identity = &partition.row.identity[partition.row.current]
    cdef uint64_t place = _place_before(identity, wire.entry.base_sequence + 1)
    if place < wire.entry.base_sequence and not _is_taken(identity, place, wire.entry.count):
        store_release(&wire.entry.base_sequence, place)


cdef bint step_back(Partition *partition, Wire *wire) noexcept nogil:
    """It was out of order: puts it to the place before, False if there is none."""
    cdef cyp_identity *identity = &partition.row.identity[partition.row.current]
    cdef uint64_t place = _place_before(identity, wire.entry.base_sequence)
    if place >= wire.entry.base_sequence or _is_taken(identity, place, wire.entry.count):
        return False
    store_release(&wire.entry.base_sequence, place)
    return True


cdef uint64_t _place_before(cyp_identity *identity, uint64_t limit) noexcept nogil:
    """The last sequence below `limit` that the broker may expect next; `limit` if none is known."""
    cdef uint32_t index = identity.doubts
    if identity.doubts > CYP_DOUBTS_MAX:
        return limit
    while index:
        index -= 1
        if identity.acked_end < identity.doubtful_ends[index] < limit:
            return identity.doubtful_ends[index]
    return min(identity.acked_end, limit)


cdef bint _is_taken(cyp_identity *identity, uint64_t place, uint32_t count) noexcept nogil:
    """Could so many records be taken for an entry that was given up?"""
    cdef uint32_t index
    for index in range(identity.doubts):
        if identity.doubtful_ends[index] == place + count:
            return True
    return False


cdef void end_heir(Core *core, Wire *wire, int32_t error, uint32_t refused) noexcept nogil:
    """Gives up an entry; if it is an heir, perhaps those with it that follow.

    If all of its attempts were `refused` it is not there, and they go on; else they could only be out of order.
    """
    cdef Wire *following = _next_heir(wire)
    if following != NULL and wire.entry.attempts <= refused:
        conclude(core, wire, error)
        return
    give_up(core, wire, error)
    while following != NULL:
        wire = following
        following = _next_heir(wire)
        give_up(core, wire, error)


cdef Wire *_next_heir(Wire *wire) noexcept nogil:
    """The next part of the same batch; NULL: none."""
    if wire.heir and wire.next != NULL and wire.next.heir \
            and wire.next.entry.order // CYP_ENTRY_ORDER_STEP == wire.entry.order // CYP_ENTRY_ORDER_STEP:
        return wire.next
    return NULL
