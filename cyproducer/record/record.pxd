"""Declares the parts of a record, which functions of several native modules take."""

from libc.stdint cimport int32_t, uint8_t


cdef struct HeaderView:
    const uint8_t *key         # UTF-8, never null
    int32_t key_length         # >= 0
    const uint8_t *value
    int32_t value_length       # -1: null


cdef struct RecordView:
    # The parts of one record. The memory belongs to the caller.
    const uint8_t *key
    Py_ssize_t key_length      # -1: null
    const uint8_t *value
    Py_ssize_t value_length    # -1: null
    const HeaderView *headers
    int header_count
