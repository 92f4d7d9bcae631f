"""Ends batches whose delivery timeout is over: delivery_timeout_ms of their front-end since they were opened.

The front-end gets the outcome at once. The error states exactly what is known:

 - DELIVERY_TIMEOUT: the batch is in no log and is never sent again. It was not sent yet, or every attempt was refused.
   A batch that is part of an entry is taken out of it; the gap in the sequences is closed by a new epoch.
 - OUTCOME_UNKNOWN: an attempt is in flight, or the result of an earlier attempt is not known. The batch stays in its
   entry, because other batches follow the entry's sequences. Its memory is released when the broker has answered.
"""

from libc.stdint cimport int32_t

from cyproducer.protocol.error_codes cimport ERROR_UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.sender.engine.delivery.rejection cimport withdraw
from cyproducer.sender.engine.delivery.wire_batches cimport complete, drop_hopeless, give_up
from cyproducer.sender.engine.intake.accumulator cimport remove, seal
from cyproducer.sender.engine.state.client_codes cimport CODE_DELIVERY_TIMEOUT, CODE_OUTCOME_UNKNOWN
from cyproducer.sender.engine.state.model cimport (
    BATCH_ASSIGNED, BATCH_CLOSED, WIRE_WAITING, ClientBatch, Core, FrontEnd, Lane, Node, WireBatch,
)
from cyproducer.sender.engine.state.outcomes cimport age_unlink, finish, next_part, report
from cyproducer.sender.engine.state.ready cimport first_connection
from cyproducer.sender.engine.state.states cimport CONNECTION_READY


cdef void expire(Core *core, FrontEnd *front_end) noexcept nogil:
    """Report the batches of the front-end whose delivery timeout is over."""
    cdef ClientBatch *batch = front_end.age_head
    while batch != NULL and batch.born_ns + front_end.delivery_timeout_ns <= core.now:
        _expire_with_reason(core, batch)
        batch = front_end.age_head


cdef void _expire_with_reason(Core *core, ClientBatch *batch) noexcept nogil:
    """Let the outcome tell why the broker that the batch waited for cannot be used, if that is so."""
    cdef Node *node = first_connection(batch.queue.lane.leader) if batch.queue != NULL else NULL
    if node != NULL and (node.state != CONNECTION_READY or node.muted_until_ns > core.now):
        core.judged, core.said, core.said_bytes = batch.wire, node.error, node.error_bytes
    _expire(core, batch)
    core.judged, core.said_bytes = NULL, 0


cdef void _expire(Core *core, ClientBatch *batch) noexcept nogil:
    cdef WireBatch *wire = batch.wire
    cdef bint certain
    cdef int32_t reason
    if batch.split:
        _expire_parts(core, batch)
        return
    if batch.state == BATCH_ASSIGNED and wire.unsure and wire.proven and wire.state == WIRE_WAITING:
        complete(core, wire, wire.proven_offset, -1)
        return
    if batch.state == BATCH_ASSIGNED:
        certain = not batch.reported and wire.state == WIRE_WAITING and not wire.unsure
        if certain and wire.unreported == 1:
            give_up(core, wire, _reason(batch))
            return
        if certain and withdraw(core, batch, _reason(batch)):
            return
        if batch.reported:
            age_unlink(batch.front_end, batch)
        else:
            report(core, batch, CODE_OUTCOME_UNKNOWN)
        wire.unreported -= 1
        drop_hopeless(core, wire.lane)
        return
    if batch.state != BATCH_CLOSED and not seal(core, batch):
        return
    reason = _reason(batch)
    remove(batch.queue, batch)
    finish(core, batch, -1, -1, reason)


cdef void _expire_parts(Core *core, ClientBatch *batch) noexcept nogil:
    """End the parts of a split batch of which it is certain what became of them. The outcome of the others is unknown.

    Parts that were acknowledged before keep their offsets.
    """
    cdef Lane *lane = batch.queue.lane
    cdef WireBatch *wire = next_part(core, batch, NULL)
    cdef WireBatch *following
    while wire != NULL and batch.split:
        following = next_part(core, batch, wire)
        if wire.state == WIRE_WAITING and wire.unsure and wire.proven:
            complete(core, wire, wire.proven_offset, -1)
        elif wire.state == WIRE_WAITING and not wire.unsure:
            give_up(core, wire, _reason(batch))
        wire = following
    if not batch.split:
        return
    report(core, batch, CODE_OUTCOME_UNKNOWN)
    wire = next_part(core, batch, NULL)
    while wire != NULL:
        wire.unreported = 0
        wire = next_part(core, batch, wire)
    drop_hopeless(core, lane)


cdef inline int32_t _reason(const ClientBatch *batch) noexcept nogil:
    """Return the error of an expired batch that is in no log: its topic does not exist, or the delivery timeout."""
    if batch.queue.lane.topic.error == ERROR_UNKNOWN_TOPIC_OR_PARTITION:
        return ERROR_UNKNOWN_TOPIC_OR_PARTITION
    return CODE_DELIVERY_TIMEOUT
