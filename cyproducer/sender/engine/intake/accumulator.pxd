"""Declares the queues that hold the batches of all front-ends by partition, see accumulator.pyx."""

from libc.stdint cimport uint32_t

from cyproducer.sender.engine.state.model cimport ClientBatch, Core, FrontEnd, Lane, Queue


cdef void accumulate(Core *core) noexcept nogil
cdef bint anything_submitted(Core *core) noexcept nogil
cdef bint take_submitted(Core *core, FrontEnd *front_end) noexcept nogil
cdef void linger(Core *core, FrontEnd *front_end) noexcept nogil
cdef ClientBatch *admit(
    Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation, bint in_takeover
) noexcept nogil
cdef ClientBatch *enter(Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation) noexcept nogil
cdef Queue *queue_for(FrontEnd *front_end, Lane *lane) noexcept nogil
cdef bint seal(Core *core, ClientBatch *batch) noexcept nogil
cdef ClientBatch *take_head(Queue *queue) noexcept nogil
cdef void put_back(ClientBatch *batch) noexcept nogil
cdef void rotate_ring(Queue *queue, Queue *first) noexcept nogil
cdef void move_queue(Queue *queue, Lane *lane) noexcept nogil
cdef void remove(Queue *queue, ClientBatch *batch) noexcept nogil
cdef bint next_used(FrontEnd *front_end, uint32_t *first, uint32_t *end) noexcept nogil
cdef bint scan_some(Core *core, FrontEnd *front_end, uint32_t most) noexcept nogil
cdef void scan_ending(Core *core) noexcept nogil
cdef void scan(Core *core, FrontEnd *front_end) noexcept nogil
cdef void report_violation(Core *core, FrontEnd *front_end, int why) noexcept nogil
