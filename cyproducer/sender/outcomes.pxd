"""Outcomes: what a front-end learns of its batches."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.sender.model cimport Batch, Core, FrontEnd, Wire


cdef enum ClientCode:
    # the numbers of cyproducer.errors.CLIENT_CODES; a unit test compares
    CODE_DELIVERY_TIMEOUT = -1001
    CODE_OUTCOME_UNKNOWN = -1002
    CODE_INVALID_BATCH = -1005
    CODE_UNKNOWN_PARTITION = -1007


cdef inline bint is_aging(Batch *batch) noexcept nogil:
    """Does its delivery timeout run? Until its result; with acks=0, which has that early, until it is over."""
    return batch.age_previous != NULL or batch.front_end.age_head == batch


cdef void push_event(Core *core, int kind, uint32_t node, int32_t error, uint64_t attach_id) noexcept nogil
cdef void say_sent(Core *core, Wire *wire) noexcept nogil
cdef void report(Core *core, Batch *batch, int32_t error) noexcept nogil
cdef void finish(Core *core, Batch *batch, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil
cdef void announce(Core *core) noexcept nogil
cdef void age_append(FrontEnd *front_end, Batch *batch) noexcept nogil
cdef void age_unlink(FrontEnd *front_end, Batch *batch) noexcept nogil
cdef void note_failure(Core *core, uint64_t attach_id, uint32_t topic, int32_t error, uint64_t records) noexcept nogil
