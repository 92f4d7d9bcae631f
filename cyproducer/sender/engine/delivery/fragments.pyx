"""Chooses the sequences of fragments: the parts that replace a refused batch that may be in the log.

An earlier attempt of the original batch had an unknown result. Its fragments show whether it is in the log. They are
sent one at a time, before all other batches of the lane. Each is sent under a candidate: a sequence that the broker may
expect next. Names in the code call it a place. If the original batch is in the log, the broker refuses the fragments:
they are not duplicates of it, since they have fewer records, and they are not in order.

A candidate is the end of the acknowledged sequences, or the end of an entry that was given up while it was unsure
(doubtful_ends). A candidate is never above the fragment's own sequence, because batches after the original one prove
nothing about it. If the broker refuses the fragment at the end of a given-up entry, that proves nothing about this
entry either, because the original batch may be in the log after it. So the fragment is sent again under the next lower
candidate. This is not done if the broker could take the fragment for a duplicate of a given-up entry that began at that
candidate. After a fragment was given up, it is not known which sequence the broker expects.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.sender.engine.delivery.wire_batches cimport conclude, give_up
from cyproducer.sender.engine.state.model cimport Core, Lane, WireBatch
from cyproducer.shm.atomics cimport store_release
from cyproducer.shm.layout cimport CYP_DOUBTS_MAX, CYP_ENTRY_ORDER_STEP, cyp_identity


cdef void place_fragment(Lane *lane, WireBatch *wire) noexcept nogil:
    """Set the sequence of `wire` to the highest candidate that is not above it. Keep the sequence if there is none."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t place = _place_before(identity, wire.entry.base_sequence + 1)
    if place < wire.entry.base_sequence and not _may_pass_as_duplicate(identity, place, wire.entry.count):
        store_release(&wire.entry.base_sequence, place)


cdef bint has_place_before(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether `wire` may be sent under a candidate below its present sequence."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t place = _place_before(identity, wire.entry.base_sequence)
    return place < wire.entry.base_sequence and not _may_pass_as_duplicate(identity, place, wire.entry.count)


cdef bint step_back(Lane *lane, WireBatch *wire) noexcept nogil:
    """Set the sequence of `wire`, which was out of order, to the next lower candidate. Return False without one."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    if not has_place_before(lane, wire):
        return False
    store_release(&wire.entry.base_sequence, _place_before(identity, wire.entry.base_sequence))
    return True


cdef uint64_t _place_before(cyp_identity *identity, uint64_t limit) noexcept nogil:
    """Return the highest sequence below `limit` that the broker may expect next; `limit` if none is known."""
    cdef uint32_t index = identity.doubts
    if identity.doubts > CYP_DOUBTS_MAX:
        return limit
    while index:
        index -= 1
        if identity.acked_end < identity.doubtful_ends[index] < limit:
            return identity.doubtful_ends[index]
    return min(identity.acked_end, limit)


cdef bint _may_pass_as_duplicate(cyp_identity *identity, uint64_t place, uint32_t count) noexcept nogil:
    """Return whether the broker could take `count` records from `place` on for a duplicate of a given-up entry."""
    cdef uint32_t index
    for index in range(identity.doubts):
        if identity.doubtful_ends[index] == place + count:
            return True
    return False


cdef void end_fragment(Core *core, WireBatch *wire, int32_t error, uint32_t refused) noexcept nogil:
    """Give up an entry. If it is a fragment, also give up the later fragments of its batch, unless they may succeed.

    `refused` is the number of its attempts that are known to be refused. If these are all of its attempts, the entry is
    not in the log and the later fragments are still sent. Otherwise the broker would only refuse them as out of order.
    """
    cdef WireBatch *following = _next_fragment(wire)
    if following != NULL and wire.entry.attempts <= refused:
        conclude(core, wire, error)
        return
    give_up(core, wire, error)
    while following != NULL:
        wire = following
        following = _next_fragment(wire)
        give_up(core, wire, error)


cdef WireBatch *_next_fragment(WireBatch *wire) noexcept nogil:
    """Return the next fragment of the same batch; NULL if there is none."""
    if wire.fragment and wire.next != NULL and wire.next.fragment \
            and wire.next.entry.order // CYP_ENTRY_ORDER_STEP == wire.entry.order // CYP_ENTRY_ORDER_STEP:
        return wire.next
    return NULL
