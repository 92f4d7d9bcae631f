"""RecordAccumulator: the batches of all front-ends by partition, until they are drained."""

from libc.stdint cimport uint32_t

from cyproducer.sender.model cimport Batch, Core, FrontEnd, Partition, Queue


cdef void accumulate(Core *core) noexcept nogil
cdef bint anything_submitted(Core *core) noexcept nogil
cdef void linger(Core *core) noexcept nogil
cdef Batch *admit(Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation, bint adopted) noexcept nogil
cdef Batch *enter(Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation, bint adopted) noexcept nogil
cdef Queue *queue_for(FrontEnd *front_end, Partition *partition) noexcept nogil
cdef bint seal(Core *core, Batch *batch) noexcept nogil
cdef Batch *take_head(Queue *queue) noexcept nogil
cdef void put_back(Batch *batch) noexcept nogil
cdef void place_last(Queue *queue, Queue *first) noexcept nogil
cdef void move_queue(Queue *queue, Partition *lane) noexcept nogil
cdef void remove(Queue *queue, Batch *batch) noexcept nogil
cdef void scan(Core *core, FrontEnd *front_end) noexcept nogil
cdef void condemn(Core *core, FrontEnd *front_end, int why) noexcept nogil
