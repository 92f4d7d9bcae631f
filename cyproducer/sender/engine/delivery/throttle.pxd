"""Delays requests to a broker that throttles this client until the throttle time is over (KIP-219)."""

from libc.stdint cimport int32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Node


cdef enum:
    # A quota of Kafka delays for seconds: at most for the samples of the quota, 11 of 1 s by default. A longer time is
    # a defect of the broker, and one answer must not stop a host for days.
    THROTTLE_MAX_MS = 300000


cdef inline void throttle(Node *node, uint64_t now, int32_t throttle_ms) noexcept nogil:
    """Apply the throttle time of a response to all connections of the broker, unless it is throttled for longer."""
    cdef uint64_t until = now + <uint64_t>min(max(throttle_ms, 0), <int32_t>THROTTLE_MAX_MS) * 1000000
    if throttle_ms <= 0:
        return
    node.muted_until_ns = max(node.muted_until_ns, until)
    if node.broker != NULL:
        node.broker.muted_until_ns = max(node.broker.muted_until_ns, until)
    if node.slow != NULL:
        node.slow.muted_until_ns = max(node.slow.muted_until_ns, until)
