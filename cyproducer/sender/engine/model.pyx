"""Declares the data structures of the engine: front-ends, batches, partitions, entries, connections.

All of them are plain C memory of the sender process. Data that a restarted sender needs lies in the state region
(cyp_entry, cyp_contributor, cyp_partition_row), and these structures point to it. Data that a front-end wrote is read
once, checked, and copied into these structures; only the records themselves are read from the arena later.

    FrontEnd --batches[slot]--> ClientBatch --queue--> Queue (front-end x partition) --lane--> Lane --leader--> Node
    Node --flows--> Flow (front-end x broker) --backlogs--> Backlog (of a Queue, or of a Lane's retries)
    Lane --wires, by sequence--> WireBatch (one RecordBatch of a request) --contributors--> ClientBatch ...
    WireBatch --> Request --> Node's connection

A "wire" in names is a wire batch. Times that end in _ns are nanoseconds of CLOCK_MONOTONIC.

A part of a structure has the name of the file that writes it: `lane.drain.ready` is written in drain.pyx only, and read
everywhere. What stands beside the parts is written when the structure is created, apart from the counts in Core.totals.
tests/style/test_ownership.py checks this, and has the list of the exceptions.
"""


# ------------------------------------------------------------ rings
#
# Links elements in a ring: a circular doubly linked list whose links are members of the elements.
#
# A walk begins at `first`. To begin a walk at another element, set `first` to its link: this rotates the ring. An
# element that is appended becomes the last one, which is directly before `first`.
#
# A structure begins with its Link, so a pointer to the link is cast to a pointer to the structure, and NULL stays
# NULL. A lane can be in two rings. It begins with the link of one, and a LaneLink, which points to the lane, is in
# the other.


ctypedef struct Link:
    Link *next
    Link *previous


ctypedef struct Ring:
    Link *first                     # NULL: the ring is empty
    uint32_t length


# ------------------------------------------------------------ states
#
# Declares the states of lanes and connections, as the fields of the structures below have them.


# Whether the leader has the state of the lane's producer: it is asked before an unsure batch is sent again.
cdef enum StateAsked:
    STATE_NOT_ASKED = 0
    STATE_ASKED = 1
    STATE_KNOWN = 2


cdef enum LaneList:
    LIST_NONE = 0
    LIST_LINGERING = 1
    LIST_READY = 2


cdef enum Hold:                     # of the end of a transaction, see TransactionTable.hold()
    HOLD_NONE = 0
    HOLD = 1                        # no batch of the next transaction is sent
    HOLD_AWAITED = 2                # and one waits


cdef enum ConnectionState:
    CONNECTION_CLOSED = 0
    CONNECTION_CONNECTING = 1
    CONNECTION_HANDSHAKING = 2      # connected; Python asks a proxy, or makes the TLS handshake
    CONNECTION_NEGOTIATING = 3      # Python exchanges ApiVersions, and authenticates with SASL
    CONNECTION_READY = 4


# ------------------------------------------------------------ model


cdef enum:
    UNRESOLVED_MAX = 5              # unresolved entries of a lane: a broker remembers the last five batches
    WIRES_PER_REQUEST_MAX = 512
    MERGE_BELOW_BYTES = 32768       # a batch smaller than this is merged with batches of other front-ends
    DRAIN_ALL_BELOW_BYTES = 65536   # a request smaller than this also takes batches that still linger
    MERGE_MAX = 64                  # front-ends that share one wire batch
    FAILURES_MAX = 1024             # rows of the failure table, which Python empties
    NAMED_MAX = 1024                # records of a wire batch that a broker names
    STATES_PER_REQUEST_MAX = 64     # partitions: the answer lists every producer that wrote to one within a day


# A client batch:  NONE -> LINGERING -> DUE -> CLOSED -> ASSIGNED -> NONE
cdef enum BatchState:
    BATCH_NONE = 0
    BATCH_LINGERING = 1             # open; its linger time is not over
    BATCH_DUE = 2                   # open; it is sealed when it is drained
    BATCH_CLOSED = 3                # sealed; its chunks are measured
    BATCH_ASSIGNED = 4              # contributes to a wire batch


