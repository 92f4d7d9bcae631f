"""The one future of a `send_array` or `send_arrow`, see bulk_future.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from cyproducer.producer.futures cimport Batch
from cyproducer.producer.rows cimport Rows


cdef struct Extent:
    # Rows of one lane that lie side by side in one batch.
    void *batch             # a Batch that BulkFuture.batches holds
    uint32_t first          # the first one's index in the batch
    uint32_t count
    uint32_t size           # bytes, encoded
    int32_t next            # extent with the lane's next rows; -1: none


cdef struct Lane:
    # The rows of one (topic, partition), in order.
    int32_t first
    int32_t last


cdef class BulkFuture:
    cdef list batches               # of the extents
    cdef Extent *extents
    cdef Py_ssize_t extent_count
    cdef Py_ssize_t _capacity
    cdef Lane *lanes                # lane = lane_base[topic] + partition
    cdef Py_ssize_t lane_count
    cdef int32_t *lane_base         # of each of `topics`
    cdef list topics
    cdef int32_t *partitions        # of each row
    cdef int32_t *topic_of          # of each row, or NULL: all 0
    cdef object _memory             # owns these two
    cdef readonly Py_ssize_t rows   # queued
    cdef Py_ssize_t _settled        # batches that are done, from the first one on
    cdef list _callbacks
    cdef object _metadata

    cdef int set_lanes(self, list partition_counts) except -1
    cdef int add_extent(self, int32_t lane, Batch batch, uint32_t first) except -1
    cdef Batch _unsettled(self)
    cdef int _settle(self, object timeout) except -1
    cdef Py_ssize_t _count(self, bint failed) noexcept
    cdef object failure(self)
    cdef object metadata(self)
    cdef object _make_metadata(self)
    cdef void _fill_offsets(self, int64_t *offsets, uint32_t *used, int32_t *starts) noexcept


cdef BulkFuture make_bulk_future(Rows rows)
