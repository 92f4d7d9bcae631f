"""Appends records to an open batch of the arena, without a lock and without Python. This is the hot path.

Call is_alive(), is_foreign() and is_current() first: they say whether the session can be used.

Only one thread writes to the arena: the one that holds the GIL. Look up the chain again after the GIL was released,
before you call any of these functions.
"""


cdef inline bint is_alive(Arena arena) noexcept:
    """Return whether the session can be used: it has not ended and belongs to this process, not to a fork's parent."""
    return arena.sentinel[0] == arena.token


cdef inline bint is_foreign(Arena arena) noexcept:
    """Return whether this is a forked child and the arena is the parent's."""
    return arena.sentinel[0] != arena.process


cdef inline bint belongs_to_parent(SessionOwner owner) noexcept:
    """Return whether this is a forked child of the process that made the owner."""
    return owner.sentinel[0] != owner.process


cdef inline bint is_current(TopicTable topics) noexcept:
    """Return whether the session can be used, and its table has read all metadata that the sender has published."""
    # acquire: pairs with cyp_change_publish; the changes announced before are seen
    return is_alive(topics.arena) and topics.seen_version == load_acquire(topics.published)


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


cdef inline void _start_times(const Port *port, Chain *chain) noexcept nogil:
    """Let linger and delivery times of a batch begin with its first records.

    The batch may have been opened long ago, for a record that went elsewhere.
    """
    cdef cyp_slot_row *head = chain.row + (<int64_t>chain.head - <int64_t>chain.slot)
    cdef uint64_t now = monotonic_ns()
    store_relaxed(&head.opened_ns, now)  # published by the commit
    chain.deadline_ns = now + port.linger_ns


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
    if chain.total == 0:
        _start_times(port, chain)
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
