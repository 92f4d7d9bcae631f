"""Declares the functions that publish outcomes, the results of a front-end's batches, see outcomes.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport ClientBatch, Core, FrontEnd, WireBatch


cdef inline bint is_aging(ClientBatch *batch) noexcept nogil:
    """Return whether the batch's delivery timeout runs.

    It runs until the RESULT. With acks=0 the RESULT comes early, and the timeout runs on until the batch is released.
    """
    return batch.age_previous != NULL or batch.front_end.age_head == batch


cdef void push_event(Core *core, int kind, uint32_t node, int32_t error, uint64_t attach_id) noexcept nogil
cdef void report_written(Core *core, WireBatch *wire) noexcept nogil
cdef void report(Core *core, ClientBatch *batch, int32_t error) noexcept nogil
cdef WireBatch *next_part(Core *core, ClientBatch *batch, WireBatch *after) noexcept nogil
cdef void settle_part(Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time) noexcept nogil
cdef void finish(Core *core, ClientBatch *batch, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil
cdef void announce(Core *core) noexcept nogil
cdef object sort_by_age(Core *core, FrontEnd *front_end)
cdef void age_append(Core *core, FrontEnd *front_end, ClientBatch *batch) noexcept nogil
cdef void age_unlink(FrontEnd *front_end, ClientBatch *batch) noexcept nogil
cdef void note_failure(Core *core, uint64_t attach_id, uint32_t topic, int32_t error, uint64_t records) noexcept nogil
