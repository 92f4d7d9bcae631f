"""Delays requests to a broker that throttles this client until the throttle time is over (KIP-219)."""

from libc.stdint cimport int32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Node


cdef inline void throttle(Node *node, uint64_t now, int32_t throttle_ms) noexcept nogil:
    """Apply the throttle time of a response. An earlier throttle time that ends later stays in force."""
    if throttle_ms > 0:
        node.muted_until_ns = max(node.muted_until_ns, now + <uint64_t>throttle_ms * 1000000)
