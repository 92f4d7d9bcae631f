"""Entries: RecordBatches on the wire, their sequences, and what becomes of them."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from cyproducer.sender.model cimport Batch, Core, Partition, Wire


cdef Wire *assign(Core *core, Partition *partition, Batch **batches, uint32_t count) noexcept nogil
cdef uint8_t *take_body(Core *core) noexcept nogil
cdef Wire *new_wire(Core *core, Partition *partition, Batch **batches, uint32_t count, uint8_t *body) noexcept nogil
cdef bint any_idempotent(Partition *partition) noexcept nogil
cdef void begin_epoch(Partition *partition, int64_t producer_id, int16_t epoch) noexcept nogil
cdef void link_before(Partition *partition, Wire *wire, Wire *following) noexcept nogil
cdef void leave(Core *core, Wire *wire) noexcept nogil
cdef bint stamp(Core *core, Wire *wire) noexcept nogil
cdef void mark_sent(Core *core, Wire *wire) noexcept nogil
cdef void let_go(Core *core, uint32_t row, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil
cdef void complete(Core *core, Wire *wire, int64_t base_offset, int64_t append_time) noexcept nogil
cdef void free_wire(Core *core, Wire *wire) noexcept nogil
cdef void publish_resolved(Core *core, Wire *wire) noexcept nogil
cdef void give_up(Core *core, Wire *wire, int32_t error) noexcept nogil
cdef void conclude(Core *core, Wire *wire, int32_t error) noexcept nogil
cdef void wait(Wire *wire) noexcept nogil
cdef void retry(Core *core, Wire *wire, int32_t error, bint unsure) noexcept nogil
cdef void demand_epoch(Partition *partition) noexcept nogil
cdef void drop_hopeless(Core *core, Partition *partition) noexcept nogil
