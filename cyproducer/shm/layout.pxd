"""Declares the shared structs and constants of layout.h for Cython."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "cyproducer/shm/layout.h" nogil:
    const uint32_t CYP_LAYOUT_VERSION
    const uint32_t CYP_OWN_TIMES
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

    enum:
        CYP_SAMPLES_MAX
        CYP_SAMPLES
        CYP_CLIENT_TOPICS
        CYP_SENDER_TOPICS
        CYP_TOPIC_PROBES
        CYP_METRICS_NODES
        CYP_OWN_BUFFER_WAIT
        CYP_OWN_EXHAUSTED
        CYP_OWN_ERRORS
        CYP_OWN_FLUSH
        CYP_OWN_METADATA_WAIT
        CYP_OWN_SENSORS
        CYP_CLIENT_BATCH_SIZE
        CYP_CLIENT_COMPRESSION
        CYP_CLIENT_QUEUE_TIME
        CYP_CLIENT_RECORDS
        CYP_CLIENT_RECORD_SIZE
        CYP_CLIENT_RETRIES
        CYP_CLIENT_ERRORS
        CYP_CLIENT_SPLITS
        CYP_CLIENT_SENSORS
        CYP_TOPIC_RECORDS
        CYP_TOPIC_BYTES
        CYP_TOPIC_COMPRESSION
        CYP_TOPIC_RETRIES
        CYP_TOPIC_ERRORS
        CYP_TOPIC_SENSORS
        CYP_NODE_REQUESTS
        CYP_NODE_SENT
        CYP_NODE_RESPONSES
        CYP_NODE_RECEIVED
        CYP_NODE_LATENCY
        CYP_NODE_SENSORS
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
    const uint64_t CYP_SAMPLE_WINDOW_NS
    const uint64_t CYP_METRICS_OTHER

    ctypedef struct cyp_sensor:
        uint64_t total
        uint64_t count

    ctypedef struct cyp_windows:
        uint64_t window_ns
        uint64_t samples

    ctypedef struct cyp_own_metrics:
        cyp_windows windows
        uint64_t waiting
        uint64_t *times
        cyp_sensor *sensors

    ctypedef struct cyp_client_metrics:
        cyp_sensor *sensors

    ctypedef struct cyp_topic_metrics:
        uint64_t key
        cyp_sensor *sensors

    ctypedef struct cyp_share_metrics:
        cyp_client_metrics client
        cyp_windows windows
        uint64_t own_kept
        cyp_topic_metrics *topics

    ctypedef struct cyp_node_metrics:
        uint64_t key
        cyp_sensor *sensors

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
        cyp_own_metrics metrics

    enum:
        CYP_OUTCOME_RESULT
        CYP_OUTCOME_RELEASE
        CYP_CONTROL_ATTACHED
        CYP_CONTROL_DETACHED
        CYP_CONTROL_RELEASED
        CYP_TEXTS
        CYP_TEXT_BYTES
        CYP_EXTENTS_MAX
        CYP_EXTENT_FREE
        CYP_EXTENT_FILLED

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
        uint32_t generation
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
        uint32_t auth_failures
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
        CYP_ENTRY_PARTIAL
        CYP_ENTRY_REFUSED
        CYP_DOUBTS_MAX
        CYP_LANE_ORDINARY
        CYP_LANE_ISOLATION
        CYP_LANE_FREE
        CYP_LANE_TRANSACTION
        CYP_LANE_TRANSACTION_SHIFT
        CYP_TRANSACTIONS_MAX
        CYP_TRANSACTIONAL_ID_BYTES
        CYP_TRANSACTION_NEW
        CYP_TRANSACTION_READY
        CYP_TRANSACTION_OPEN
        CYP_TRANSACTION_COMMITTING
        CYP_TRANSACTION_ABORTING
        CYP_TRANSACTION_FATAL
        CYP_TOPIC_FREE
        CYP_TOPIC_USED
        CYP_TOPIC_RETIRED
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
        uint32_t start

    ctypedef struct cyp_identity:
        int64_t producer_id
        uint64_t acked_end
        int16_t producer_epoch
        uint16_t doubts
        uint32_t bumping
        uint64_t *doubtful_ends

    ctypedef struct cyp_topic_state:
        uint32_t state
        uint32_t first
        char *name

    ctypedef struct cyp_partition_row:
        uint32_t topic
        int32_t partition
        uint32_t current
        uint32_t lane
        cyp_identity identity[2]

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
        cyp_transaction_place places[2]
        char *id

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
