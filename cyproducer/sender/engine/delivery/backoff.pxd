"""Computes the pause before a batch's next attempt: retry.backoff.ms, doubled with each attempt, as in Kafka."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Core, WireBatch


cdef inline uint64_t backoff_ns(Core *core, uint32_t attempts) noexcept nogil:
    """Return the pause in ns after `attempts` failed attempts (0 counts as 1), by the rule of cluster/backoff.py."""
    cdef uint64_t wait = core.retry_backoff_ns
    cdef uint64_t spread
    if wait >= core.retry_backoff_max_ns:
        return core.retry_backoff_max_ns
    while attempts > 1 and wait < core.retry_backoff_max_ns:
        wait *= 2
        attempts -= 1
    wait = min(wait, core.retry_backoff_max_ns)
    core.random ^= core.random << 13
    core.random ^= core.random >> 7
    core.random ^= core.random << 17
    spread = wait // 5
    return min(wait - spread + core.random % (2 * spread + 1), core.retry_backoff_max_ns)


cdef inline void back_off(Core *core, WireBatch *wire) noexcept nogil:
    """Start the pause of the lane after a failed attempt of `wire`. A longer pause that is already set stays."""
    wire.lane.retry_at_ns = max(wire.lane.retry_at_ns, core.now + backoff_ns(core, wire.entry.attempts))
