"""Declares the functions for entries: RecordBatches, their sequences, and their results, see wire_batches.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cyproducer.sender.engine.state.model cimport AHEAD_NOT, WIRE_WAITING, ClientBatch, Core, Lane, WireBatch


cdef inline void reset_wire(WireBatch *wire, Lane *lane) noexcept nogil:
    """Make a free wire batch one of `lane` that was never sent. Keep its entry, its flow and its links in lists."""
    wire.lane = lane
    wire.state = WIRE_WAITING
    wire.request = NULL
    wire.body = NULL
    wire.packed = NULL
    wire.codec = 0
    wire.partial = False
    wire.copy = NULL
    wire.corrupt = 0
    wire.breaks = 0
    wire.contributor_count = 0
    wire.unreported = 0
    wire.stamped = False
    wire.unsure = False
    wire.proven = False
    wire.proven_offset = -1
    wire.refused = False
    wire.retried = False
    wire.record_named = False
    wire.fragment = False
    wire.ahead = AHEAD_NOT


cdef WireBatch *assign(Core *core, Lane *lane, ClientBatch **batches, uint32_t count) noexcept nogil
cdef uint8_t *take_body(Core *core) noexcept nogil
cdef WireBatch *new_wire(Core *core, Lane *lane, ClientBatch **batches, uint32_t count, uint8_t *body) noexcept nogil
cdef bint any_idempotent(Lane *lane) noexcept nogil
cdef WireBatch *newest_unsure(Lane *lane) noexcept nogil
cdef bint is_retrying(Lane *lane) noexcept nogil
cdef void link_before(Lane *lane, WireBatch *wire, WireBatch *following) noexcept nogil
cdef void leave(Core *core, WireBatch *wire) noexcept nogil
cdef bint stamp(Core *core, WireBatch *wire) noexcept nogil
cdef void mark_sent(Core *core, WireBatch *wire) noexcept nogil
cdef void let_go(Core *core, uint32_t row, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil
cdef void complete(Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time) noexcept nogil
cdef void free_wire(Core *core, WireBatch *wire) noexcept nogil
cdef void publish_resolved(Core *core, WireBatch *wire) noexcept nogil
cdef void note_cause(WireBatch *wire, int32_t error) noexcept nogil
cdef void give_up(Core *core, WireBatch *wire, int32_t error) noexcept nogil
cdef void conclude(Core *core, WireBatch *wire, int32_t error) noexcept nogil
cdef void drop(Core *core, WireBatch *wire) noexcept nogil
cdef void wait(Core *core, WireBatch *wire) noexcept nogil
cdef void retry(Core *core, WireBatch *wire, int32_t error, bint unsure) noexcept nogil
cdef void drop_hopeless(Core *core, Lane *lane) noexcept nogil
