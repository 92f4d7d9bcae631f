"""Tells whether a session can be used, and whether what it knows of topics is current."""


cdef inline bint is_alive(Arena arena) noexcept:
    """Return whether the session can be used: it has not ended and belongs to this process, not to a fork's parent."""
    return arena.sentinel[0] == arena.token


cdef inline bint is_foreign(Arena arena) noexcept:
    """Return whether this is a forked child and the arena is the parent's."""
    return arena.sentinel[0] != arena.process


cdef inline bint is_current(TopicTable topics) noexcept:
    """Return whether the session can be used, and its table has read all metadata that the sender has published."""
    # acquire: pairs with cyp_change_publish; the changes announced before are seen
    return is_alive(topics.arena) and topics.seen_version == load_acquire(topics.published)