ctypedef struct BatchIntake:
    uint8_t state
    uint32_t count
    uint32_t bytes
    uint32_t chunks                 # of its chain; held since it was sealed
    uint32_t largest                # bytes of its largest record; 0: not measured
    uint64_t created_ns             # start of its linger time: born_ns, or that of the batch before it if later
    uint64_t born_ns                # when it was opened, in this or an earlier arena; its delivery timeout starts
    int64_t base_timestamp
    int64_t max_timestamp
    ClientBatch *next               # in the queue
    ClientBatch *previous
    ClientBatch *linger_next        # LINGERING batches of the front-end, oldest first
    ClientBatch *linger_previous


ctypedef struct BatchOutcome:
    bint reported                   # RESULT was published (an error, or acks=0 and written); RELEASE follows later
    ClientBatch *age_next           # batches of the front-end whose delivery timeout runs, oldest first
    ClientBatch *age_previous


ctypedef struct BatchWire:
    WireBatch *batch


ctypedef struct BatchRefusal:
    bint unmergeable                # it is not merged: a merged batch that contained it was refused
    bint withdrawn                  # leaves its merged batch: the broker named one of its records, or it is isolated


ctypedef struct BatchParts:
    bint split                      # ASSIGNED, and it contributes to partial wire batches only
    uint32_t pending                # how many of them have no result yet
    uint32_t extents                # index + 1 of its newest row in FrontEnd.extents; 0: none
    uint32_t reserved_extents       # rows that its parts may still fill
    uint32_t resolved_count         # records that have a result in these rows


ctypedef struct ClientBatch:
    uint32_t slot                   # first slot of its chain; the batch is FrontEnd.batches[slot]
    uint32_t generation
    uint64_t open_seq
    FrontEnd *front_end
    Queue *queue
    BatchIntake intake
    BatchOutcome outcome
    BatchWire wire
    BatchRefusal refusal
    BatchParts parts


# Which of its flow's two rings a backlog is in.
cdef enum BacklogKind:
    BACKLOG_NEW = 0                 # a queue whose head is ready to be sent
    BACKLOG_RETRIES = 1             # a lane with wire batches that wait to be sent


ctypedef struct Backlog:
    Link link                       # in one of the rings Flow.backlogs
    Lane *lane
    Flow *flow                      # NULL: it is in no ring
    uint8_t kind


# Rows of the state region that are in use.
ctypedef struct Usage:
    uint32_t entries
    uint32_t reserved               # how many of the entries were taken from the reserve
    uint32_t extras                 # contributors beyond the first one of each entry
    uint32_t bodies
    uint32_t parts                  # entries that have some records of one batch


# One front-end at one broker: its position in the deficit round robin of requests, and the rows that it uses.
ctypedef struct Flow:
    Link link                       # in Node.drain.flows
    FrontEnd *front_end             # NULL: Node.common, for wire batches whose front-end is not known
    Node *node
    Flow *home                      # the flow of its front-end at the first connection to the broker; perhaps itself
    Usage used                      # rows of the state region, if it is its home
    Ring backlogs[2]                # by BacklogKind; the first of each is visited next
    Backlog *postponed[2]           # the first backlog of this walk that was postponed: the next walk starts there
    uint32_t left[2]                # backlogs that this walk has not visited
    uint64_t walk                   # Core.drain.walk when `left` was set
    uint64_t served                 # Core.drain.walk when a wire batch of the flow was last added to a request
    uint8_t next_kind               # BacklogKind of the ring that is visited next
    int64_t deficit                 # bytes that the flow may still send before the next flow follows


ctypedef struct QueueIntake:
    Lane *lane
    ClientBatch *head
    ClientBatch *tail
    uint32_t length


ctypedef struct QueueDrain:
    int64_t deficit                 # bytes; deficit round robin over the queues of a lane
    Backlog backlog


ctypedef struct QueueRefusal:
    bint isolated                   # its records were refused: it belongs to the isolation lane
    uint32_t isolation_batches      # batches that must be acknowledged in the isolation lane before the queue leaves it
    uint32_t isolation_left         # how many of them are still missing


# The batches of one front-end for one partition, in the order of send().
ctypedef struct Queue:
    Link link                       # in Lane.intake.queues
    FrontEnd *front_end
    QueueIntake intake
    QueueDrain drain
    QueueRefusal refusal


