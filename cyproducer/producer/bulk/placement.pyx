"""Gives the rows of an array that name no partition one of the producer's partitioner, before any row is queued.

Turns are handed out for all rows at once. A custom partitioner is called for each row, with bytes made for it: that
costs as much as `send()` does.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc

from cyproducer.producer.bulk.bulk_arguments cimport Cursor, Rows
from cyproducer.producer.bulk.columns cimport Segment, segment_get
from cyproducer.producer.session.session cimport Session

from cyproducer import errors


cdef int place_rows(Rows rows, Session session, list counts, object partitioner) except -1:
    """Set the missing partitions of `rows`. `counts` has the number of partitions of each topic, from the metadata.

    Raise PartitionerError that names the row.
    """
    take = getattr(partitioner, "take", None)
    # A topic may have changed since it was counted.
    leaders = [
        session.topic_leaders(name)[:count].ljust(count, b"\0") for name, count in zip(rows.topics, counts)
    ]
    if take is None:
        return _ask(rows, session, partitioner.place, leaders)
    for topic, name in enumerate(rows.topics):
        _take_turns(rows, topic, take, name, leaders[topic])
    return 0


cdef int _take_turns(Rows rows, int32_t topic, object take, str name, bytes leaders) except -1:
    """Let the rows of one topic take turns."""
    cdef Py_ssize_t row, missing = 0, count, turn, i
    cdef int32_t *turns
    with nogil:
        for row in range(rows.rows):
            missing += _is_missing(rows, row, topic)
    if missing == 0:
        return 0
    partitions, first = take(name, leaders, missing)
    count, turn = len(partitions), first
    turns = <int32_t *>malloc(count * sizeof(int32_t))
    if turns == NULL:
        raise MemoryError
    for i in range(count):
        turns[i] = partitions[i]
    with nogil:
        for row in range(rows.rows):
            if _is_missing(rows, row, topic):
                rows.partitions[row] = turns[turn]
                turn = turn + 1 if turn + 1 < count else 0
    free(turns)
    return 0


cdef inline bint _is_missing(Rows rows, Py_ssize_t row, int32_t topic) noexcept nogil:
    return rows.partitions[row] < 0 and (rows.topic_of == NULL or rows.topic_of[row] == topic)


cdef int _ask(Rows rows, Session session, object place, list leaders) except -1:
    cdef Cursor cursor
    cdef Py_ssize_t row, topic = 0
    for row in range(rows.rows):
        if rows.partitions[row] >= 0:
            continue
        if rows.topic_of != NULL:
            topic = rows.topic_of[row]
        rows.seek(row, &cursor)
        pair = _element(cursor.key, row), _element(cursor.value, row)
        try:
            rows.partitions[row] = place(session, rows.topics[topic], leaders[topic], pair, pair)
        except errors.PartitionerError as error:
            error.message = f"row {row}: {error.message}; nothing was queued"
            error.args = (error.message,)
            raise
    return 0


cdef object _element(const Segment *segment, Py_ssize_t row):
    """Return the bytes of an element, or None for null."""
    cdef const uint8_t *data = NULL
    cdef Py_ssize_t size = segment_get(segment, row - segment.start, &data)
    return None if size < 0 else (<const char *>data)[:size]
