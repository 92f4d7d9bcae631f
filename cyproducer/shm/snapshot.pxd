"""Declares the metadata snapshot (see snapshot.pyx) and the functions of snapshot.h for Cython."""

from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t

from cyproducer.shm.geometry cimport SnapshotGeometry
from cyproducer.shm.layout cimport cyp_snapshot_header, cyp_topic_row
from cyproducer.shm.region cimport Region


cdef extern from "cyproducer/shm/snapshot.h" nogil:
    const uint8_t CYP_SHARE_NONE
    const uint8_t CYP_SHARE_AVOID
    const uint8_t CYP_SHARE_FULL
    const uint32_t CYP_CHANGE_ALL
    const uint32_t CYP_CHANGE_LOST
    uint64_t topic_word "cyp_topic_word"(int16_t error, uint32_t partitions) noexcept
    uint32_t topic_partitions "cyp_topic_partitions"(uint64_t word) noexcept
    int16_t topic_error "cyp_topic_error"(uint64_t word) noexcept
    uint64_t topic_hash "cyp_topic_hash"(const char *name, uint32_t bytes) noexcept
    uint32_t topic_find "cyp_topic_find"(
        const uint64_t *index, const cyp_topic_row *rows, const char *name, uint32_t bytes, uint32_t *place,
        uint32_t *generation
    ) noexcept
    uint32_t topic_id "cyp_topic_id"(uint32_t number, uint32_t generation) noexcept
    uint32_t topic_id_number "cyp_topic_id_number"(uint32_t id) noexcept
    bint topic_id_is_valid "cyp_topic_id_is_valid"(uint32_t id, uint32_t first, uint32_t generation) noexcept
    bint topic_is_valid "cyp_topic_is_valid"(const cyp_topic_row *row, uint32_t generation) noexcept
    void topic_retire "cyp_topic_retire"(cyp_topic_row *row) noexcept
    void topic_keep "cyp_topic_keep"(cyp_topic_row *row) noexcept
    void topic_name "cyp_topic_name"(cyp_topic_row *row, const char *name, uint32_t bytes) noexcept
    uint32_t topic_named "cyp_topic_named"(const cyp_topic_row *row, const char *name, uint32_t bytes) noexcept
    uint32_t topic_place "cyp_topic_place"(const uint64_t *index, uint32_t number, uint64_t hash) noexcept
    void topic_leave "cyp_topic_leave"(uint64_t *index, uint32_t place) noexcept
    void topic_enter "cyp_topic_enter"(uint64_t *index, uint32_t place, uint32_t number, uint64_t hash) noexcept
    void topic_store "cyp_topic_store"(cyp_topic_row *row, uint64_t word) noexcept
    uint64_t topic_load "cyp_topic_load"(const cyp_topic_row *row) noexcept
    uint64_t topic_leaders "cyp_topic_leaders"(const cyp_topic_row *row) noexcept
    void topic_move "cyp_topic_move"(cyp_topic_row *row, uint32_t at, uint32_t room) noexcept
    void change_put "cyp_change_put"(uint64_t *ring, uint64_t position, uint32_t number) noexcept
    void change_publish "cyp_change_publish"(uint64_t *published, uint64_t position) noexcept
    uint32_t change_take "cyp_change_take"(const uint64_t *ring, uint64_t position) noexcept


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
