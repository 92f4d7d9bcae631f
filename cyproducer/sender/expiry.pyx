"""Delivery timeouts: delivery_timeout_ms of a front-end, from the moment its batch was opened.

The front-end hears of it at once. A batch that is part of an entry stays there, since a gap in the sequences
would stall the partition for the others; it is given free when the broker has answered.
"""

from cyproducer.sender.accumulator cimport remove, seal
from cyproducer.sender.entries cimport drop_hopeless
from cyproducer.sender.model cimport BATCH_ASSIGNED, BATCH_CLOSED, WIRE_WAITING, Batch, Core, FrontEnd, Wire
from cyproducer.sender.outcomes cimport CODE_DELIVERY_TIMEOUT, CODE_OUTCOME_UNKNOWN, age_unlink, finish, report
from cyproducer.sender.partitions cimport note_timer


cdef void expire(Core *core) noexcept nogil:
    """Reports what is over; notes the next deadline."""
    cdef FrontEnd *front_end = core.front_ends
    cdef FrontEnd *following
    cdef Batch *batch
    while front_end != NULL:
        following = front_end.next
        batch = front_end.age_head
        while batch != NULL and batch.born_ns + front_end.delivery_timeout_ns <= core.now:
            _expire(core, batch)
            batch = front_end.age_head
        if batch != NULL:
            note_timer(core, batch.born_ns + front_end.delivery_timeout_ns)
        front_end = following


cdef void _expire(Core *core, Batch *batch) noexcept nogil:
    cdef Wire *wire = batch.wire
    cdef bint unsent
    if batch.state == BATCH_ASSIGNED:
        # one that no broker can have and that will not go out any more has definitely failed
        unsent = not wire.idempotent and wire.state == WIRE_WAITING and not wire.unsure and wire.unreported == 1
        if batch.reported:
            age_unlink(batch.front_end, batch)
        else:
            report(core, batch, CODE_DELIVERY_TIMEOUT if unsent else CODE_OUTCOME_UNKNOWN)
        wire.unreported -= 1
        drop_hopeless(core, wire.partition)
        return
    if batch.state != BATCH_CLOSED and not seal(core, batch):
        return
    remove(batch.queue, batch)
    finish(core, batch, -1, -1, CODE_DELIVERY_TIMEOUT)
