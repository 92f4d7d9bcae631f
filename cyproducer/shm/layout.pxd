"""Declares the shared structs and constants of layout.h for Cython."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t


cdef extern from "cyproducer/shm/layout.h" nogil:
    const uint32_t CYP_LAYOUT_VERSION
    const uint64_t CYP_ARENA_MAGIC
    const uint64_t CYP_OUTCOMES_MAGIC
    const uint64_t CYP_SNAPSHOT_MAGIC
    const uint64_t CYP_STATE_MAGIC
    const uint32_t CYP_PAGE_BYTES
    const uint32_t CYP_NONE
    const uint32_t CYP_UNIT_BYTES
    const uint32_t CYP_BLOCK_BYTES
    const uint32_t CYP_BLOCK_UNITS
    enum:
        CYP_CHUNK_CLASSES
    const uint64_t CYP_ARENA_BYTES_MIN
    const uint64_t CYP_ARENA_BYTES_MAX

    const int CYP_WORD_COUNT_SHIFT
    const int CYP_WORD_GENERATION_SHIFT
    const int CYP_WORD_STATE_SHIFT
    const uint64_t CYP_WORD_BYTES_MASK
    const uint64_t CYP_WORD_COUNT_MASK
    const uint64_t CYP_WORD_GENERATION_MASK
    const uint64_t CYP_WORD_CONT
    const uint64_t CYP_WORD_HEAD
    const uint32_t CYP_RECORD_BYTES_MIN

    enum cyp_slot_state:
        CYP_FREE
        CYP_OPEN
        CYP_READY
        CYP_TAKEN
        CYP_DONE
        CYP_REVOKED

    ctypedef struct cyp_slot_row:
        uint64_t word
        uint64_t open_seq
        uint32_t topic
        int32_t partition
        int64_t base_timestamp
        int64_t max_timestamp
        uint32_t max_count
        uint32_t next
        uint64_t opened_ns
        uint32_t chunk_bytes
        uint32_t waited_ms

    enum:
        CYP_SUBMIT_OPEN
        CYP_SUBMIT_FULL
        CYP_SUBMIT_KIND_SHIFT
        CYP_SUBMIT_GENERATION_SHIFT

    ctypedef struct cyp_arena_header:
        uint64_t magic
        uint32_t layout_version
        uint32_t slot_count
        uint64_t ring_entries
        uint64_t slots_offset
        uint64_t ring_offset
        uint64_t chunks_offset
        uint64_t region_bytes
        uint64_t submit_tail
        uint32_t sleeping
        uint32_t wants_snapshot
        uint64_t records_sent
        uint64_t bytes_in_use
        uint64_t blocked_ns
        uint64_t outcome_head

    enum:
        CYP_OUTCOME_RESULT
        CYP_OUTCOME_RELEASE
        CYP_CONTROL_ATTACHED
        CYP_CONTROL_DETACHED
        CYP_CONTROL_RELEASED
        CYP_TEXTS
        CYP_TEXT_BYTES

    ctypedef struct cyp_outcome:
        uint32_t slot
        uint32_t generation
        uint32_t first
        uint32_t count
        int64_t base_offset
        int64_t append_time
        int32_t error
        uint32_t flags
        int32_t cause
        uint32_t text

    ctypedef struct cyp_text:
        uint32_t bytes
        char *text

    ctypedef struct cyp_outcomes_header:
        uint64_t magic
        uint32_t layout_version
        uint32_t slot_count
        uint64_t ring_entries
        uint64_t sent_offset
        uint64_t ring_offset
        uint64_t region_bytes
        uint64_t attach_id
        uint32_t control
        uint32_t idle
        uint64_t outcome_tail
        uint64_t submit_head
        cyp_text *texts

    const uint32_t CYP_TOPICS_MAX
    const uint32_t CYP_TOPIC_INDEX_ENTRIES
    const uint32_t CYP_CHANGES_ENTRIES
    const uint32_t CYP_LEADERS_BYTES
    enum:
        CYP_TOPIC_NAME_BYTES
        CYP_SNAPSHOT_ERROR_BYTES

    ctypedef struct cyp_topic_row:
        uint64_t word
        uint64_t leaders
        uint32_t name_bytes
        char *name

    ctypedef struct cyp_snapshot_header:
        uint64_t magic
        uint32_t layout_version
        uint32_t topics_max
        uint64_t sticky_offset
        uint64_t topics_offset
        uint64_t index_offset
        uint64_t changes_offset
        uint64_t leaders_offset
        uint64_t region_bytes
        uint64_t published
        uint64_t sleep
        uint64_t next_wake_ns
        uint64_t text
        uint32_t brokers
        uint32_t leaders_used
        char *texts

    const uint32_t CYP_ENTRIES_MAX
    const uint32_t CYP_CONTRIBUTORS_MAX
    const uint32_t CYP_PARTITIONS_MAX
    const uint32_t CYP_BODIES_MAX
    enum:
        CYP_ENTRY_FREE
        CYP_ENTRY_ASSIGNED
        CYP_ENTRY_RESOLVED
        CYP_ENTRY_PREPARED
        CYP_ENTRY_SPLIT
        CYP_ENTRY_UNSURE
        CYP_ENTRY_FRAGMENT
        CYP_ENTRY_PROVEN
        CYP_DOUBTS_MAX
        CYP_LANE_ORDINARY
        CYP_LANE_ISOLATION
        CYP_ENTRY_ORDER_STEP
        CYP_CONTRIBUTOR_REPORTED

    ctypedef struct cyp_entry:
        uint32_t state
        uint32_t flags
        uint32_t partition
        uint32_t count
        int64_t producer_id
        uint64_t base_sequence
        int64_t base_timestamp
        int64_t max_timestamp
        uint64_t created_ns
        uint32_t length
        uint32_t crc
        int16_t producer_epoch
        int16_t attributes
        int16_t acks
        int16_t cause
        uint32_t attempts
        uint32_t contributors
        uint32_t body
        int32_t error
        int64_t base_offset
        int64_t append_time
        uint64_t order
        uint32_t parent

    ctypedef struct cyp_contributor:
        uint64_t attach_id
        uint32_t slot
        uint32_t generation
        uint32_t first
        uint32_t count
        uint32_t next
        uint32_t flags

    ctypedef struct cyp_identity:
        int64_t producer_id
        uint64_t acked_end
        int16_t producer_epoch
        uint16_t doubts
        uint32_t bumping
        uint64_t *doubtful_ends

    ctypedef struct cyp_partition_row:
        uint32_t topic
        int32_t partition
        uint32_t current
        uint32_t lane
        cyp_identity identity[2]

    ctypedef struct cyp_state_header:
        uint64_t magic
        uint32_t layout_version
        uint32_t topic_count
        uint32_t partition_count
        uint64_t next_attach_id
        int64_t producer_id
        int16_t producer_epoch
        uint64_t topics_offset
        uint64_t partitions_offset
        uint64_t entries_offset
        uint64_t contributors_offset
        uint64_t bodies_offset
        uint64_t region_bytes
        uint64_t tick
        uint64_t pending
        uint64_t breadcrumb_attach
        uint32_t breadcrumb_slot
