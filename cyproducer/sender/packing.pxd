"""The records of a batch, compressed, see packing.pyx."""

from libc.stdint cimport uint32_t

from cyproducer.sender.model cimport Batch, Core, FrontEnd, Wire


cdef void pack(Core *core, Wire *wire) noexcept nogil
cdef bint has_time(const Core *core, const FrontEnd *front_end) noexcept nogil
cdef bint put_off(Core *core, Batch *batch) noexcept nogil
cdef bint put_off_wire(Core *core, const Wire *wire) noexcept nogil


cdef inline uint32_t wire_bytes(const Wire *wire) noexcept nogil:
    """Bytes of the wire's records as they go out."""
    return wire.packed_bytes if wire.packed != NULL else wire.entry.length
