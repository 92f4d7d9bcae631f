"""Limits the bytes in flight to a broker that several front-ends use, so that none waits long behind another's bytes.

A broker answers in order, so a batch waits for everything that is in flight before it. Five requests of 1 MiB take
120 ms at 44 MB/s. So the bytes in flight are limited to what the broker answers in the duration of a request on an
otherwise idle connection plus QUEUE_NS, but not to less than WINDOW_MIN_BYTES. A request has at most half of that, so
that the next one is under way while the broker handles it. The duration is measured with requests that were sent when
none was in flight. After IDLE_TIME_VALID_NS without a measurement the next request waits for all answers.

If only one front-end uses a broker, the only limits are max_request_size and max_in_flight_requests_per_connection.
"""

from cyproducer.sender.engine.state.model cimport REQUEST_PRODUCE, Core, Node, Request
from libc.stdint cimport uint64_t


cdef enum:
    QUEUE_NS = 10000000             # how long bytes may wait at the broker
    WINDOW_MIN_BYTES = 524288
    ROOM_MIN_BYTES = 65536          # less space counts as none: smaller requests cost the broker too much
    RATE_SAMPLE_NS = 5000000        # interval over which answered bytes are counted
    IDLE_TIME_MAX_NS = 50000000     # a longer duration is not that of an idle broker
    IDLE_TIME_VALID_NS = 10000000000


cdef inline uint64_t window_room(const Core *core, const Node *node) noexcept nogil:
    """Return how many bytes the next request may have; 0 if it must wait for an answer."""
    cdef uint64_t window
    if node.users < 2:
        return core.max_request_size
    if node.in_flight_bytes and core.now - node.idle_time_at_ns > IDLE_TIME_VALID_NS:
        return 0
    window = max(node.rate * (node.idle_time_ns + QUEUE_NS) // 1000000000, <uint64_t>WINDOW_MIN_BYTES)
    if node.in_flight_bytes and node.in_flight_bytes + ROOM_MIN_BYTES > window:
        return 0
    return min(window // 2, <uint64_t>core.max_request_size)


cdef inline void window_enter(Node *node, const Request *request, uint64_t now) noexcept nogil:
    """Count a request that will be written."""
    if node.in_flight_bytes == 0:
        node.rate_since_ns = now
        node.rate_bytes = 0
        node.first_is_alone = request.kind == REQUEST_PRODUCE
    node.in_flight_bytes += request.total


cdef inline void window_leave(Node *node, const Request *request, uint64_t now) noexcept nogil:
    """Count the answer to the first request in flight."""
    cdef uint64_t passed = now - node.rate_since_ns
    cdef uint64_t taken = min(now - request.sent_ns, <uint64_t>IDLE_TIME_MAX_NS)
    if node.first_is_alone:
        node.first_is_alone = False
        if taken <= node.idle_time_ns or now - node.idle_time_at_ns > IDLE_TIME_VALID_NS:
            node.idle_time_ns = taken
            node.idle_time_at_ns = now
    node.answered_ns = now
    node.in_flight_bytes -= request.total
    node.rate_bytes += request.total
    if passed >= RATE_SAMPLE_NS:
        node.rate = node.rate_bytes * 1000000000 // passed
        node.rate_since_ns = now
        node.rate_bytes = 0