# The newest outcomes that the predecessor has published for a slot.
ctypedef struct Published:
    uint32_t generation
    uint32_t flags


ctypedef struct FrontEndFrontEnds:
    uint32_t snapshot_signalled
    # detached or released, and its slot table is being scanned: it is in Core.front_ends.ending
    bint ending
    bint released                   # its process lives and opens no more slots, because this sender is ending
    bint detached                   # its process has ended, or the sender has detached it
    FrontEnd *ending_next


ctypedef struct FrontEndFrontEnd:
    uint64_t tables_bytes           # size of the memory of all tables by slot
    FrontEnd *next
    FrontEnd *previous


ctypedef struct FrontEndLoop:
    bint active                     # every loop iteration looks at its submission ring: it is in Core.loop.active
    uint64_t active_ns              # when the ring was last found not empty
    uint32_t deadline_place         # its place in the heap, from 1; 0: it is not in the heap
    uint64_t deadline_ns            # its key in the heap; not later than its next deadline
    FrontEnd *active_next
    FrontEnd *active_previous


ctypedef struct FrontEndTopicNumbers:
    uint32_t scanned                # slots that the search for retired topics has passed


ctypedef struct FrontEndIntake:
    uint64_t submit_head
    uint32_t scanned                # slots that the scan has passed
    uint32_t unknown_count
    uint64_t *unknown               # pairs (open_seq, slot) that the scan has found
    uint8_t violation               # VIOLATION_: it broke the protocol; Python detaches it
    Queue **queues                  # by lane index; NULL until used
    uint32_t queue_capacity
    uint32_t live                   # batches that are not released
    ClientBatch *linger_head
    ClientBatch *linger_tail
    uint64_t bytes_live


ctypedef struct FrontEndDrain:
    Flow **flows                    # by node index; NULL until used
    uint32_t flow_capacity


ctypedef struct FrontEndOutcome:
    uint64_t outcome_tail
    uint32_t text_place             # index of the next text in cyp_outcomes_header.texts
    uint64_t[CYP_TEXTS] text_until  # by index: it is free once the front-end has read the outcomes before this position
    uint32_t wake_signalled
    bint has_outcomes               # published in this iteration and not announced: it is in Core.outcome.to_announce
    FrontEnd *announce_next
    ClientBatch *age_head
    ClientBatch *age_tail


ctypedef struct FrontEndParts:
    uint64_t *extent_until          # by index, as text_until; NULL until a batch is split (parts.pyx)
    uint32_t *free_extents
    uint32_t free_extent_count
    uint32_t extents_reserved       # sum of ClientBatch.parts.reserved_extents


ctypedef struct FrontEndMetrics:
    uint64_t drawn_records          # in the request that is being counted
    FrontEnd *drawn_next            # list of the front-ends with drawn_records


ctypedef struct FrontEndRecovery:
    Published *published            # by slot, during a takeover; else NULL


ctypedef struct FrontEnd:
    uint64_t attach_id
    uint32_t slot_count
    uint64_t submit_mask
    uint64_t outcome_mask
    int arena_fd
    cyp_arena_header *header
    cyp_slot_row *rows
    uint64_t *submit_ring
    uint8_t *chunks
    cyp_outcomes_header *outcomes_header
    cyp_outcome *outcome_ring
    uint32_t *sent
    cyp_extent *extents
    int wake_fd                     # eventfd that wakes the front-end
    int sender_wake_fd              # eventfd that the front-end writes to wake the sender
    uint64_t idle_after_ns          # a duration: it becomes idle if its ring stays empty for longer
    uint32_t tag                    # its index in Core.front_end.tagged
    bint is_stranger                # of another user: whether its chunks have memory is checked before they are read
    FrontEndSettings settings
    bint idempotent
    int16_t codec                   # compression of its batches, as in the batch attributes; 0: none
    int32_t level                   # of the codec; INT32_MIN: the default level
    ClientBatch *batches            # by first slot; start of the memory of all tables by slot
    uint32_t *chunk_next            # by slot; copied when a chain is sealed
    uint32_t *chunk_bytes
    uint32_t *chunk_count
    uint8_t *chunk_held             # 1: measured for a batch that is not released
    Transaction *transaction        # of a transactional producer; NULL: its batches are in no transaction
    cyp_share_metrics *share_metrics  # in its outcomes region
    FrontEndFrontEnds front_ends
    FrontEndFrontEnd front_end
    FrontEndLoop loop
    FrontEndTopicNumbers topic_numbers
    FrontEndIntake intake
    FrontEndDrain drain
    FrontEndOutcome outcome
    FrontEndParts parts
    FrontEndMetrics metrics
    FrontEndRecovery recovery


