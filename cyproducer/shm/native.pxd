"""Declares the classes and functions of native.pyx that other native modules use."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.shm.protocol cimport *


cdef class Duplicate:
    cdef readonly int fd        # -1: closed
    cdef tuple file             # (device, inode)

    cpdef int close(self) except -1


cpdef object own(int fd, tuple file)


cpdef bint disown(int fd, tuple file) except -1


cdef class Region:
    cdef readonly int fd            # -1: closed
    cdef readonly uint64_t size
    cdef readonly bint writable
    cdef uint8_t *base              # NULL: not mapped
    cdef uint64_t process           # fork_token() of the process that mapped it
    cdef Py_ssize_t views           # memoryviews of the region, and of parts of it

    cdef object _map(self, uint64_t size, bint writable)


cpdef uint64_t fork_token()


cdef const uint64_t *fork_page() noexcept nogil


cdef class Snapshot:
    cdef readonly Region region
    cdef cyp_snapshot_header *header
    cdef cyp_topic_row *rows
    cdef uint64_t *index
    cdef uint64_t *changes
    cdef uint8_t *leaders
    cdef SnapshotGeometry geometry

    cdef object _lay_out(self, Region region)
    cdef object _check_layout(self)
    cdef uint32_t number_of(self, bytes name, uint32_t *place, uint32_t *generation) noexcept
    cdef tuple row(self, uint32_t number)
    cdef const uint8_t *shares(self, uint32_t number) noexcept
    cdef uint32_t brokers(self) noexcept
    cdef uint32_t auth_failures(self) noexcept
    cdef str last_error(self)


cdef class SnapshotWriter(Snapshot):
    cdef object areas               # LeaderAreas: which parts of the area of leaders are in use

    cdef object _store_leaders(self, cyp_topic_row *row, bytes leaders)
    cdef int _announce(self, uint32_t number) except -1


cdef class SnapshotReader(Snapshot):
    pass


cdef list readings(const cyp_sensor *sensors, int count, const cyp_windows *windows)


cdef list front_end_readings(const cyp_own_metrics *own, const cyp_windows *windows)


cdef dict topic_readings(
    const cyp_topic_metrics *rows, uint32_t room, const cyp_windows *windows, const cyp_topic_row *topics
)


cdef dict sender_counts(const cyp_sender_metrics *metrics)
