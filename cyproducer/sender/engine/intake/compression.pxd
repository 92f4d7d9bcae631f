"""Declares the compression of batches by the sender, see compression.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport ClientBatch, Core, FrontEnd, WireBatch


cdef void pack(Core *core, WireBatch *wire) noexcept nogil
cdef bint may_compress(const Core *core, const FrontEnd *front_end) noexcept nogil
cdef bint must_postpone(Core *core, ClientBatch *batch) noexcept nogil
cdef bint must_postpone_wire(Core *core, const WireBatch *wire) noexcept nogil
cdef uint64_t sent_bytes(ClientBatch *batch) noexcept nogil


cdef inline uint32_t wire_bytes(const WireBatch *wire) noexcept nogil:
    """Return the size of the wire batch's records in bytes as they are sent."""
    return wire.packed_bytes if wire.packed != NULL else wire.entry.length