ctypedef struct TopicLoop:
    int16_t error                   # Kafka's error code in the last metadata response; 0: none
    uint8_t id[16]                  # Kafka's topic id; valid if has_id
    bint has_id
    bint not_refreshed              # its leaders are not kept up to date: its next batch requests a metadata refresh


ctypedef struct TopicTopics:
    bint free                       # the number has no name
    int32_t partition_count
    Lane **partitions
    # a batch was queued or sent since Python last took Core.topics.used_topics: it is in there
    bint used
    Topic *next_used


ctypedef struct TopicTopicNumbers:
    bint retired                    # its generation is odd: it keeps its name only if it is in use (topic_numbers.pyx)
    bint held                       # a batch or a report has the number


ctypedef struct TopicPartitioner:
    int32_t sticky                  # the sticky partition; -1: none
    uint64_t sticky_bytes           # sent to it since it was chosen
    uint64_t sticky_ns              # when it was chosen
    bint shares_due                 # its shares must be published: it is in Core.partitioner.shares_due
    Topic *next_shares_due


ctypedef struct TopicParts:
    uint32_t too_large              # bytes of the smallest batch that was refused as too large; 0: none was
    uint32_t accepted               # bytes of the largest batch that was accepted since
    uint64_t too_large_ns           # when that was


ctypedef struct Topic:
    char name[256]
    uint32_t name_bytes
    uint32_t number
    uint32_t generation             # in which the name has the number
    TopicLoop loop
    TopicTopics topics
    TopicTopicNumbers topic_numbers
    TopicPartitioner partitioner
    TopicParts parts


# A lane in the second of its two rings.
ctypedef struct LaneLink:
    Link link                       # in Node.drain.backing_off
    Lane *lane


ctypedef struct LaneTopics:
    Lane *other_lane                # of the same partition; NULL: there is none
    Lane *transactional             # of an ordinary lane: list of the lanes of transactional producers of the partition
    Lane *next_transactional        # in that list
    Lane *next_of_transaction       # in Transaction.lanes
    int32_t leader_epoch            # the last one in the metadata; -1: not known


ctypedef struct LaneTransactions:
    bint added                      # the coordinator has added the partition to the transaction (before KIP-890)
    bint addition_wanted            # Python knows that the partition must be added


ctypedef struct LaneIntake:
    Ring queues                     # the queues that are not empty; the next drain starts with the first
    uint32_t ready                  # queued batches that are DUE or CLOSED


ctypedef struct LaneDrain:
    bint goes_first                 # a request took a batch of the other lane: this lane goes first next time
    Node *leader                    # NULL: unknown
    uint64_t retry_at_ns            # end of its backoff
    bint backs_off                  # it has no backlogs until its node's backoff_ends_ns
    LaneLink backoff                # then it is in this ring of its leader
    bint collected                  # the request being made has a wire batch of it: at most one per lane
    uint8_t listed                  # LIST_: which kind of work it has for its leader
    Backlog retries


ctypedef struct LaneWire:
    WireBatch *head                 # unresolved wire batches, by sequence
    WireBatch *tail
    uint32_t unresolved
    uint32_t in_flight
    uint32_t waiting                # wire batches that wait to be sent again
    uint64_t acknowledged_ns
    int16_t last_error              # of a failed attempt since the last acknowledged batch; 0: none


