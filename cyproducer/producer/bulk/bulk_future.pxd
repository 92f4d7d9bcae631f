"""Declares the future of a `send_array` or `send_arrow`, see bulk_future.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from cyproducer.producer.bulk.bulk_arguments cimport Rows
from cyproducer.producer.results.futures cimport Batch


cdef struct Extent:
    # Consecutive rows of one lane that are next to each other in one batch.
    void *batch             # borrowed: BulkFuture.batches owns the reference
    uint32_t first          # index of the first row in the batch
    uint32_t count
    uint32_t size           # bytes, encoded
    int32_t next            # index of the extent with the lane's next rows; -1: none


cdef struct Lane:
    # The rows of one (topic, partition), in order: a list of extents. (Not the sender's Lane.)
    int32_t first           # index of the first extent; -1: none
    int32_t last            # index of the last extent; -1: none


cdef class BulkFuture:
    cdef list batches               # one for each extent
    cdef Extent *extents
    cdef Py_ssize_t extent_count
    cdef Py_ssize_t _capacity
    cdef Lane *lanes                # lane = lane_base[topic] + partition
    cdef Py_ssize_t lane_count
    cdef int32_t *lane_base         # one for each of `topics`
    cdef list topics
    cdef int32_t *partitions        # one for each row
    cdef int32_t *topic_of          # index in `topics` for each row; NULL: 0 for all
    cdef object _memory             # owns the memory of `partitions` and `topic_of`
    cdef readonly Py_ssize_t rows   # how many are queued
    cdef Py_ssize_t _settled        # all extents before this index have an outcome
    cdef list _callbacks
    cdef object _metadata

    cdef int set_lanes(self, list partition_counts) except -1
    cdef int add_extent(self, int32_t lane, Batch batch, uint32_t first) except -1
    cdef Batch _unsettled(self)
    cdef int _settle(self, object timeout) except -1
    cdef Py_ssize_t _count(self, bint failed) noexcept
    cdef Py_ssize_t _failed_rows(self, const Extent *extent) noexcept
    cdef object failure(self)
    cdef object metadata(self)
    cdef object _make_metadata(self)
    cdef void _fill_offsets(self, int64_t *offsets, uint32_t *used, int32_t *starts) noexcept


cdef BulkFuture make_bulk_future(Rows rows)
