"""Declares the splitting of one front-end's batch into parts, see parts.pyx."""

from libc.stdint cimport int32_t, uint32_t

from cyproducer.sender.engine.state.model cimport Core, WireBatch


cdef enum PartCode:
    PART_DONE = 0
    PART_NO_ROOM = 1                # no memory, entries or contributors: try again later
    PART_REFUSED = 2                # its front-end has not taken the results of earlier parts: it is not split
    PART_MALFORMED = 3              # the front-end has changed its records


cdef bint may_divide(Core *core, WireBatch *wire) noexcept nogil
cdef PartCode encode_part(Core *core, WireBatch *wire) noexcept nogil
cdef PartCode divide_by_size(Core *core, WireBatch *wire) noexcept nogil
cdef PartCode divide_named(Core *core, WireBatch *wire, int32_t error) noexcept nogil
cdef bint prepare_named(Core *core, WireBatch *wire, uint32_t row, uint32_t begin, int32_t error) noexcept nogil
cdef void begin_parts(Core *core, WireBatch *wire) noexcept nogil
cdef void note_too_large(Core *core, WireBatch *wire) noexcept nogil
cdef void note_accepted(WireBatch *wire) noexcept nogil
cdef bint exceeds_limit(Core *core, WireBatch *wire) noexcept nogil
