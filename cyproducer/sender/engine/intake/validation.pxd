"""Declares the check of a sealed batch's records, see validation.pyx."""

from cyproducer.sender.engine.state.model cimport ClientBatch


cdef bint chunks_are_written(ClientBatch *batch) noexcept nogil
cdef bint well_formed(ClientBatch *batch) noexcept nogil
