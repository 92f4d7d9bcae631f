"""Opens batches of a producer."""


def open_batch(Session session not None, str topic not None, int32_t partition):
    """Open a batch without a record, as a send() does that then fails. Return whether it is open."""
    return make_room(session, topic_of(session, topic), partition, 100, realtime_coarse_ms(), None) == HAVE_ROOM
