"""Fragments: the parts that replace a refused batch of which an earlier attempt may be in the log.

Fragments find out whether the original batch is in the log. They are sent one at a time, before all other batches of
the lane, each at a place: a sequence that the broker may expect next. If the original batch is in the log, the broker
refuses them: they are not duplicates of it, since they have fewer records, and they are not in order.

A place is the end of the acknowledged sequences, or the end of an entry that was given up while it was unsure
(doubtful_ends). It is never behind the fragment's own sequence, because batches behind the original one prove nothing
about it. A refusal at one place proves nothing about the given-up entry that ends there either, because the original
batch may be in the log behind that entry. So the fragment then steps back to the place before. It does not step back
if the broker could take it there for a duplicate of a given-up entry that began at that place. After a fragment was
given up, it is not known which sequence the broker expects.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.sender.engine.delivery.wire_batches cimport conclude, give_up
from cyproducer.sender.engine.state.model cimport Core, Lane, WireBatch
from cyproducer.shm.atomics cimport store_release
from cyproducer.shm.layout cimport CYP_DOUBTS_MAX, CYP_ENTRY_ORDER_STEP, cyp_identity


cdef void place_fragment(Lane *lane, WireBatch *wire) noexcept nogil:
    """Set the sequence of `wire` to the last known place that is not behind it. Keep its sequence if there is none."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t place = _place_before(identity, wire.entry.base_sequence + 1)
    if place < wire.entry.base_sequence and not _may_pass_as_duplicate(identity, place, wire.entry.count):
        store_release(&wire.entry.base_sequence, place)


cdef bint has_place_before(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether there is a place before the present sequence of `wire` where it may be sent."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t place = _place_before(identity, wire.entry.base_sequence)
    return place < wire.entry.base_sequence and not _may_pass_as_duplicate(identity, place, wire.entry.count)


cdef bint step_back(Lane *lane, WireBatch *wire) noexcept nogil:
    """Set the sequence of `wire`, which was out of order, to the place before. Return False if there is none."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    if not has_place_before(lane, wire):
        return False
    store_release(&wire.entry.base_sequence, _place_before(identity, wire.entry.base_sequence))
    return True


cdef uint64_t _place_before(cyp_identity *identity, uint64_t limit) noexcept nogil:
    """Return the last sequence below `limit` that the broker may expect next; `limit` if none is known."""
    cdef uint32_t index = identity.doubts
    if identity.doubts > CYP_DOUBTS_MAX:
        return limit
    while index:
        index -= 1
        if identity.acked_end < identity.doubtful_ends[index] < limit:
            return identity.doubtful_ends[index]
    return min(identity.acked_end, limit)


cdef bint _may_pass_as_duplicate(cyp_identity *identity, uint64_t place, uint32_t count) noexcept nogil:
    """Return whether the broker could take `count` records at `place` for a duplicate of a given-up entry."""
    cdef uint32_t index
    for index in range(identity.doubts):
        if identity.doubtful_ends[index] == place + count:
            return True
    return False


cdef void end_fragment(Core *core, WireBatch *wire, int32_t error, uint32_t refused) noexcept nogil:
    """Give up an entry. If it is a fragment, also give up the later fragments of its batch, unless they may succeed.

    `refused` is the number of its attempts that are known to be refused. If these are all of its attempts, the entry is
    not in the log and the later fragments are still sent. Otherwise they could only be out of order.
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
