"""The sender's private picture of everything: front-ends, batches, partitions, entries, connections.

All of it is plain C memory of this process. What a successor needs lies in the state region (cyp_entry,
cyp_contributor, cyp_partition_row) and is referred to from here; what a front-end wrote is copied here once,
checked, and never read again, except the records themselves.

    FrontEnd --batches[slot]--> Batch --queue--> Queue (front-end x partition) --ring--> Partition --> Node
    Partition --wires, by sequence--> Wire (one RecordBatch on the wire) --contributors--> Batch ...
    Wire --> Request --> Node's connection
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.uio cimport iovec

from cyproducer.shm.layout cimport (
    cyp_arena_header,
    cyp_contributor,
    cyp_entry,
    cyp_outcome,
    cyp_outcomes_header,
    cyp_partition_row,
    cyp_slot_row,
    cyp_snapshot_header,
    cyp_state_header,
)


cdef enum:
    UNRESOLVED_MAX = 5              # entries of a partition: the broker remembers five batches of a producer
    WIRES_PER_REQUEST_MAX = 512
    MERGE_BELOW_BYTES = 32768       # a head batch smaller than this looks for company
    DRAIN_ALL_BELOW_BYTES = 65536   # a request smaller than this also takes what still lingers
    MERGE_MAX = 64                  # front-ends that share one batch
    FAILURES_MAX = 1024             # rows of the failure table between two collections
    IOV_PER_CALL_MAX = 1024         # Linux's IOV_MAX


# A front-end's batch:  NONE -> LINGERING -> DUE -> CLOSED -> ASSIGNED -> NONE
cdef enum BatchState:
    BATCH_NONE = 0
    BATCH_LINGERING = 1             # open, its linger time is not over
    BATCH_DUE = 2                   # open, to be sealed when it is drained
    BATCH_CLOSED = 3                # sealed; its chunks are measured
    BATCH_ASSIGNED = 4              # contributes to a wire batch


ctypedef struct Batch:
    uint8_t state
    bint reported                   # RESULT was published (an error, or acks=0 and written); RELEASE is still owed
    bint solo                       # never merged again: a merged batch with it was refused
    bint accused                    # leaves its merged batch: the broker named one of its records, or an offender's
    uint32_t slot                   # head of the chain; Batch is FrontEnd.batches[slot]
    uint32_t generation
    uint32_t count
    uint32_t bytes
    uint32_t chunks                 # of its chain, held since it was sealed
    uint64_t open_seq
    uint64_t created_ns             # when it was first seen: it lingers from then on
    uint64_t born_ns                # when it was opened, in this arena or a former one: it expires by that
    int64_t base_timestamp
    int64_t max_timestamp
    FrontEnd *front_end
    Queue *queue
    Wire *wire
    Batch *next                     # in the queue
    Batch *previous
    Batch *linger_next              # front-end's LINGERING batches, oldest first
    Batch *linger_previous
    Batch *age_next                 # front-end's batches whose delivery timeout runs, oldest first
    Batch *age_previous


# The batches of one front-end for one partition, in the order of send().
ctypedef struct Queue:
    FrontEnd *front_end
    Partition *partition
    Batch *head
    Batch *tail
    uint32_t length
    int64_t deficit                 # bytes; deficit round robin over the queues of a partition
    bint offender                   # its records were refused: it belongs into the penalty lane
    uint32_t sentence               # batches that must be accepted there until it may leave
    uint32_t to_serve               # of them, still
    Queue *next                     # ring of the partition's queues that are not empty
    Queue *previous


# The youngest outcomes of a slot that a former sender has published.
ctypedef struct Published:
    uint32_t generation
    uint32_t flags


ctypedef struct FrontEnd:
    uint64_t attach_id
    uint32_t slot_count
    uint64_t submit_mask
    uint64_t outcome_mask
    cyp_arena_header *header
    cyp_slot_row *rows
    uint64_t *submit_ring
    uint8_t *chunks
    cyp_outcomes_header *outcomes_header
    cyp_outcome *outcome_ring
    uint32_t *sent
    uint64_t submit_head
    uint64_t outcome_tail
    int wake_fd                     # the front-end sleeps on it
    int sender_wake_fd              # the front-end writes it
    uint32_t wake_signalled
    uint32_t snapshot_signalled
    bint has_outcomes               # published in this turn, not yet announced
    bint detached                   # its process has gone, or it was given up
    bint condemned                  # it broke the protocol; Python detaches it
    int16_t acks
    bint idempotent
    int16_t codec                   # of its batches' records, as in their attributes; 0: none
    int32_t level                   # of the codec; INT32_MIN: what it takes by itself
    int64_t linger_ns
    int64_t delivery_timeout_ns
    uint32_t retries
    Batch *batches                  # by head slot
    uint32_t *chunk_next            # by slot, copied when a chain is sealed
    uint32_t *chunk_bytes
    uint32_t *chunk_count
    uint8_t *chunk_held             # 1: measured for a batch that is not released
    Published *published            # by slot, while the front-end is being adopted; else NULL
    Queue **queues                  # by partition index; NULL until used
    uint32_t queue_capacity
    uint32_t live                   # batches that are not released
    Batch *linger_head
    Batch *linger_tail
    Batch *age_head
    Batch *age_tail
    uint64_t bytes_live
    FrontEnd *next
    FrontEnd *previous


ctypedef struct Topic:
    char name[256]
    uint32_t name_bytes
    uint32_t number
    int32_t partition_count
    Partition **partitions
    int32_t sticky                  # -1: none
    uint64_t sticky_bytes           # drained to it since it was chosen
    bint used                       # a batch came or went out since Python asked last
    bint unled                      # nobody keeps its leaders up to date: the next batch has them looked for


cdef enum PartitionList:
    LIST_NONE = 0
    LIST_LINGERING = 1
    LIST_READY = 2


# One lane of a partition: the ordinary one, or that of front-ends whose records were refused. Each has a row,
# queues, wires, sequences and a producer id of its own; a request carries a batch of one of the two.
ctypedef struct Partition:
    uint32_t index                  # row of the partition table
    bint penalty                    # unmerged, one in flight, under the other producer id
    Partition *twin                 # the other lane; NULL: there is none
    bint owed                       # its twin was preferred in a request: now it comes first
    bint suspects                   # an offender's queue is in the ring and is to leave for the penalty lane
    Topic *topic
    int32_t number
    cyp_partition_row *row
    Node *leader                    # NULL: unknown
    Queue *ring                     # where the next drain starts
    uint32_t queue_count
    uint32_t ready                  # queued batches that are DUE or CLOSED
    Wire *wire_head                 # unresolved, by sequence
    Wire *wire_tail
    uint32_t unresolved
    uint32_t in_flight
    uint32_t waiting                # wires to be sent again
    uint64_t next_sequence
    int64_t producer_id
    int16_t producer_epoch
    bint acknowledged               # the broker has answered for (producer_id, producer_epoch)
    bint bumping                    # nothing is drained until its wires are certain; then a new epoch
    uint32_t merge_max              # bytes of a merged batch; 0: no limit is known
    uint64_t acknowledged_ns
    uint64_t retry_at_ns            # backing off until
    bint collected                  # it has its batch in the request being made: a request has one of each
    uint8_t listed                  # LIST_: which ring of its leader it is a member of
    Partition *next
    Partition *previous


# One RecordBatch on its way to the broker.
cdef enum WireState:
    WIRE_FREE = 0
    WIRE_WAITING = 1                # to be sent (again)
    WIRE_IN_FLIGHT = 2


# Sent before an unsure later one although the broker has refused its sequence.
cdef enum WireAhead:
    AHEAD_NOT = 0
    AHEAD_SENT = 1
    AHEAD_REFUSED = 2


ctypedef struct Wire:
    uint8_t state
    uint32_t index                  # its persistent entry
    cyp_entry *entry
    Partition *partition
    Request *request
    uint8_t header[61]
    uint8_t *body                   # NULL: the chunks of the only contributor
    uint8_t *packed                 # the records compressed, private; NULL: they go out as they are
    uint32_t packed_bytes
    int16_t codec                   # 0: not to be compressed
    int32_t level
    uint8_t *copy                   # of the chunks, private: the broker found them corrupt; NULL: none
    uint32_t corrupt                # attempts that were answered CORRUPT_MESSAGE
    uint32_t contributor_count
    uint32_t unreported             # contributors whose delivery timeout runs
    uint32_t retries
    int16_t acks
    bint idempotent
    bint stamped                    # entry.crc is that of the records as they went out
    bint sent                       # an attempt has gone out under the present sequence
    bint unsure                     # an attempt before the present one may have been appended
    bint spoiled                    # the broker has named a record of the merged batch
    bint heir                       # unsure as part of a larger batch, under the same first sequence
    uint8_t ahead                   # WireAhead
    Wire *next
    Wire *previous


cdef enum RequestKind:
    REQUEST_CONTROL = 0             # its response goes to Python
    REQUEST_PRODUCE = 1


ctypedef struct Request:
    uint8_t kind
    bint finished                   # written in full
    bint started                    # a byte was written
    int32_t correlation_id
    int16_t version
    int16_t acks
    uint8_t *bytes                  # frame, request header, batch headers
    uint32_t bytes_length
    uint32_t bytes_capacity
    iovec *iov
    uint32_t iov_count
    uint32_t iov_capacity
    uint32_t iov_at
    Wire **wires
    uint32_t wire_count
    uint64_t total
    uint64_t sent_ns
    Request *next


cdef enum ConnectionState:
    CONNECTION_CLOSED = 0
    CONNECTION_CONNECTING = 1
    CONNECTION_NEGOTIATING = 2      # connected; Python exchanges ApiVersions
    CONNECTION_READY = 3


# A broker and the one connection to it.
ctypedef struct Node:
    int32_t id                      # the broker's; negative for a bootstrap address
    uint32_t index
    uint8_t state
    int fd
    bint wants_write
    bint work_reported              # EVENT_WORK was pushed since the connection was closed
    uint32_t epoll_tag
    int16_t produce_version
    uint64_t muted_until_ns         # throttled
    uint64_t active_ns              # something was written or read
    int32_t next_correlation_id
    Request *out_head               # to be written, in order
    Request *out_tail
    Request *sent_head              # written, waiting for their responses, in order
    Request *sent_tail
    uint32_t in_flight              # requests that count for max_in_flight_requests_per_connection
    uint8_t acks_turn               # whose turn the next request is: acks + 1
    uint8_t *input
    uint32_t input_length
    uint32_t input_capacity
    Partition *ready                # ring of partitions with something to send
    uint32_t ready_count
    Partition *lingering            # ring of partitions that only have lingering batches
    uint32_t lingering_count


# What an epoll tag is about: kind in the upper half, index or descriptor in the lower.
cdef enum EpollTag:
    TAG_NODE = 1
    TAG_FRONT_END = 2
    TAG_WATCHED = 3
    TAG_SHIFT = 28
    TAG_MASK = 0x0fffffff


cdef enum EventKind:
    EVENT_CONNECTED = 1
    EVENT_CLOSED = 2
    EVENT_RESPONSE = 3
    EVENT_PRODUCER_ID = 4           # a fresh producer id is needed
    EVENT_CONDEMNED = 5             # a front-end broke the protocol
    EVENT_WORK = 6                  # there is something to send and no connection


# What a front-end did that no honest one does; engine.py has the words.
cdef enum Condemned:
    CONDEMNED_RING = 1              # its submission ring holds more than it can
    CONDEMNED_HINT = 2              # what it submitted names no slot
    CONDEMNED_CHAIN = 3             # what it committed is no chain of records
    CONDEMNED_CHANGED = 4           # it changed what it had committed


ctypedef struct Event:
    uint8_t kind
    uint32_t node
    int32_t correlation_id
    int32_t error                   # errno, a CLOSE_ or a CONDEMNED_ reason
    uint64_t attach_id
    uint8_t *payload                # of a response; owned by whoever takes the event
    uint32_t payload_length


cdef enum CloseReason:
    CLOSE_BY_PEER = -1
    CLOSE_TIMEOUT = -2
    CLOSE_PROTOCOL = -3
    CLOSE_BY_US = -4


ctypedef struct Failure:
    uint64_t attach_id
    uint32_t topic
    int32_t error
    uint64_t records


ctypedef struct Totals:
    uint64_t records
    uint64_t bytes
    uint64_t batches
    uint64_t requests
    uint64_t retries
    uint64_t errors
    uint64_t merged
    uint64_t turns
    uint64_t sleeps


ctypedef struct Core:
    int epoll_fd
    uint64_t now
    # settings
    uint32_t max_request_size
    uint32_t max_in_flight
    uint64_t request_timeout_ns
    uint64_t retry_backoff_ns
    uint64_t retry_backoff_max_ns
    bint adaptive
    uint8_t acks_seen               # bit 0: some front-end has acks=0, 1: acks=1, 2: acks=all
    char client_id[256]
    int16_t client_id_bytes
    # shared regions
    cyp_snapshot_header *snapshot
    int32_t *sticky
    uint8_t *state
    cyp_state_header *state_header
    cyp_partition_row *partition_rows
    cyp_entry *entries
    cyp_contributor *contributors
    uint8_t *bodies
    # tables
    FrontEnd *front_ends
    uint32_t front_end_count
    FrontEnd *ended                 # detached and nothing refers to them: Python unmaps
    Topic **topics
    uint32_t topic_count
    Partition **partitions
    uint32_t partition_count
    Node **nodes
    uint32_t node_count
    Wire *wires
    uint32_t *free_wires
    uint32_t free_wire_count
    uint32_t *free_contributors
    uint32_t free_contributor_count
    Batch **contributor_batches
    uint32_t *free_bodies
    uint32_t free_body_count
    Request *spare_requests
    uint32_t spare_count
    uint32_t requests_made          # all that exist; each is with a connection or spare
    # producer identity
    int64_t producer_id
    int16_t producer_epoch
    bint wants_producer_id
    int64_t penalty_producer_id     # of all penalty lanes
    int16_t penalty_producer_epoch
    bint wants_penalty_id
    uint64_t next_order             # of the next entry
    # what Python takes
    Event *events
    uint32_t event_count
    uint32_t event_capacity
    bint refresh_wanted
    Failure *failures
    uint32_t failure_count
    Totals totals
    uint64_t packing_ns             # of this turn, in compressing
    uint64_t sticky_checked_ns      # when brokers were looked at last that sticky partitions are to leave
    uint64_t live_batches
    uint64_t next_timer_ns          # earliest known reason to wake, recomputed every turn
    uint64_t random