ctypedef struct LaneIdempotence:
    uint64_t next_sequence
    uint8_t state                   # StateAsked
    Node *state_of                  # the leader that was asked for the producer state
    uint32_t states_refused         # consecutive answers that it does not lead the partition
    int64_t lost_id                 # the producer id whose state a leader had lost, up to lost_epoch; -1: none
    int16_t lost_epoch
    uint64_t unasked_end            # largest end sequence of the entries that were given up and may be in the log
    uint64_t known_end_sequence     # the record before this sequence is at the offset before known_end_offset
    int64_t known_end_offset        # -1: not known
    int64_t producer_id
    int16_t producer_epoch
    bint acknowledged               # a broker has acknowledged a batch of (producer_id, producer_epoch)
    bint bumping                    # nothing new is drained while a batch is in flight or unsure; then the epoch rises
    bint needs_other_id             # a broker has refused producer_id: the next epoch begins with another one


ctypedef struct LanePool:
    uint8_t late                    # late answers in a row, up to LATE_COUNTED
    bint leaves                     # it leaves its connection, to show whether it made that late


ctypedef struct LaneRefusal:
    bint isolation_pending          # an isolated queue is in the ring and must move to the isolation lane
    uint32_t merge_max              # largest size of a merged batch in bytes; 0: no limit is known


# One lane of a partition: the ordinary one, the isolation lane for front-ends whose records were refused, or that of a
# transactional producer. Each has its own row, queues, sequences and producer id. A request carries a batch of one.
ctypedef struct Lane:
    Link link                       # in Node.drain.lingering
    uint32_t index                  # row of the partition table
    bint isolation                  # isolation lane: no merging, one batch in flight, its own producer id
    Transaction *transaction        # whose lane it is; NULL: it is an ordinary lane or an isolation lane
    Lane *ordinary                  # of a transactional lane: the ordinary lane of its partition
    Topic *topic
    int32_t number                  # of the partition in its topic
    cyp_partition_row *row
    LaneTopics topics
    LaneTransactions transactions
    LaneIntake intake
    LaneDrain drain
    LaneWire wire
    LaneIdempotence idempotence
    LaneRefusal refusal
    LanePool pool


ctypedef struct Transaction:        # a transactional producer (transactions.pyx)
    Core *core
    uint32_t index                  # of its row
    cyp_transaction_row *row
    bint used, orphaned             # orphaned: its front-end has ended
    uint8_t hold                    # Hold: nothing is sent until the former transaction is complete at the broker
    uint32_t participants           # attached front-ends, if several can take part (cyp_transaction_row.attach_id 0)
    Lane *lanes                     # list
    bint failing                    # it has failed, and its batches must end: it is in Core.transactions.failing
    Transaction *next_failing
    bint has_news                   # the control plane must look at it
    bint awaited                    # the control plane waits until none of its batches is queued or sent


# The state of a wire batch.
cdef enum WireState:
    WIRE_FREE = 0
    WIRE_WAITING = 1                # to be sent, or sent again
    WIRE_IN_FLIGHT = 2


# Whether a batch whose sequence the broker refused was sent once more, ahead of a later unsure batch (idempotence.pyx).
cdef enum WireAhead:
    AHEAD_NOT = 0
    AHEAD_SENT = 1
    AHEAD_REFUSED = 2


ctypedef struct WireDrain:
    Flow *flow                      # it counts the rows of the wire batch; NULL while the partition has no leader
    bint reserved                   # its entry was taken from the reserve


ctypedef struct WireCompression:
    uint8_t *packed                 # private copy of the compressed records; NULL: the records are sent uncompressed
    uint32_t packed_bytes
    int16_t codec                   # 0: it is not compressed


ctypedef struct WireWire:
    uint8_t state
    Request *request
    uint8_t header[61]
    uint8_t *body                   # NULL: the records are in the chunks of the only contributor
    uint8_t *copy                   # private copy: re-encoded, or of chunks that the broker found corrupt; NULL: none
    uint32_t contributor_count
    uint32_t retries
    bint stamped                    # entry.crc is the CRC of the records as they were sent
    bint retried                    # an attempt before the current one has failed
    WireBatch *next
    WireBatch *previous


ctypedef struct WireIdempotence:
    bint unsure                     # an attempt before the current one may be in the log; CYP_ENTRY_UNSURE: or this one
    bint proven                     # unsure, and an acknowledged batch proves that it is in the log
    bint refused                    # unsure, and last answered with OUT_OF_ORDER: the newest unsure batch is sent first
    int64_t proven_offset           # of its first record, if it follows from other offsets; else -1
    bint fragment                   # part of a larger unsure batch, or sent like such a part (idempotence.pyx)
    uint8_t resent_ahead            # WireAhead


