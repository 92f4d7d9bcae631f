"""Appends one record to the open batch of its partition, for what the fast path of send() does not take.

The caller waits for what an attempt lacks, and attempts again.
"""


@cython.final
@cython.auto_pickle(False)
cdef class Appender:
    """Appends the records of one producer, until its channel is closing."""

    cdef object settings
    cdef Extensions extensions
    cdef bint ignore_keys
    cdef Py_ssize_t max_request

    def __init__(self, *args):
        raise TypeError("Appender cannot be created directly: a producer creates it")

    cdef Future attempt(self, SessionOwner channel, Prepared record, Place place, Room *missing):
        """Return the record's future; or None, and in `missing` what the record needs before the next attempt.

        Everything that can fail or run other code comes before the commit: an exception means "not queued".
        """
        cdef Session session = channel.session
        cdef Arena arena = session.arena
        cdef Topic topic
        cdef Chain *chain
        cdef Batch batch
        cdef Future future = Future.__new__(Future)
        cdef list fresh = None
        cdef int32_t partition
        cdef int status
        cdef bint sticky
        if not record.raw:
            check_size(record, self.max_request, None)
        if channel.closing:
            raise errors.ProducerClosedError("the producer is closed")
        missing[0] = NEED_SESSION
        if not is_alive(arena):
            return None
        if not record.raw:
            check_size(record, arena.max_request, self.settings)
        if record.on_delivery is not None:
            channel.ensure_delivery()
        while True:
            topic = topic_of(session, record.topic)
            if not is_alive(arena):
                missing[0] = NEED_SESSION
                return None
            if topic is None or record.partition >= topic.partition_count or topic.partition_count == 0:
                missing[0] = NEED_METADATA
                return None
            if record.raw or record.unplaced:
                self.complete(record, channel, session, topic)
                continue
            sticky = record.partition < 0 and (record.view.key_length < 0 or self.ignore_keys)
            partition = record.partition
            if partition < 0:
                partition = draw_partition(arena, topic, &record.view, self.ignore_keys)
            if not arena.fits_batch(record.bound):
                if record.on_delivery is not None and fresh is None:
                    fresh = fresh_delivery(record.on_delivery)
                batch = put_alone(session, topic, partition, record.timestamp, &record.view, place, missing)
                if batch is None:
                    return None
                _describe(future, batch, 0, record)
                break
            chain = &topic.chains[partition]
            if chain.limit != 0:
                batch = <Batch>chain.batch
                _describe(future, batch, chain.total, record)
                if record.on_delivery is not None and not room_for_delivery(batch, record.on_delivery, fresh):
                    fresh = fresh_delivery(record.on_delivery)
                    continue
                if chain.batch != <void *>batch or chain.total != future.index:
                    continue  # the garbage collector ran a finalizer that has sent a record
                if append_record(&arena.port, chain, record.timestamp, &record.view, record.bound):
                    break
            if sticky and arena.close_full(chain, record.bound):
                pack_closed(arena)
                continue  # the batch was full: choose the sticky partition again
            status = make_room(session, topic, partition, record.bound, record.timestamp, place)
            if status != HAVE_ROOM:
                missing[0] = <Room>status
                return None
        if record.on_delivery is not None:
            watch_delivery(future, record.on_delivery, fresh)
        return future

    cdef int complete(self, Prepared record, SessionOwner channel, Session session, Topic topic) except -1:
        """Serialize and place the record by code of the application. All that was read before is stale after it."""
        self.extensions.complete(record, session, topic)
        if channel.closing:
            raise errors.ProducerClosedError("the producer is closed")
        check_size(record, self.max_request, None)
        return check_size(record, session.arena.max_request, self.settings)


cdef int _describe(Future future, Batch batch, uint32_t index, Prepared record) except -1:
    """Fill in the future of a record that is about to be appended at `index` of `batch`."""
    return set_future(future, batch, index, record.timestamp, record.view.key_length, record.view.value_length)


cdef Appender make_appender(object settings, Extensions extensions):
    cdef Appender appender = Appender.__new__(Appender)
    appender.settings, appender.extensions = settings, extensions
    appender.ignore_keys = settings.partitioner_ignore_keys
    appender.max_request = settings.max_request_size
    return appender


native_only(Appender)
