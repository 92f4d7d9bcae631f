"""Declares the functions of entry.h for Cython: the steps of an entry of the state region, in order."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from cyproducer.shm.layout cimport cyp_entry


cdef extern from "cyproducer/shm/entry.h" nogil:
    void entry_enter "cyp_entry_enter"(cyp_entry *entry, uint32_t state) noexcept
    void entry_unsure "cyp_entry_unsure"(cyp_entry *entry) noexcept
    void entry_sure "cyp_entry_sure"(cyp_entry *entry) noexcept
    void entry_fragment "cyp_entry_fragment"(cyp_entry *entry) noexcept
    void entry_prove "cyp_entry_prove"(cyp_entry *entry) noexcept
    void entry_resolve "cyp_entry_resolve"(
        cyp_entry *entry, int32_t error, int64_t base_offset, int64_t append_time
    ) noexcept