ctypedef struct WireRefusal:
    uint32_t corrupt                # attempts that the broker answered with CORRUPT_MESSAGE
    uint32_t breaks                 # times that the broker closed the connection while the batch was in flight
    uint32_t exclusive_breaks       # how many of them while nothing else was in flight; valid if `breaks` is not 0
    uint64_t answers_before         # Node.connection.answers at the first exclusive break
    uint32_t unreported             # contributors whose delivery timeout runs
    bint record_named               # the broker has named a record of the merged batch


ctypedef struct WireProduce:
    uint8_t topic_id[16]            # in `request`, if that has topic ids


# One RecordBatch that is sent to a broker, from its assignment until it is resolved.
ctypedef struct WireBatch:
    uint32_t index                  # of its entry
    cyp_entry *entry
    Lane *lane
    int32_t level
    bint partial                    # it has some records of one batch; `copy` has them once it is sent (parts.pyx)
    int16_t acks
    bint idempotent
    WireDrain drain
    WireCompression compression
    WireWire wire
    WireIdempotence idempotence
    WireRefusal refusal
    WireProduce produce


cdef enum RequestKind:
    REQUEST_CONTROL = 0             # Python gets the response
    REQUEST_PRODUCE = 1
    REQUEST_STATES = 2              # DescribeProducers


ctypedef struct RequestDrain:
    bint exclusive                  # its only batch must be sent alone (needs_exclusive): no other request is in flight


ctypedef struct RequestProduce:
    uint8_t *bytes                  # frame, request header, batch headers
    uint32_t bytes_length
    uint32_t bytes_capacity
    iovec *iov
    uint32_t iov_count, iov_capacity
    WireBatch **wires
    uint32_t wire_count
    uint64_t total


ctypedef struct RequestConnection:
    bint finished                   # all its bytes were written
    bint started                    # a byte may have been written
    bint silent                     # EVENT_SILENT was pushed for it
    uint32_t iov_at
    uint64_t sent_ns
    Node *node                      # of its connection
    Request *next


ctypedef struct Request:
    uint8_t kind
    int32_t correlation_id
    int16_t version
    int16_t acks
    RequestDrain drain
    RequestProduce produce
    RequestConnection connection


ctypedef struct NodeLoop:
    bint in_rack                    # the broker's rack is client_rack


ctypedef struct NodeDrain:
    bint work_reported              # EVENT_WORK was pushed since the connection was closed
    bint exclusive_in_flight        # a request in flight is exclusive: nothing is sent before its answer
    bint exclusive_waits            # a batch that must be sent alone waits until nothing is in flight
    uint8_t next_acks               # acks + 1 of the batches that the next request takes first
    Ring flows                      # those that have a backlog; the first is the current one
    uint32_t ready_count            # lanes that are LIST_READY
    Ring backing_off                # lanes that back off and have no backlogs meanwhile
    uint64_t backoff_ends_ns        # when the ring is checked next
    uint64_t backoff_checked_ns     # when it was checked last
    uint32_t users                  # front-ends that have a flow to the broker
    Usage used                      # of a first connection: sum over all flows of its broker
    Ring lingering                  # lanes that only have lingering batches


ctypedef struct NodePartitioner:
    bint unresponsive               # it did not answer at the last check


ctypedef struct NodeIdempotence:
    Lane **asked                    # lanes of the next DescribeProducers request or of that in flight; NULL until used
    uint32_t asked_count
    bint states_asked               # a DescribeProducers request is in flight


ctypedef struct NodeRefusal:
    uint64_t limit                  # bytes of a request of several batches; 0: only max_request_size limits it
    uint64_t limited_ns             # when `limit` was set


ctypedef struct NodeProduce:
    int32_t next_correlation_id


ctypedef struct NodeConnections:
    uint8_t error[300]              # why it cannot be used, in UTF-8
    uint32_t error_bytes            # 0: it is connected, or nothing is known
    int16_t produce_version
    bint describes_producers        # the broker supports DescribeProducers


