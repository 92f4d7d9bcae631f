"""Declares the functions that store the identity of a lane, see identities.pyx."""

from libc.stdint cimport int16_t, int64_t

from cyproducer.sender.engine.state.model cimport Lane, WireBatch
from cyproducer.shm.layout cimport cyp_entry


cdef void begin_epoch(Lane *lane, int64_t producer_id, int16_t epoch) noexcept nogil
cdef void note_acked(Lane *lane, cyp_entry *entry) noexcept nogil
cdef void demand_epoch(Lane *lane) noexcept nogil
cdef void note_doubtful_end(WireBatch *wire) noexcept nogil
