"""Ends the batches of failed transactions, as Kafka's RecordAccumulator.abortUndrainedBatches.

A batch that is queued, or that waits to be sent again, ends with TRANSACTION_ABORTED: the transaction can only be
aborted, so the record is not committed, even if an earlier attempt is in the log. A batch in flight is waited for. Its
answer may still be a success, or it waits to be sent again and ends here.
"""

from cyproducer.sender.engine.delivery.wire_batches cimport complete, drop
from cyproducer.sender.engine.intake.accumulator cimport remove, seal
from cyproducer.sender.engine.state.breadcrumb cimport untouch
from cyproducer.sender.engine.state.client_codes cimport CODE_TRANSACTION_ABORTED
from cyproducer.sender.engine.state.model cimport (
    BATCH_CLOSED, WIRE_WAITING, ClientBatch, Core, Lane, Queue, Transaction, WireBatch,
)
from cyproducer.sender.engine.state.outcomes cimport finish
from cyproducer.sender.engine.state.transactions cimport place_of


cdef void end_failed(Core *core) noexcept nogil:
    """End what is queued or waits of the transactions that have failed."""
    cdef Transaction *transaction
    cdef Lane *lane
    while core.failing != NULL:
        transaction = core.failing
        core.failing = transaction.next_failing
        transaction.failing = False
        if not place_of(transaction).failed:
            continue  # it was aborted meanwhile
        lane = transaction.lanes
        while lane != NULL:
            _end_waiting(core, lane)
            while lane.ring != NULL:
                _end_queue(core, lane.ring)
            lane = lane.next_of_transaction
    untouch(core)


cdef void _end_waiting(Core *core, Lane *lane) noexcept nogil:
    cdef WireBatch *wire = lane.wire_head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.next
        if wire.state == WIRE_WAITING and wire.unsure and wire.proven:
            complete(core, wire, wire.proven_offset, -1)
        elif wire.state == WIRE_WAITING:
            drop(core, wire)
        wire = following


cdef void _end_queue(Core *core, Queue *queue) noexcept nogil:
    cdef ClientBatch *batch = queue.head
    if batch.state == BATCH_CLOSED or seal(core, batch):  # otherwise it was malformed and has left the queue
        remove(queue, batch)
        finish(core, batch, -1, -1, CODE_TRANSACTION_ABORTED)
