"""Finds the topic of a record, and gets space for it: in the open batch of its partition, or as a batch of its own."""

from libc.stdint cimport uint8_t, uint64_t

from cyproducer.producer.arena.arena cimport HAVE_ROOM, NEED_MEMORY, NEED_METADATA, NEED_SESSION, Arena, is_alive
from cyproducer.producer.arena.lone_record cimport write_alone
from cyproducer.producer.results.futures cimport Batch, make_batch
from cyproducer.producer.session.batch_compressor cimport pack_alone, pack_closed
from cyproducer.producer.session.topic_metadata cimport is_current

from cyproducer.producer.arena.topic_table import check_name


cdef Topic topic_of(Session session, object name):
    """Return the topic of this name, or None if it is not known. Raise InvalidTopicError."""
    if name is session.topics.cached_name and is_current(session.topics):
        return session.topics.cached_topic
    if name not in session.topics.by_name:
        check_name(name)
    return session.find_topic(name)


cdef int _prepare(Session session, Place place) except -1:
    """Take outcomes, check the sender, and check that a call may take memory: no other one waits for it before."""
    cdef Arena arena = session.arena
    if place is not None:
        place.arm()  # first: whatever this call lacks, it is called when memory is free
    session.look()
    if not is_alive(arena):
        return NEED_SESSION
    if not is_current(session.topics):
        session.refresh_topics(None)
    if session.unsent.lists and not session.take_over():
        return NEED_MEMORY  # batches that were sent earlier come first
    if not is_alive(arena):
        return NEED_SESSION
    if not session.memory_queue.may_go(place):
        return NEED_MEMORY
    return HAVE_ROOM


cdef int make_room(
    Session session, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Place place
) except -1:
    """Open or lengthen the batch of a partition, so that a record of at most `bound` bytes fits.

    `bound` comes from record_size_bound, and fits_batch(bound) is true. `place` is the caller's place in
    the queue for memory, or None. Return HAVE_ROOM, NEED_MEMORY or NEED_SESSION; or NEED_METADATA if the sender has
    given the topic's number back: the topic must be looked up again.
    """
    cdef int status = _prepare(session, place)
    cdef Arena arena = session.arena
    cdef Batch batch
    if status != HAVE_ROOM:
        return status
    batch = make_batch(session, topic.name, partition, timestamp)
    if not is_alive(arena) or partition >= topic.partition_count:
        return NEED_SESSION
    status = arena.lengthen(topic, partition, bound, timestamp, batch)
    if status == NEED_METADATA and session.topics.renew(topic):
        status = arena.lengthen(topic, partition, bound, timestamp, batch)
    pack_closed(arena)
    if status == NEED_SESSION:
        session.on_control()
    return status


cdef Batch put_alone(
    Session session, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, Place place,
    Room *missing,
):
    """Send a record that fits no shared batch. Set `missing` as make_room does. Return the batch if HAVE_ROOM."""
    cdef const uint8_t[::1] packed
    cdef const uint8_t *data = NULL
    cdef Py_ssize_t packed_bytes = 0
    cdef Batch batch
    cdef Arena arena = session.arena
    missing[0] = <Room>_prepare(session, place)
    if missing[0] != HAVE_ROOM:
        return None
    batch = make_batch(session, topic.name, partition, timestamp)
    if not is_alive(arena) or partition >= topic.partition_count:
        missing[0] = NEED_SESSION
        return None
    if topic.chains[partition].row != NULL:
        arena.close_chain(&topic.chains[partition], True)
        pack_closed(arena)
        if not is_alive(arena):
            missing[0] = NEED_SESSION
            return None
    # Without free memory the record is tried again later, and compressing it now would be wasted.
    if arena.compress is not None and arena.pool.free_bytes > <uint64_t>(record.key_length + record.value_length):
        packed = pack_alone(arena, record)
        if not is_alive(arena) or partition >= topic.partition_count:
            missing[0] = NEED_SESSION
            return None
        if packed is not None:
            data, packed_bytes = &packed[0], packed.shape[0]
    missing[0] = <Room>write_alone(arena, topic, partition, timestamp, record, data, packed_bytes, batch)
    if missing[0] == NEED_METADATA and session.topics.renew(topic):
        missing[0] = <Room>write_alone(arena, topic, partition, timestamp, record, data, packed_bytes, batch)
    arena.announce_closed()  # a batch that another thread has closed meanwhile
    if missing[0] == NEED_SESSION:
        session.on_control()
    return batch if missing[0] == HAVE_ROOM else None
