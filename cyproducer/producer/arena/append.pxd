"""Appends records to an open batch of the arena, without a lock and without Python. This is the hot path.

Only one thread writes to the arena: the one that holds the GIL. Look up the chain again after the GIL was released,
before you call any of these functions.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.shm.protocol cimport same_file
from cyproducer.record.encode cimport RecordView, fetch_ahead, put_record, record_size
from cyproducer.shm.protocol cimport eventfd_signal, monotonic_ns
from cyproducer.shm.protocol cimport CRASHPOINT
from cyproducer.shm.protocol cimport CYP_SUBMIT_OPEN, cyp_arena_header, cyp_slot_row, cyp_snapshot_header
from cyproducer.shm.protocol cimport submit_entry, submit_push
from cyproducer.shm.protocol cimport slot_commit, slot_hint
from cyproducer.shm.protocol cimport cyp_signalled, sender_needs_wake
from cyproducer.shm.protocol cimport word_bytes, word_count, word_with_records


ctypedef struct Port:
    # What an append needs from its session.
    cyp_arena_header *arena
    uint64_t *ring                  # submission ring
    uint64_t ring_mask
    uint64_t position               # private copy of the ring's tail
    const cyp_snapshot_header *snapshot
    const uint32_t *idle            # this front-end's word: odd if the sender looks at its ring only after a wake-up
    cyp_signalled signalled
    uint64_t linger_ns
    uint32_t batch_limit            # bytes of records in one batch, if no earlier batch of its partition waits
    int sender_wake_fd
    uint64_t wake_device            # identity of sender_wake_fd
    uint64_t wake_inode
    int own_fd                      # a socket of ours, to detect replaced descriptors: all eventfds have one inode
    uint64_t own_device
    uint64_t own_inode
    bint holds_wakes                # a series of announcements is under way: release_wakes wakes once at its end
    bint owes_wake                  # the series has an announcement
    uint64_t owed_ns                # the earliest deadline among them


ctypedef struct Chain:
    # The open batch of a (topic, partition); its fields describe the tail chunk unless said otherwise.
    cyp_slot_row *row               # NULL: nothing is open
    uint8_t *base
    uint64_t word                   # row.word as last read or written: the next CAS expects it
    uint32_t limit                  # bytes of the chunk that may be used; 0: closed, or sealed by the sender
    uint32_t total                  # records of the whole batch
    int64_t base_timestamp          # of the whole batch
    int64_t max_timestamp
    void *batch                     # its Batch, owned by the session's slot table
    uint64_t deadline_ns            # when the sender must have seen the batch: opened + linger
    uint32_t head                   # slot where the batch starts
    uint32_t head_generation
    uint32_t slot
    uint32_t before                 # bytes in the batch's earlier chunks
    uint32_t batch_limit            # bytes of records in the whole batch, see Arena.close_full
    uint32_t topic                  # Topic.id when the batch was opened
    int32_t partition
    int chunk_class
    int learned                     # class that the next batch starts with
    void *owner                     # its Topic, which outlives it
    uint32_t former                 # head of the partition's last batch that is closed; CYP_NONE
    uint32_t former_generation
    Chain *next_open                # list of the session's open chains
    Chain *previous_open


cdef inline void announce(
    Port *port, uint32_t kind, uint32_t slot, uint32_t generation, uint64_t deadline_ns
) noexcept nogil:
    """Put a batch on the submission ring and wake the sender if it sleeps beyond `deadline_ns`."""
    cdef uint64_t entry = submit_entry(kind, slot, generation)
    submit_push(port.ring, port.ring_mask, &port.arena.submit_tail, port.position, entry)
    CRASHPOINT(b"submit.pushed")
    port.position += 1
    if port.holds_wakes:
        if not port.owes_wake or deadline_ns < port.owed_ns:
            port.owed_ns = deadline_ns
        port.owes_wake = True
    elif sender_needs_wake(port.snapshot, port.idle, deadline_ns, &port.signalled):
        signal_sender(port)


cdef inline void release_wakes(Port *port) noexcept nogil:
    """End a series of announcements: wake the sender if one of them would have woken it."""
    port.holds_wakes = False
    if port.owes_wake:
        port.owes_wake = False
        if sender_needs_wake(port.snapshot, port.idle, port.owed_ns, &port.signalled):
            signal_sender(port)


cdef inline void signal_sender(Port *port) noexcept nogil:
    """Write the sender's eventfd, if the program has closed or replaced neither that descriptor nor our own."""
    if same_file(port.sender_wake_fd, port.wake_device, port.wake_inode) \
            and same_file(port.own_fd, port.own_device, port.own_inode):
        eventfd_signal(port.sender_wake_fd)
        CRASHPOINT(b"submit.signalled")


cdef inline uint8_t *chain_tail(const Chain *chain) noexcept nogil:
    """Return where the next record goes."""
    return chain.base + word_bytes(chain.word)


cdef inline uint32_t chain_room(const Chain *chain) noexcept nogil:
    """Return the bytes left in the open chunk; 0 if nothing is open."""
    cdef uint32_t used = word_bytes(chain.word)
    return chain.limit - used if chain.limit > used else 0


cdef inline bint commit_records(
    Port *port, Chain *chain, uint32_t count, uint32_t size, int64_t max_timestamp
) noexcept nogil:
    """Publish `count` records at chain_tail, `size` bytes in all; `max_timestamp` is their largest.

    Return False if the sender has sealed the batch: the records are not in it. Append them again after
    make_room.
    """
    cdef cyp_slot_row *row = chain.row
    cdef uint64_t desired = word_with_records(chain.word, count, size)
    cdef bint raised = max_timestamp > chain.max_timestamp
    if raised:
        chain.max_timestamp = max_timestamp
    slot_hint(row, word_count(desired), max_timestamp, raised)
    CRASHPOINT(b"commit.hinted")
    if not slot_commit(row, chain.word, desired):
        chain.limit = 0
        CRASHPOINT(b"commit.refused")
        return False
    CRASHPOINT(b"commit.published")
    chain.word = desired
    chain.total += count
    if chain.total == count:
        announce(port, CYP_SUBMIT_OPEN, chain.head, chain.head_generation, chain.deadline_ns)
    return True


cdef inline bint append_record(
    Port *port, Chain *chain, int64_t timestamp, const RecordView *record, Py_ssize_t bound
) noexcept nogil:
    """Append one record; `bound` is record_size_bound. The record's index is then chain.total - 1.

    Return False if no batch is open, the chunk has no space, or the sender has sealed the batch. Call
    make_room then.
    """
    cdef uint32_t room = chain_room(chain)
    cdef int64_t delta = timestamp - chain.base_timestamp
    cdef int32_t index = <int32_t>chain.total
    cdef uint8_t *at
    cdef uint8_t *end
    if bound > room and record_size(delta, index, record) > room:
        return False
    at = chain_tail(chain)
    fetch_ahead(at, at + room, bound)
    end = put_record(at, delta, index, record)
    CRASHPOINT(b"append.encoded")
    return commit_records(port, chain, 1, <uint32_t>(end - at), timestamp)
