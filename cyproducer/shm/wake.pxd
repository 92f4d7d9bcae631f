"""Wake-ups: whoever may sleep says so, fences, and looks again; whoever publishes fences and looks who sleeps.

Without the two sequentially consistent fences each side may miss the other (a store may pass a later load
even on x86), and a record would lie until somebody else's wake-up.
"""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.atomics cimport (
    fence_seq_cst,
    load_acquire,
    load_acquire32,
    load_relaxed,
    store_relaxed,
    store_release,
    store_release32,
)
from cyproducer.shm.layout cimport cyp_snapshot_header


cdef inline bint sender_needs_wake(
    const cyp_snapshot_header *snapshot, uint64_t deadline_ns, uint64_t *signalled
) noexcept nogil:
    """After a publication that must be seen by `deadline_ns`: must the sender's eventfd be written?

    `signalled` is the caller's memory of the last sleep epoch that it has signalled.
    """
    fence_seq_cst()  # pairs with the fence in sender_sleeps
    cdef uint64_t sleep = load_acquire(&snapshot.sleep)
    if not sleep & 1 or sleep == signalled[0]:
        return False
    if deadline_ns >= load_relaxed(&snapshot.next_wake_ns):
        return False  # it wakes by itself in time, or has no use for a wake-up
    signalled[0] = sleep
    return True


cdef inline void sender_sleeps(cyp_snapshot_header *snapshot, uint64_t next_wake_ns) noexcept nogil:
    """The sender is about to sleep; it must look at every reason to stay awake after this.

    `next_wake_ns` 0: nobody is to wake it.
    """
    store_relaxed(&snapshot.next_wake_ns, next_wake_ns)
    store_release(&snapshot.sleep, ((load_relaxed(&snapshot.sleep) >> 1) + 1) << 1 | 1)  # next_wake_ns is seen with it
    fence_seq_cst()  # pairs with the fence in sender_needs_wake


cdef inline void sender_wakes(cyp_snapshot_header *snapshot) noexcept nogil:
    store_release(&snapshot.sleep, load_relaxed(&snapshot.sleep) & ~<uint64_t>1)


cdef inline void waiter_sleeps(uint32_t *sleeping, uint32_t epoch) noexcept nogil:
    """A waiter of the front-end is about to sleep (`epoch` odd); it must look at the outcome ring after this."""
    store_release32(sleeping, epoch)
    fence_seq_cst()  # pairs with the fence in waiter_needs_wake


cdef inline bint waiter_needs_wake(const uint32_t *sleeping, uint32_t *signalled) noexcept nogil:
    """After publishing outcomes: must the front-end's eventfd be written? `signalled`: the caller's memory."""
    fence_seq_cst()  # pairs with the fence in waiter_sleeps
    cdef uint32_t epoch = load_acquire32(sleeping)
    if not epoch & 1 or epoch == signalled[0]:
        return False
    signalled[0] = epoch
    return True
