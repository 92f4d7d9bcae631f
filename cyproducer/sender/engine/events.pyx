"""Declares what the loop reports to the control plane: events, failures, the reasons in them, and counters."""


cdef enum EventKind:
    EVENT_CONNECTED = 1
    EVENT_CLOSED = 2
    EVENT_RESPONSE = 3
    EVENT_PRODUCER_ID = 4           # a new producer id is needed
    EVENT_VIOLATION = 5             # a front-end broke the protocol
    EVENT_WORK = 6                  # there are batches for a broker without a connection
    EVENT_STATE_LOST = 7            # the broker has lost the state of a lane's producer
    EVENT_STATE_DENIED = 8          # the broker refuses to say whether it has the state; error: Kafka's code
    EVENT_LEADERS = 9               # the broker has named newer leaders; payload: see produce.pyx
    EVENT_REQUESTS_WAIT = 10        # requests wait for each other on all connections to the broker
    EVENT_HANDSHAKE = 11            # a handshake can go on: the socket is readable, or writable as awaited
    EVENT_SILENT = 12               # the broker has not answered the oldest request of a connection for SILENT_NS


ctypedef struct Event:
    uint8_t kind
    uint32_t node
    int32_t correlation_id
    int32_t error                   # errno, a CLOSE_ or a VIOLATION_ reason, or Kafka's code
    uint64_t subject                # VIOLATION: the front-end's attach id. STATE_LOST, STATE_DENIED: the lane's row
    uint8_t *payload                # of a response; the receiver of the event frees it
    uint32_t payload_length


# A newer leader of a lane's partition that a broker has named.
ctypedef struct LeaderHint:
    uint32_t row                    # the lane's row of the partition table
    int32_t leader_id
    int32_t leader_epoch


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
    uint64_t turns                  # loop iterations
    uint64_t sleeps
    uint64_t looks                  # reads of the tail of a submission ring
