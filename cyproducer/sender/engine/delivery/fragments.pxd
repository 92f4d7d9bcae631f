"""Declares the choice of sequences for fragments, the parts that replace a refused unsure batch, see fragments.pyx."""

from libc.stdint cimport int32_t, uint32_t

from cyproducer.sender.engine.state.model cimport Core, Lane, WireBatch


cdef void place_fragment(Lane *lane, WireBatch *wire) noexcept nogil
cdef bint has_place_before(Lane *lane, WireBatch *wire) noexcept nogil
cdef bint step_back(Lane *lane, WireBatch *wire) noexcept nogil
cdef void end_fragment(Core *core, WireBatch *wire, int32_t error, uint32_t refused) noexcept nogil