ctypedef struct NodeConnectionWindow:
    bint first_is_alone             # the first request in flight was sent when no other one was
    uint64_t rate_since_ns          # start of the interval in which `rate_bytes` were answered
    uint64_t rate_bytes
    uint64_t rate                   # bytes per second that the broker answered in the last interval
    uint64_t idle_time_ns           # duration of a request while no other one is in flight
    uint64_t idle_time_at_ns        # when that was measured


ctypedef struct NodeConnection:
    uint8_t state
    int fd
    void *tls                       # a TlsStream, of which the node has a reference; NULL: plaintext
    bint wants_write
    uint64_t muted_until_ns         # end of the broker's throttling
    uint64_t active_ns              # when something was last written or read
    Request *out_head               # to be written, in order
    Request *out_tail
    Request *sent_head              # written, waiting for their responses, in order
    Request *sent_tail
    uint32_t in_flight              # requests, compared with max_in_flight_requests_per_connection
    uint64_t in_flight_bytes
    uint64_t answered_ns            # when it last answered a request
    uint64_t answers                # to Produce requests
    uint64_t largest_answered       # bytes of the largest answered Produce request
    uint8_t *input
    uint32_t input_length, input_capacity
    NodeConnectionWindow window


ctypedef struct NodePool:
    Node *first                     # of a further connection: the first one to its broker; NULL: it is the first one
    Node *next                      # a further connection to the same broker; NULL: the last one
    uint8_t late                    # of the lanes in its last answer, the most late answers in a row; 0: it was prompt
    Node *target                    # where lanes of it go as soon as nothing of them is in flight; NULL: all stay
    uint8_t stays_from              # with a target: lanes with so many late answers in a row stay
    uint64_t usual_ns               # of a first connection, like the following: what a Produce request usually takes
    uint32_t answers                # that the average consists of; stops at ANSWERS_MIN
    uint64_t late_ns                # when a connection to the broker was last late
    uint32_t waits                  # requests of transactions in a row that had to wait
    uint64_t wanted_ns              # when another connection was last requested


ctypedef struct NodeMetrics:
    cyp_node_metrics *row           # its row in the snapshot


# A broker and its first connection, or a further connection to a broker (pool.pyx).
ctypedef struct Node:
    int32_t id                      # of the broker; negative for a bootstrap address
    uint32_t index
    uint32_t epoll_tag
    Flow common                     # see Flow.front_end
    NodeLoop loop
    NodeDrain drain
    NodePartitioner partitioner
    NodeIdempotence idempotence
    NodeRefusal refusal
    NodeProduce produce
    NodeConnections connections
    NodeConnection connection
    NodePool pool
    NodeMetrics metrics


# A record that the broker has named in its answer about a wire batch.
ctypedef struct Named:
    uint32_t record                 # index in the wire batch
    uint32_t text_bytes
    const uint8_t *text             # the broker's message; not a copy
    ClientBatch *batch              # once that is split: the record has index `start` in it
    uint32_t start


# Why a batch fails: what a broker's answer says about it, or this sender. It is passed down to where outcomes are
# written. The texts are not copies. Batches that end along the way, for another reason, get none of this.
ctypedef struct Verdict:
    WireBatch *wire                 # that it is about; NULL: it is about batches that are in no wire batch
    const uint8_t *text
    uint32_t text_bytes             # 0: there is none
    bint by_broker                  # it is the message of a broker, and not of this sender
    uint32_t named_count            # more than NAMED_MAX: it is not known which
    Named *named                    # records of `wire`, ascending


ctypedef struct CoreLoop:
    uint64_t now
    bint auth_failed                # TLS or SASL has failed, and since then no broker was ready
    bint refresh_wanted
    uint64_t next_timer_ns          # earliest known reason to wake; computed anew in every loop iteration
    uint64_t random
    FrontEnd *active                # list, see loop.pyx
    FrontEnd **deadlines            # heap, see loop.pyx
    uint32_t deadline_count
    uint32_t deadline_room


ctypedef struct CoreFrontEnds:
    FrontEnd *ending                # list
    FrontEnd *ended                 # detached and nothing refers to them: Python unmaps them


