"""Declares the handling of batches that the broker refuses or whose records were changed, see rejection.pyx."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from cyproducer.sender.engine.state.model cimport ClientBatch, Core, Lane, WireBatch


cdef void note_named(
    Core *core, WireBatch *wire, uint32_t record, const uint8_t *text, uint32_t text_bytes
) noexcept nogil
cdef void unmark_all(Core *core, WireBatch *wire) noexcept nogil
cdef void fail(Core *core, WireBatch *wire, int32_t error) noexcept nogil
cdef bint withdraw(Core *core, ClientBatch *batch, int32_t error) noexcept nogil
cdef bint verify(Core *core, WireBatch *wire) noexcept nogil
cdef void reject_changed(Core *core, WireBatch *wire) noexcept nogil
cdef void release_reported(Core *core, WireBatch *wire) noexcept nogil
cdef void withdraw_marked(Core *core, Lane *lane) noexcept nogil
