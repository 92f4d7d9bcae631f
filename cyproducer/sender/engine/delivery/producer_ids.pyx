"""Requests producer ids for the two kinds of lanes, and fails batches if the brokers refuse one.

An error of InitProducerId that is not retriable fails the batches that wait for the producer id, as
Sender.maybeAbortBatches does in Kafka. Batches that have a sequence are not affected: they keep their former producer
id. The next batch of the lane requests a producer id again, so a permission that is granted later takes effect without
a restart of the sender.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport strlen

from cyproducer.sender.engine.intake.accumulator cimport remove, seal
from cyproducer.sender.engine.state.breadcrumb cimport untouch
from cyproducer.sender.engine.state.events cimport EVENT_PRODUCER_ID
from cyproducer.sender.engine.state.model cimport BATCH_CLOSED, ClientBatch, Core, FrontEnd, Lane, Queue
from cyproducer.sender.engine.state.outcomes cimport finish, push_event


cdef const char *NOT_SENT = b"the brokers gave no producer id, so the record was not sent"


cdef void want_producer_id(Core *core, Lane *lane) noexcept nogil:
    """Request a fresh producer id for all lanes of this kind, unless a request is pending."""
    if lane.isolation:
        if core.wants_isolation_id:
            return
        core.isolation_producer_id = -1
        core.wants_isolation_id = True
    else:
        if core.wants_producer_id:
            return
        core.producer_id = -1
        core.wants_producer_id = True
    push_event(core, EVENT_PRODUCER_ID, 0, 0, 0)


cdef void refuse_producer_id(Core *core, int32_t error) noexcept nogil:
    """Fail the batches without a sequence in the lanes that requested a producer id, with `error` of the broker.

    They were never sent, and the outcome says so.
    """
    cdef bint isolation = core.wants_isolation_id and not core.wants_producer_id
    cdef FrontEnd *front_end = core.front_ends
    cdef FrontEnd *following
    cdef uint32_t index
    core.said, core.said_bytes = <const uint8_t *>NOT_SENT, <uint32_t>strlen(NOT_SENT)
    while front_end != NULL:
        following = front_end.next  # the front-end leaves the list if it has ended and this was its last batch
        index = 0
        while front_end.idempotent and index < front_end.queue_capacity:
            if front_end.queues[index] != NULL and front_end.queues[index].lane.isolation == isolation \
                    and front_end.transaction == NULL:
                _fail_queue(core, front_end.queues[index], error)
            index += 1
        front_end = following
    core.said_bytes = 0
    untouch(core)
    if isolation:
        core.wants_isolation_id = False
    else:
        core.wants_producer_id = False
        if core.wants_isolation_id:
            push_event(core, EVENT_PRODUCER_ID, 0, 0, 0)  # each response is for one kind of lane


cdef void _fail_queue(Core *core, Queue *queue, int32_t error) noexcept nogil:
    cdef ClientBatch *batch = queue.head
    while batch != NULL:
        if batch.state == BATCH_CLOSED or seal(core, batch):  # otherwise it was malformed and has left the queue
            remove(queue, batch)
            finish(core, batch, -1, -1, error)
        batch = queue.head
