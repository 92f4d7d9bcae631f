"""Declares the C headers of the shared memory for Cython: what the processes may do there.

The headers say what each function does, and which store pairs with which load.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


# `if CYPRODUCER_DEBUG:` costs nothing in a release build.
cdef extern from *:
    """
    #ifndef CYPRODUCER_DEBUG
    #error "setup.py defines CYPRODUCER_DEBUG for every module"
    #endif
    #include <stdio.h>
    #include <stdlib.h>

    /* Abort the process of a debug build with a core dump if an invariant is broken: going on would hide the cause. */
    static inline void cyp_check(int holds, const char *what) {
        if (!holds) {
            fprintf(stderr, "cyproducer: broken invariant: %s\\n", what);
            abort();
        }
    }
    """
    const bint CYPRODUCER_DEBUG
    void check "cyp_check"(bint holds, const char *what) noexcept nogil


# CRASHPOINT with a name such as step.what-has-just-happened: a place where a debug build can be killed or stopped. The
# tests find the crash points by reading the source: each name must be a literal and occur in one place only.
cdef extern from "cyproducer/shm/crashpoint.h" nogil:
    void CRASHPOINT "CYP_CRASHPOINT"(const char *name) noexcept


# The rest of this file is generated from the headers by tools/generate.py.
cdef extern from "cyproducer/shm/layout.h" nogil:
    const uint32_t CYP_PAGE_BYTES
    const uint32_t CYP_SAMPLES_MAX
    const uint64_t CYP_SAMPLE_WINDOW_NS
    const uint32_t CYP_SAMPLES
    const uint32_t CYP_OWN_TIMES
    const uint32_t CYP_CLIENT_TOPICS
    const uint32_t CYP_SENDER_TOPICS
    const uint32_t CYP_TOPIC_PROBES
    const uint64_t CYP_METRICS_OTHER
    const uint32_t CYP_METRICS_NODES
    const uint32_t CYP_TRANSACTIONS_MAX
    const uint32_t CYP_LAYOUT_VERSION
    const uint64_t CYP_ARENA_MAGIC
    const uint64_t CYP_OUTCOMES_MAGIC
    const uint64_t CYP_SNAPSHOT_MAGIC
    const uint64_t CYP_STATE_MAGIC
    const uint32_t CYP_NONE
    const uint32_t CYP_UNIT_BYTES
    const uint32_t CYP_BLOCK_BYTES
    const uint32_t CYP_BLOCK_UNITS
    const uint64_t CYP_ARENA_BYTES_MIN
    const uint64_t CYP_ARENA_BYTES_MAX
    const uint64_t CYP_WORD_BYTES_MASK
    const uint64_t CYP_WORD_COUNT_MASK
    const uint64_t CYP_WORD_GENERATION_MASK
    const uint64_t CYP_WORD_CONT
    const uint64_t CYP_WORD_HEAD
    const uint32_t CYP_RECORD_BYTES_MIN
    const uint32_t CYP_SUBMIT_OPEN
    const uint32_t CYP_SUBMIT_FULL
    const uint32_t CYP_OUTCOME_RESULT
    const uint32_t CYP_OUTCOME_RELEASE
    const uint32_t CYP_EXTENTS_MAX
    const uint32_t CYP_EXTENT_FREE
    const uint32_t CYP_EXTENT_FILLED
    const uint32_t CYP_TEXTS
    const uint32_t CYP_TEXT_BYTES
    const uint32_t CYP_CONTROL_ATTACHED
    const uint32_t CYP_CONTROL_DETACHED
    const uint32_t CYP_CONTROL_RELEASED
    const uint32_t CYP_TOPICS_MAX
    const uint32_t CYP_PARTITIONS_MAX
    const uint32_t CYP_TOPIC_INDEX_ENTRIES
    const uint32_t CYP_CHANGES_ENTRIES
    const uint32_t CYP_LEADERS_BYTES
    const uint64_t CYP_TOPIC_KNOWN
    const uint64_t CYP_TOPIC_FORGOTTEN
    const uint32_t CYP_ENTRIES_MAX
    const uint32_t CYP_CONTRIBUTORS_MAX
    const uint32_t CYP_BODIES_MAX
    const uint32_t CYP_ENTRY_UNSURE
    const uint32_t CYP_ENTRY_FRAGMENT
    const uint32_t CYP_ENTRY_PROVEN
    const uint32_t CYP_ENTRY_PARTIAL
    const uint32_t CYP_ENTRY_REFUSED
    const uint32_t CYP_ENTRY_ORDER_STEP
    const uint32_t CYP_CONTRIBUTOR_REPORTED
    const uint32_t CYP_DOUBTS_MAX
    const uint32_t CYP_LANE_ORDINARY
    const uint32_t CYP_LANE_ISOLATION
    const uint32_t CYP_LANE_FREE
    const uint32_t CYP_LANE_TRANSACTION

    enum:
        CYP_CACHE_LINE
        CYP_TRANSACTIONAL_ID_BYTES
        CYP_CHUNK_CLASSES
        CYP_WORD_BYTES_BITS
        CYP_WORD_COUNT_BITS
        CYP_WORD_GENERATION_BITS
        CYP_WORD_COUNT_SHIFT
        CYP_WORD_GENERATION_SHIFT
        CYP_WORD_CONT_SHIFT
        CYP_WORD_HEAD_SHIFT
        CYP_WORD_STATE_SHIFT
        CYP_SUBMIT_KIND_SHIFT
        CYP_SUBMIT_GENERATION_SHIFT
        CYP_TOPIC_NAME_BYTES
        CYP_SNAPSHOT_ERROR_BYTES
        CYP_TOPIC_ERROR_SHIFT
        CYP_LANE_TRANSACTION_SHIFT

    ctypedef struct cyp_sample:
        uint64_t start_ns
        uint64_t last_ns
        uint64_t events
        uint64_t sum
        uint64_t max

    ctypedef struct cyp_sensor:
        uint64_t total
        uint64_t count
        uint64_t current
        cyp_sample *samples

    ctypedef struct cyp_windows:
        uint64_t window_ns
        uint64_t samples

    enum:
        CYP_OWN_BUFFER_WAIT
        CYP_OWN_EXHAUSTED
        CYP_OWN_ERRORS
        CYP_OWN_FLUSH
        CYP_OWN_METADATA_WAIT
        CYP_OWN_SENSORS

    ctypedef struct cyp_own_metrics:
        cyp_windows windows
        uint64_t waiting
        uint64_t *times
        cyp_sensor *sensors

    enum:
        CYP_CLIENT_BATCH_SIZE
        CYP_CLIENT_COMPRESSION
        CYP_CLIENT_QUEUE_TIME
        CYP_CLIENT_RECORDS
        CYP_CLIENT_RECORD_SIZE
        CYP_CLIENT_RETRIES
        CYP_CLIENT_ERRORS
        CYP_CLIENT_SPLITS
        CYP_CLIENT_SENSORS

    ctypedef struct cyp_client_metrics:
        cyp_sensor *sensors

    enum:
        CYP_TOPIC_RECORDS
        CYP_TOPIC_BYTES
        CYP_TOPIC_COMPRESSION
        CYP_TOPIC_RETRIES
        CYP_TOPIC_ERRORS
        CYP_TOPIC_SENSORS

    ctypedef struct cyp_topic_metrics:
        uint64_t key
        cyp_sensor *sensors

    ctypedef struct cyp_share_metrics:
        cyp_client_metrics client
        cyp_windows windows
        uint64_t own_kept
        cyp_topic_metrics *topics

    enum:
        CYP_NODE_REQUESTS
        CYP_NODE_SENT
        CYP_NODE_RESPONSES
        CYP_NODE_RECEIVED
        CYP_NODE_LATENCY
        CYP_NODE_SENSORS

    ctypedef struct cyp_node_metrics:
        uint64_t key
        cyp_sensor *sensors

    enum:
        CYP_NETWORK_CREATED
        CYP_NETWORK_CLOSED
        CYP_NETWORK_IO
        CYP_NETWORK_SENT
        CYP_NETWORK_REQUESTS
        CYP_NETWORK_RECEIVED
        CYP_NETWORK_RESPONSES
        CYP_NETWORK_LATENCY
        CYP_NETWORK_THROTTLE
        CYP_NETWORK_SELECT
        CYP_NETWORK_WORK
        CYP_NETWORK_AUTHENTICATED
        CYP_NETWORK_AUTH_FAILED
        CYP_NETWORK_REAUTHENTICATED
        CYP_NETWORK_REAUTH_FAILED
        CYP_NETWORK_SENSORS

    ctypedef struct cyp_sender_metrics:
        cyp_client_metrics client
        cyp_windows windows
        uint64_t connections
        uint64_t in_flight
        uint64_t metadata_ns
        cyp_sensor *network
        cyp_own_metrics ended
        cyp_node_metrics *nodes
        cyp_topic_metrics *topics

    enum:
        CYP_TRANSACTION_UNINITIALIZED
        CYP_TRANSACTION_READY
        CYP_TRANSACTION_IN_TRANSACTION
        CYP_TRANSACTION_COMMITTING_TRANSACTION
        CYP_TRANSACTION_ABORTING_TRANSACTION
        CYP_TRANSACTION_FATAL_ERROR

    ctypedef struct cyp_transaction_place:
        int64_t producer_id
        uint64_t number
        int32_t result
        uint32_t phase
        int32_t failed
        int16_t producer_epoch
        uint8_t v2
        uint8_t needs_epoch

    ctypedef struct cyp_transaction_row:
        uint32_t used
        uint32_t current
        uint64_t attach_id
        int32_t timeout_ms
        uint32_t id_bytes
        cyp_transaction_place *places
        char *id

    enum:
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
        cyp_own_metrics metrics

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
        uint32_t extents

    ctypedef struct cyp_extent:
        uint32_t state
        uint32_t slot
        uint32_t generation
        uint32_t first
        uint32_t count
        int32_t error
        int32_t cause
        uint32_t text
        int64_t base_offset
        int64_t append_time
        uint32_t next

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
        uint64_t extents_offset
        uint32_t extents_used
        cyp_text *texts

    ctypedef struct cyp_topic_row:
        uint64_t word
        uint64_t leaders
        uint32_t name_bytes
        uint32_t generation
        char *name
        uint64_t *name_words

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
        uint32_t auth_failures
        char *texts

    enum:
        CYP_ENTRY_FREE
        CYP_ENTRY_ASSIGNED
        CYP_ENTRY_RESOLVED
        CYP_ENTRY_PREPARED
        CYP_ENTRY_SPLIT

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
        uint32_t start

    ctypedef struct cyp_identity:
        int64_t producer_id
        uint64_t acked_end
        int16_t producer_epoch
        uint16_t doubts
        uint32_t bumping
        uint64_t *doubtful_ends

    enum:
        CYP_TOPIC_FREE
        CYP_TOPIC_USED
        CYP_TOPIC_RETIRED

    ctypedef struct cyp_topic_state:
        uint32_t state
        uint32_t generation
        char *name

    ctypedef struct cyp_partition_row:
        uint32_t topic
        int32_t partition
        uint32_t current
        uint32_t lane
        cyp_identity *identity

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
        uint64_t transactions_offset
        uint64_t tick
        uint64_t pending
        uint64_t breadcrumb_attach
        uint32_t breadcrumb_slot


cdef extern from "cyproducer/shm/atomics.h" nogil:
    uint64_t load_acquire "cyp_load_acquire_u64"(const uint64_t *word) noexcept
    uint64_t load_relaxed "cyp_load_relaxed_u64"(const uint64_t *word) noexcept
    void store_release "cyp_store_release_u64"(uint64_t *word, uint64_t value) noexcept
    void store_relaxed "cyp_store_relaxed_u64"(uint64_t *word, uint64_t value) noexcept
    uint32_t load_acquire32 "cyp_load_acquire_u32"(const uint32_t *word) noexcept
    uint32_t load_relaxed32 "cyp_load_relaxed_u32"(const uint32_t *word) noexcept
    void store_release32 "cyp_store_release_u32"(uint32_t *word, uint32_t value) noexcept
    void store_relaxed32 "cyp_store_relaxed_u32"(uint32_t *word, uint32_t value) noexcept
    uint8_t load_relaxed8 "cyp_load_relaxed_u8"(const uint8_t *at) noexcept
    void store_relaxed8 "cyp_store_relaxed_u8"(uint8_t *at, uint8_t value) noexcept
    int64_t load_acquire_i64 "cyp_load_acquire_i64"(const int64_t *word) noexcept
    void store_release_i64 "cyp_store_release_i64"(int64_t *word, int64_t value) noexcept
    int32_t load_relaxed_i32 "cyp_load_relaxed_i32"(const int32_t *word) noexcept
    void store_relaxed_i32 "cyp_store_relaxed_i32"(int32_t *word, int32_t value) noexcept
    bint cas "cyp_cas_u64"(uint64_t *word, uint64_t expected, uint64_t desired) noexcept
    void fence_seq_cst "cyp_fence_seq_cst"() noexcept


cdef extern from "cyproducer/shm/linux.h" nogil:
    const uint32_t CYP_EPOLLET

    enum:
        CYP_EPOLL_EVENTS_MAX

    enum:
        CYP_EPOLLIN
        CYP_EPOLLOUT
        CYP_EPOLLERR
        CYP_EPOLLHUP

    ctypedef struct cyp_epoll_event:
        uint32_t events
        uint32_t tag

    int cyp_memfd_create(const char *name, unsigned int flags) noexcept
    int cyp_fcntl(int fd, int command, int argument) noexcept
    int cyp_madvise(void *at, size_t size, int advice) noexcept
    void *pages_new "cyp_pages_new"(size_t bytes) noexcept
    void pages_free "cyp_pages_free"(void *at, size_t bytes) noexcept
    bint next_data "cyp_next_data"(int fd, uint64_t at, uint64_t end, uint64_t *from_, uint64_t *to) noexcept
    bint has_memory "cyp_has_memory"(int fd, uint64_t at, uint64_t bytes) noexcept
    void drop_memory "cyp_drop_memory"(int fd, uint64_t at, uint64_t bytes) noexcept
    bint cyp_is_hugetlb(int fd) noexcept
    uint64_t monotonic_ns "cyp_monotonic_ns"() noexcept
    int64_t realtime_coarse_ms "cyp_realtime_coarse_ms"() noexcept
    void eventfd_signal "cyp_eventfd_signal"(int fd) noexcept
    void eventfd_clear "cyp_eventfd_clear"(int fd) noexcept
    void wake_signal "cyp_wake_signal"(int fd) noexcept
    void wake_clear "cyp_wake_clear"(int fd) noexcept
    bint same_file "cyp_same_file"(int fd, uint64_t device, uint64_t inode) noexcept
    int epoll_new "cyp_epoll_new"() noexcept
    int epoll_add "cyp_epoll_add"(int epoll_fd, int fd, uint32_t tag, uint32_t events) noexcept
    int epoll_update "cyp_epoll_update"(int epoll_fd, int fd, uint32_t tag, uint32_t events) noexcept
    int epoll_remove "cyp_epoll_remove"(int epoll_fd, int fd) noexcept
    int epoll_collect "cyp_epoll_collect"(
        int epoll_fd, cyp_epoll_event *out, int capacity, uint64_t timeout_ns
    ) noexcept
    int socket_error "cyp_socket_error"(int fd) noexcept


cdef extern from "cyproducer/shm/geometry.h" nogil:
    ctypedef struct FrontEndGeometry "cyp_front_end_geometry":
        uint32_t slot_count
        uint64_t submit_entries
        uint64_t outcome_entries
        uint64_t slots_offset
        uint64_t submit_ring_offset
        uint64_t chunks_offset
        uint64_t arena_bytes
        uint64_t sent_offset
        uint64_t outcome_ring_offset
        uint64_t extents_offset
        uint64_t metrics_offset
        uint64_t outcomes_bytes

    ctypedef struct SnapshotGeometry "cyp_snapshot_geometry":
        uint64_t sticky_offset
        uint64_t topics_offset
        uint64_t index_offset
        uint64_t changes_offset
        uint64_t leaders_offset
        uint64_t metrics_offset
        uint64_t region_bytes

    ctypedef struct StateGeometry "cyp_state_geometry":
        uint64_t topics_offset
        uint64_t partitions_offset
        uint64_t entries_offset
        uint64_t contributors_offset
        uint64_t transactions_offset
        uint64_t bodies_offset
        uint64_t region_bytes

    uint64_t page_align "cyp_page_align"(uint64_t size) noexcept
    bint front_end_geometry "cyp_front_end_sizes"(uint64_t buffer_memory, FrontEndGeometry *out) noexcept
    void snapshot_geometry "cyp_snapshot_sizes"(SnapshotGeometry *out) noexcept
    void state_geometry "cyp_state_sizes"(StateGeometry *out) noexcept


cdef extern from "cyproducer/shm/batch.h" nogil:
    const uint32_t CYP_SEAL_ATTEMPTS

    enum:
        CYP_TOPIC_NUMBER_BITS

    uint64_t word_make "cyp_word_make"(
        uint32_t state, uint64_t flags, uint32_t generation, uint32_t count, uint32_t size
    ) noexcept
    uint32_t word_state "cyp_word_state"(uint64_t word) noexcept
    uint32_t word_generation "cyp_word_generation"(uint64_t word) noexcept
    uint32_t word_count "cyp_word_count"(uint64_t word) noexcept
    uint32_t word_bytes "cyp_word_bytes"(uint64_t word) noexcept
    bint word_continues "cyp_word_continues"(uint64_t word) noexcept
    uint64_t word_with_state "cyp_word_with_state"(uint64_t word, uint32_t state) noexcept
    uint64_t word_with_records "cyp_word_with_records"(uint64_t word, uint32_t count, uint32_t size) noexcept
    uint32_t next_generation "cyp_next_generation"(uint32_t generation) noexcept
    bint slot_open "cyp_slot_open"(cyp_slot_row *row, uint32_t generation, uint64_t opened) noexcept
    void slot_hint "cyp_slot_hint"(cyp_slot_row *row, uint32_t count, int64_t max_timestamp, bint raised) noexcept
    bint slot_commit "cyp_slot_commit"(cyp_slot_row *row, uint64_t seen, uint64_t desired) noexcept
    bint slot_roll "cyp_slot_roll"(cyp_slot_row *row, uint64_t seen, uint32_t next) noexcept
    bint slot_close "cyp_slot_close"(cyp_slot_row *row, uint64_t seen) noexcept
    void slot_packed "cyp_slot_packed"(
        cyp_slot_row *row, uint64_t open_seq, uint32_t raw_bytes, uint32_t bytes, uint32_t next
    ) noexcept
    void slot_offer "cyp_slot_offer"(cyp_slot_row *last, uint32_t packed) noexcept
    void slot_free "cyp_slot_free"(cyp_slot_row *row, uint32_t next_generation) noexcept
    uint64_t slot_reclaim "cyp_slot_reclaim"(cyp_slot_row *row) noexcept
    uint64_t slot_peek "cyp_slot_peek"(const cyp_slot_row *row) noexcept
    uint32_t slot_topic "cyp_slot_topic"(const cyp_slot_row *row) noexcept
    uint64_t slot_glance "cyp_slot_glance"(const cyp_slot_row *row) noexcept
    bint word_is_live "cyp_word_is_live"(uint64_t word, uint32_t generation) noexcept
    bint word_is_taken "cyp_word_is_taken"(uint64_t word, uint32_t generation) noexcept
    uint64_t slot_seal "cyp_slot_seal"(cyp_slot_row *row, bint head, uint32_t generation, uint64_t room) noexcept
    uint32_t slot_offered "cyp_slot_offered"(const cyp_slot_row *last) noexcept
    uint32_t slot_next "cyp_slot_next"(const cyp_slot_row *row) noexcept
    bint slot_hinted "cyp_slot_hinted"(const cyp_slot_row *row, uint64_t word, int64_t *max_timestamp) noexcept
    void slot_done "cyp_slot_done"(cyp_slot_row *row, uint32_t generation) noexcept
    uint64_t slot_revoke "cyp_slot_revoke"(cyp_slot_row *row) noexcept
    void control_end "cyp_control_end"(uint32_t *control, uint32_t why) noexcept
    bint may_commit "cyp_may_commit"(const uint32_t *control) noexcept
    bint may_open "cyp_may_open"(const uint32_t *control) noexcept
    uint32_t topic_id "cyp_topic_id"(uint32_t number, uint32_t generation) noexcept
    uint32_t topic_id_number "cyp_topic_id_number"(uint32_t id) noexcept
    bint topic_is_valid "cyp_topic_is_valid"(const cyp_topic_row *row, uint32_t generation) noexcept
    void topic_retire "cyp_topic_retire"(cyp_topic_row *row) noexcept
    void topic_publish "cyp_topic_publish"(cyp_topic_row *row, uint32_t generation) noexcept
    void topic_keep "cyp_topic_keep"(cyp_topic_row *row) noexcept
    uint32_t topic_next_generation "cyp_topic_next_generation"(const cyp_topic_row *row) noexcept
    void sent_mark "cyp_sent_mark"(uint32_t *sent, uint32_t generation) noexcept
    bint sent_is "cyp_sent_is"(const uint32_t *sent, uint32_t generation) noexcept
    void entry_enter "cyp_entry_enter"(cyp_entry *entry, uint32_t state) noexcept
    void entry_unsure "cyp_entry_unsure"(cyp_entry *entry) noexcept
    void entry_sure "cyp_entry_sure"(cyp_entry *entry) noexcept
    void entry_fragment "cyp_entry_fragment"(cyp_entry *entry) noexcept
    void entry_prove "cyp_entry_prove"(cyp_entry *entry) noexcept
    void entry_resolve "cyp_entry_resolve"(
        cyp_entry *entry, int32_t error, int64_t base_offset, int64_t append_time
    ) noexcept


cdef extern from "cyproducer/shm/rings.h" nogil:
    ctypedef struct cyp_signalled:
        uint64_t sleep
        uint32_t idle

    uint64_t submit_entry "cyp_submit_entry"(uint32_t kind, uint32_t slot, uint32_t generation) noexcept
    uint32_t submit_kind "cyp_submit_kind"(uint64_t entry) noexcept
    uint32_t submit_generation "cyp_submit_generation"(uint64_t entry) noexcept
    uint32_t submit_slot "cyp_submit_slot"(uint64_t entry) noexcept
    void submit_push "cyp_submit_push"(
        uint64_t *ring, uint64_t mask, uint64_t *tail, uint64_t position, uint64_t entry
    ) noexcept
    uint64_t submit_tail "cyp_submit_tail"(const uint64_t *tail) noexcept
    uint64_t submit_read "cyp_submit_read"(const uint64_t *ring, uint64_t mask, uint64_t position) noexcept
    void outcome_put "cyp_outcome_put"(
        cyp_outcome *ring, uint64_t mask, uint64_t position, const cyp_outcome *outcome
    ) noexcept
    uint64_t outcomes_taken "cyp_outcomes_taken"(const uint64_t *head) noexcept
    void extent_fill "cyp_extent_fill"(cyp_extent *row, const cyp_extent *filled) noexcept
    void extent_lengthen "cyp_extent_lengthen"(cyp_extent *row, uint32_t count) noexcept
    void extent_free "cyp_extent_free"(cyp_extent *row) noexcept
    void extent_read "cyp_extent_read"(const cyp_extent *row, cyp_extent *extent) noexcept
    void outcome_publish "cyp_outcome_publish"(uint64_t *tail, uint64_t position) noexcept
    uint64_t outcome_available "cyp_outcome_available"(const uint64_t *tail, uint64_t head) noexcept
    void outcome_read "cyp_outcome_read"(
        const cyp_outcome *ring, uint64_t mask, uint64_t position, cyp_outcome *outcome
    ) noexcept
    bint outcome_is_current "cyp_outcome_is_current"(const cyp_outcome *outcome, uint32_t generation) noexcept
    bint sender_needs_wake "cyp_sender_needs_wake"(
        const cyp_snapshot_header *snapshot, const uint32_t *idle, uint64_t deadline_ns, cyp_signalled *signalled
    ) noexcept
    bint sender_asleep "cyp_sender_asleep"(const cyp_snapshot_header *snapshot) noexcept
    void sender_sleeps "cyp_sender_sleeps"(cyp_snapshot_header *snapshot, uint64_t next_wake_ns) noexcept
    void sender_wakes "cyp_sender_wakes"(cyp_snapshot_header *snapshot) noexcept
    void front_end_idles "cyp_front_end_idles"(uint32_t *idle) noexcept
    void front_end_acts "cyp_front_end_acts"(uint32_t *idle) noexcept
    void waiter_sleeps "cyp_waiter_sleeps"(uint32_t *sleeping, uint32_t epoch) noexcept
    void waiter_wakes "cyp_waiter_wakes"(uint32_t *sleeping, uint32_t epoch) noexcept
    bint waiter_needs_wake "cyp_waiter_needs_wake"(const uint32_t *sleeping, uint32_t *signalled) noexcept


cdef extern from "cyproducer/shm/snapshot.h" nogil:
    const uint32_t CYP_SHARE_NONE
    const uint32_t CYP_SHARE_AVOID
    const uint32_t CYP_SHARE_FULL
    const uint32_t CYP_CHANGE_ALL
    const uint32_t CYP_CHANGE_LOST
    const uint32_t CYP_INDEX_MASK

    uint64_t topic_word "cyp_topic_word"(int16_t error, uint32_t partitions) noexcept
    uint32_t topic_partitions "cyp_topic_partitions"(uint64_t word) noexcept
    int16_t topic_error "cyp_topic_error"(uint64_t word) noexcept
    uint64_t name_word "cyp_name_word"(const char *name, uint32_t bytes, uint32_t at) noexcept
    void topic_name "cyp_topic_name"(cyp_topic_row *row, const char *name, uint32_t bytes, uint32_t generation) noexcept
    uint32_t topic_named "cyp_topic_named"(const cyp_topic_row *row, const char *name, uint32_t bytes) noexcept
    uint64_t topic_hash "cyp_topic_hash"(const char *name, uint32_t bytes) noexcept
    uint32_t topic_find "cyp_topic_find"(
        const uint64_t *index, const cyp_topic_row *rows, const char *name, uint32_t bytes, uint32_t *place,
        uint32_t *generation
    ) noexcept
    void topic_enter "cyp_topic_enter"(uint64_t *index, uint32_t place, uint32_t number, uint64_t hash) noexcept
    uint32_t topic_place "cyp_topic_place"(const uint64_t *index, uint32_t number, uint64_t hash) noexcept
    void topic_leave "cyp_topic_leave"(uint64_t *index, uint32_t place) noexcept
    void topic_store "cyp_topic_store"(cyp_topic_row *row, uint64_t word) noexcept
    uint64_t topic_load "cyp_topic_load"(const cyp_topic_row *row) noexcept
    uint64_t topic_leaders "cyp_topic_leaders"(const cyp_topic_row *row) noexcept
    void topic_move "cyp_topic_move"(cyp_topic_row *row, uint32_t at, uint32_t room) noexcept
    void change_put "cyp_change_put"(uint64_t *ring, uint64_t position, uint32_t number) noexcept
    void change_publish "cyp_change_publish"(uint64_t *published, uint64_t position) noexcept
    uint32_t change_read "cyp_change_read"(const uint64_t *ring, uint64_t position) noexcept


cdef extern from "cyproducer/shm/metrics.h" nogil:
    const uint32_t CYP_RATE_WINDOW_MIN_NS

    enum:
        CYP_READ_ATTEMPTS

    ctypedef struct cyp_reading:
        uint64_t total
        uint64_t count
        uint64_t sum
        uint64_t events
        uint64_t max
        uint64_t elapsed_ns

    void sample_begin "cyp_sample_begin"(cyp_sample *sample, uint64_t now) noexcept
    void sensor_record "cyp_sensor_record"(
        cyp_sensor *sensor, const cyp_windows *windows, uint64_t value, uint64_t now
    ) noexcept
    void sensor_add_totals "cyp_sensor_add_totals"(cyp_sensor *sensor, const cyp_sensor *other) noexcept
    bint sample_read "cyp_sample_read"(const cyp_sample *sample, cyp_sample *copy) noexcept
    void sensor_read "cyp_sensor_read"(
        const cyp_sensor *sensor, uint64_t window_ns, uint64_t samples, uint64_t now, cyp_reading *out
    ) noexcept
