"""Declares the functions for extents, the results of parts of a batch, see extents.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport ClientBatch, FrontEnd
from cyproducer.shm.layout cimport cyp_extent


cdef bint promise_extents(ClientBatch *batch, uint32_t count) noexcept nogil
cdef uint32_t extents_in_use(FrontEnd *front_end) noexcept nogil
cdef cyp_extent *fill_extent(ClientBatch *batch, const cyp_extent *filled) noexcept nogil
cdef bint is_covered(ClientBatch *batch, uint32_t first, uint32_t count) noexcept nogil
cdef void extents_are_published(ClientBatch *batch, uint64_t position) noexcept nogil
cdef void end_promise(ClientBatch *batch) noexcept nogil
cdef object restore_extents(FrontEnd *front_end)
cdef void find_extents(ClientBatch *batch) noexcept nogil
cdef void settle_extents(FrontEnd *front_end) noexcept nogil