ctypedef struct CoreFrontEnd:
    uint8_t acks_seen               # bit 0: a front-end has acks=0, bit 1: acks=1, bit 2: acks=all
    FrontEnd *first
    uint32_t count
    FrontEnd **tagged               # by the index in its epoll tag; NULL: free
    uint32_t tag_room


ctypedef struct CoreTopics:
    Topic **table
    uint32_t count                  # free ones included
    uint32_t room                   # capacity of `table`
    uint32_t *free_topics           # numbers without a name
    uint32_t free_topic_count
    Topic *used_topics              # list of the topics that are `used`
    Lane **lanes                    # by row of the partition table; NULL: the row is free
    uint32_t lane_count             # free rows included
    uint32_t lane_room              # capacity of `lanes`
    uint32_t *free_rows             # rows of the partition table without a partition
    uint32_t free_row_count


ctypedef struct CoreTransactions:
    Transaction *table              # CYP_TRANSACTIONS_MAX
    uint32_t end                    # those from this index on were never used
    Transaction *failing            # list
    bint news                       # a transaction has news


ctypedef struct CoreIntake:
    uint64_t live_batches


ctypedef struct CoreDrain:
    uint32_t reserved_wire_count    # entries in use that were taken from the reserve
    uint64_t walk                   # number of the current walk over the flows of a node; each request is one walk


ctypedef struct CoreOutcome:
    Event *events
    uint32_t event_count
    uint32_t event_capacity
    bint events_lost                # no memory for an event: Python gets the state instead (Loop._lost_events)
    Failure *failures
    uint32_t failure_count
    FrontEnd *to_announce           # list of the front-ends with new outcomes


ctypedef struct CorePartitioner:
    Topic *shares_due               # list of the topics whose shares must be published, in the order they were added
    Topic *shares_due_tail
    uint64_t shares_published_ns    # when shares were last published
    uint64_t sticky_checked_ns      # when the brokers were last checked for being unresponsive


ctypedef struct CoreCompression:
    uint64_t packing_ns             # spent on compression in this loop iteration


ctypedef struct CoreWire:
    uint32_t *free_wires
    uint32_t free_wire_count
    uint32_t *free_contributors
    uint32_t free_contributor_count
    uint32_t *free_bodies
    uint32_t free_body_count
    uint64_t next_order             # of the next entry


ctypedef struct CoreIdempotence:
    int64_t producer_id
    int16_t producer_epoch
    bint wants_producer_id
    int64_t isolation_producer_id   # of all isolation lanes
    int16_t isolation_producer_epoch
    bint wants_isolation_id


ctypedef struct CoreProduce:
    # the newer leaders in the response that is being handled
    LeaderHint *hints
    uint32_t hint_count
    uint32_t hint_room              # capacity of `hints`
    Request *spare_requests
    uint32_t spare_count
    uint32_t requests_made          # all that exist; each is owned by a connection or is spare


ctypedef struct CoreConnection:
    Node **nodes
    uint32_t node_count
    uint32_t broker_count           # nodes that are the first connection to a broker


ctypedef struct Core:
    int epoll_fd
    SenderSettings settings
    char client_id[256]
    int16_t client_id_bytes
    Named *named                    # memory for those of a Verdict: NAMED_MAX
    # shared regions
    cyp_snapshot_header *snapshot
    cyp_sender_metrics *metrics     # in the snapshot
    int32_t *sticky
    cyp_topic_row *topic_rows       # in the snapshot, like `leaders`
    uint8_t *leaders
    uint8_t *state
    cyp_state_header *state_header
    cyp_partition_row *partition_rows
    cyp_entry *entries
    cyp_contributor *contributors
    uint8_t *bodies
    cyp_transaction_row *transaction_rows
    # tables
    WireBatch *wires
    ClientBatch **contributor_batches
    # what Python takes
    Totals totals
    CoreLoop loop
    CoreFrontEnds front_ends
    CoreFrontEnd front_end
    CoreTopics topics
    CoreTransactions transactions
    CoreIntake intake
    CoreDrain drain
    CoreOutcome outcome
    CorePartitioner partitioner
    CoreCompression compression
    CoreWire wire
    CoreIdempotence idempotence
    CoreProduce produce
    CoreConnection connection
