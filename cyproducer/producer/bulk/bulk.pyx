"""Implements `send_array` and `send_arrow`: encodes rows from their columns directly into open batches.

The loop runs in slices of about 64 KiB that call no Python. It holds the GIL, because only one thread may append at a
time, and stops when it needs the interpreter. Between slices signals are handled and, once a millisecond, other
threads can take the GIL. After any other code may have run, everything that the loop read of the session is stale:
a new epoch makes it look everything up again.

Rows are queued in order, as with `send()` in a loop. Everything that can be checked beforehand (types, sizes, topics,
partitions) is checked before the first row is queued. If memory or the sender fails later, the rows that are queued
stay queued and are delivered. The error says how many there are; its attribute `queued` is their future.
"""


cdef enum Stop:
    SLICE_DONE      # the rows of the run, the slice or the call are encoded
    BIND            # the row's topic has not been looked up in this epoch
    NO_ROOM         # no batch is open for the row, or the row does not fit
    NEW_BATCH       # the future does not know the open batch, or other sends have appended to it


cdef struct Target:
    # The data of a topic that the loop needs. Pointers are valid while `epoch` equals Bulk.epoch.
    Chain *chains
    int32_t partition_count     # at the start of the call: keys are hashed over this many
    int32_t sticky
    int32_t lane_base
    uint64_t epoch


cdef Py_ssize_t SLICE_BYTES = 65536
cdef uint64_t HOLD_BYTES = 262144           # one wake-up of the sender for this many
cdef uint64_t OFFER_NS = 1000000            # other threads can take the GIL this often
cdef uint64_t WINDOW_BYTES = 2097152        # per broker: with more outstanding bytes the CPU caches are too small
cdef uint64_t SLOW_WINDOW_BYTES = 8388608   # per broker that is slower than memory: fewer and longer waits
cdef uint64_t SLOW_WAIT_NS = 2000000        # a broker is slow if half a window takes longer than this
cdef double WINDOW_TIMEOUT_S = 0.005


def send_array(channel_of, partitioner, topic, values, keys=None, partition=None, timestamps_ms=None, headers=None):
    """Implement `KafkaProducer.send_array`."""
    check_name(topic)
    return _send(channel_of, partitioner, rows_of_arrays(topic, values, keys, partition, timestamps_ms, headers))


def send_arrow(channel_of, partitioner, table, topic=None):
    """Implement `KafkaProducer.send_arrow`."""
    if topic is not None:
        check_name(topic)
    return _send(channel_of, partitioner, rows_of_table(table, topic))


cdef BulkFuture _send(object channel_of, object partitioner, Rows rows):
    cdef Bulk bulk = Bulk.__new__(Bulk)
    bulk.channel_of = channel_of
    bulk.settings = channel_of().settings
    bulk.rows = rows
    bulk.plain = rows.is_plain()
    needed = rows.partitions_needed()
    bulk.future = make_bulk_future(rows)
    bulk.ignore_keys = bulk.settings.partitioner_ignore_keys
    if rows.rows == 0:
        return bulk.future
    bulk._check_sizes(bulk.settings.max_request_size, "max_request_size of this producer")
    try:
        bulk._find_topics(needed)
        if partitioner is not None:
            counts = [bulk.targets[at].partition_count for at in range(len(rows.topics))]
            place_rows(rows, bulk.session, counts, partitioner)
            bulk.plain = False
        bulk._run()
    except BaseException as error:  # including exceptions of signal handlers
        bulk.future.rows = bulk.row
        error.queued = bulk.future
        if bulk.row:
            text = f"{bulk.row} of {rows.rows} rows were queued before, and will be delivered"
            if isinstance(error, errors.KafkaError):
                # The error of a wait is that of one record.
                error.message = error.message.replace("; nothing was queued", "") + f" ({text})"
                error.args = (error.message,)
            else:
                error.add_note(text)
        raise
    finally:
        bulk._release_wakes()
        bulk._end_wait()
    bulk.future.rows = rows.rows
    return bulk.future


@cython.final
cdef class Bulk:
    """The state of one running call."""

    cdef object channel_of          # returns the SessionOwner of this process
    cdef SessionOwner channel
    cdef object settings
    cdef Rows rows
    cdef BulkFuture future
    cdef Session session
    cdef Port *port
    cdef Target *targets            # one for each topic of the rows
    cdef uint64_t epoch             # incremented when the session may have changed: Targets of older epochs are stale
    cdef bint ignore_keys
    cdef bint plain                 # Rows.is_plain
    cdef Py_ssize_t row             # the next row; all rows before it are queued
    cdef Cursor cursor
    cdef int64_t now                # ms
    cdef int32_t topic              # of the row at which the loop stopped
    cdef int32_t partition
    cdef Py_ssize_t bound           # most bytes that the encoded row can have
    cdef uint64_t offered_ns        # monotonic ns: when the GIL was last released for other threads
    cdef uint64_t hold_end          # the sender is not woken before `encoded` reaches this
    cdef uint64_t encoded           # bytes encoded so far
    cdef Py_ssize_t oldest          # index of an extent: all before it have an outcome
    cdef uint64_t window            # most bytes that may be outstanding
    cdef uint64_t window_check      # when `encoded` reaches this, the window is checked
    cdef object retry               # the BlockingRetry of the current wait, or None
    cdef Place place                # of `retry` in the queue for memory, or None

    def __dealloc__(self):
        free(self.targets)

    # ---------------------------------------------------------------- before anything is queued

    cdef int _check_sizes(self, Py_ssize_t limit, str limit_name) except -1:
        """Raise RecordTooLargeError if a row can exceed `limit` bytes with its overhead."""
        if self.rows.bound() + BATCH_HEADER_BYTES + RECORD_OVERHEAD_BOUND <= limit:
            return 0
        row, size = self.rows.largest()
        size += BATCH_HEADER_BYTES
        if size > limit:
            raise errors.RecordTooLargeError(
                f"row {row}: a record of up to {size} bytes with its overhead is larger than {limit}, {limit_name}; "
                f"{'' if self.row else 'nothing was queued; '}send smaller records, or raise max_request_size"
            )
        return 0

    cdef int _find_topics(self, list needed) except -1:
        """Wait for the metadata of every topic. `needed`: for each topic, a partition that must exist.

        The partition counts that are found are used for the whole call. Raise the errors of attaching and of
        retry.wait_metadata.
        """
        cdef Topic topic
        cdef Py_ssize_t at
        counts = []
        self._find_session()
        if len(self.rows.topics) > 1:
            for at, name in enumerate(self.rows.topics):  # all at once, so that the sender needs only one request
                topic = self.session.find_topic(name)
                if topic is None or topic.partition_count <= needed[at]:
                    self.session.want_topic(name, needed[at])
        for at, name in enumerate(self.rows.topics):
            while True:
                if not self.session.alive:
                    self._find_session()
                topic = self.session.find_topic(name)
                if topic is not None and topic.partition_count > needed[at]:
                    break
                self._block(NEED_METADATA, self.session, name, needed[at])
            counts.append(topic.partition_count)
        self._end_wait()
        self.future.set_lanes(counts)
        self.targets = <Target *>calloc(len(counts), sizeof(Target))
        if self.targets == NULL:
            raise MemoryError
        for at in range(len(counts)):
            self.targets[at].partition_count = counts[at]
            self.targets[at].lane_base = self.future.lane_base[at]
        self.epoch = 1
        self.window = self.session.bulk_window
        if self.window == 0:
            self.window = WINDOW_BYTES * <uint64_t>max(1, self.session.topics.brokers)
        self.window_check = self.window
        return 0

    # ---------------------------------------------------------------- the loop

    cdef int _run(self) except -1:
        cdef Stop stop
        while self.row < self.rows.rows:
            if not self.session.alive:
                self._wait(NEED_SESSION)
            self.now = realtime_coarse_ms()
            self.port.holds_wakes = self.encoded < self.hold_end
            stop = self._encode()
            if stop == BIND:
                self._bind()
                continue
            self.epoch += 1
            if stop == NO_ROOM:
                self._make_room()
            elif stop == NEW_BATCH:
                self._add_extent()
            self._between_slices()
        return 0

    cdef Stop _encode(self) noexcept nogil:
        """Encode and commit rows until the slice is full or Python is needed. The GIL is held."""
        cdef Target *target
        cdef int32_t topic = 0
        cdef Stop stop
        cdef uint64_t end = self.encoded + SLICE_BYTES
        while self.row < self.rows.rows and self.encoded < end:
            if self.row >= self.cursor.end:
                self.rows.seek(self.row, &self.cursor)
            if self.rows.topic_of != NULL:
                topic = self.rows.topic_of[self.row]
            target = &self.targets[topic]
            self.topic = topic
            if target.epoch != self.epoch:
                return BIND
            stop = self._encode_plain_run(target) if self.plain else self._encode_run(target, topic)
            if stop != SLICE_DONE:
                return stop
        return SLICE_DONE

    cdef Stop _encode_run(self, const Target *target, int32_t topic) noexcept nogil:
        """Encode rows from the current one on that go to one partition and fit its open chunk, with one commit."""
        cdef const Cursor *cursor = &self.cursor
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef const uint8_t *headers = NULL
        cdef Py_ssize_t key_size = -1, value_size, header_size, body, row = self.row
        cdef int32_t partition = self._partition_of(target, row, &key, &key_size)
        cdef Chain *chain = &target.chains[partition]
        cdef int32_t index = <int32_t>chain.total
        cdef uint8_t *start = chain_tail(chain)
        cdef uint8_t *end = start + chain_room(chain)
        cdef uint8_t *at = start
        cdef int64_t timestamp, newest = INT64_MIN
        cdef Stop stop = SLICE_DONE
        self.partition = partition
        if chain.limit != 0 and not self._knows_batch(target.lane_base + partition, chain):
            return NEW_BATCH
        while True:
            value_size = segment_get(cursor.value, row - cursor.value.start, &value)
            header_size = segment_get(cursor.headers, row - cursor.headers.start, &headers)
            timestamp = self.rows.timestamp if self.rows.timestamps == NULL else self.rows.timestamps[row]
            if timestamp < 0:
                timestamp = self.now
            # record_body_size counts one byte for the number of headers, 0; a header section includes the number
            body = record_body_size(timestamp - chain.base_timestamp, index, key_size, value_size, NULL, 0)
            if header_size > 0:
                body += header_size - 1
            if at + body + size_of_varint(<int32_t>body) > end:
                self.bound = (
                    RECORD_OVERHEAD_BOUND + max(key_size, 0) + max(value_size, 0) + max(header_size, 0)
                )
                stop = NO_ROOM
                break
            fetch_ahead(at, end, body)
            at = put_record_front(
                at, body, timestamp - chain.base_timestamp, index, key, key_size, value, value_size
            )
            if header_size > 0:
                at = put_bytes(at, headers, header_size)
            else:
                at[0] = 0
                at += 1
            newest = max(newest, timestamp)
            index += 1
            row += 1
            if row >= cursor.end or (self.rows.topic_of != NULL and self.rows.topic_of[row] != topic):
                break
            if self._partition_of(target, row, &key, &key_size) != partition:
                break
        if row > self.row and not self._publish(target, chain, row, at - start, newest):
            self.bound = RECORD_OVERHEAD_BOUND + self.rows.row_size(cursor, self.row)
            return NO_ROOM
        return stop

    cdef Stop _encode_plain_run(self, const Target *target) noexcept nogil:
        """Do what `_encode_run` does for plain rows: all rows up to the segment's end go to the same partition."""
        cdef Segment values = self.cursor.value[0]
        cdef const uint8_t *value = NULL
        cdef Py_ssize_t value_size = values.width, body, row = self.row, last = self.cursor.end
        cdef int32_t partition = self.rows.partition if self.rows.partition >= 0 else target.sticky
        cdef Chain *chain = &target.chains[partition]
        cdef int32_t index = <int32_t>chain.total
        cdef uint8_t *start = chain_tail(chain)
        cdef uint8_t *end = start + chain_room(chain)
        cdef uint8_t *at = start
        cdef int64_t timestamp = self.rows.timestamp if self.rows.timestamp >= 0 else self.now
        cdef int64_t delta = timestamp - chain.base_timestamp
        self.partition = partition
        if chain.limit != 0 and not self._knows_batch(target.lane_base + partition, chain):
            return NEW_BATCH
        if values.kind == SEGMENT_FIXED and not values.nullable:
            value = values.data + (row - values.start) * values.stride
            row += put_equal_records(&at, end, delta, index, value, values.stride, values.width, last - row)
        else:
            while row < last:
                value_size = segment_get(&values, row - values.start, &value)
                body = record_body_size(delta, index, -1, value_size, NULL, 0)
                if at + body + size_of_varint(<int32_t>body) > end:
                    break
                fetch_ahead(at, end, body)
                at = put_record_front(at, body, delta, index, NULL, -1, value, value_size)
                at[0] = 0
                at += 1
                index += 1
                row += 1
        self.bound = RECORD_OVERHEAD_BOUND + max(value_size, 0)
        if row > self.row and not self._publish(target, chain, row, at - start, timestamp):
            self.bound = RECORD_OVERHEAD_BOUND + self.rows.row_size(&self.cursor, self.row)
            return NO_ROOM
        return SLICE_DONE if row == last else NO_ROOM

    cdef bint _publish(
        self, const Target *target, Chain *chain, Py_ssize_t end, Py_ssize_t size, int64_t newest
    ) noexcept nogil:
        """Commit the rows before `end`, `size` bytes. Return False if the sender has sealed the batch."""
        cdef Extent *extent
        cdef Py_ssize_t row
        cdef int32_t *partitions = self.rows.partitions
        cdef int32_t partition = self.partition
        cdef uint32_t count = <uint32_t>(end - self.row)
        if not commit_records(self.port, chain, count, <uint32_t>size, newest):
            return False
        extent = &self.future.extents[self.future.lanes[target.lane_base + self.partition].last]
        extent.count += count
        extent.size += <uint32_t>size
        for row in range(self.row, end):
            partitions[row] = partition
        self.row = end
        self.encoded += size
        return True

    cdef bint _knows_batch(self, int32_t lane, const Chain *chain) noexcept nogil:
        """Return whether the last extent of the lane ends where the next record of the open batch will be."""
        cdef int32_t last = self.future.lanes[lane].last
        cdef const Extent *extent
        if last < 0:
            return False
        extent = &self.future.extents[last]
        return extent.batch == chain.batch and extent.first + extent.count == chain.total

    cdef int32_t _partition_of(
        self, const Target *target, Py_ssize_t row, const uint8_t **key, Py_ssize_t *key_size
    ) noexcept nogil:
        """Return the partition of a row and read its key. Store a partition by key; _publish stores a sticky one."""
        cdef int32_t partition = self.rows.partitions[row]
        key_size[0] = segment_get(self.cursor.key, row - self.cursor.key.start, key)
        if partition >= 0:
            return partition
        if key_size[0] < 0 or self.ignore_keys:
            return target.sticky
        partition = key_partition(key[0], key_size[0], target.partition_count)
        self.rows.partitions[row] = partition
        return partition

    # ---------------------------------------------------------------- parts that need the interpreter

    cdef int _bind(self) except -1:
        """Look up the topic of the current row. No other code runs between this and the loop."""
        cdef Target *target = &self.targets[self.topic]
        cdef Topic topic
        if not is_current(self.session.topics):
            self.session.refresh_topics(None)
            self.epoch += 1  # the chains of other topics may have moved
        topic = self.session.topics.by_name.get(self.rows.topics[self.topic])
        if topic is None or topic.partition_count < target.partition_count:  # deleted, perhaps created again
            self.partition = target.partition_count - 1
            self._wait(NEED_SESSION)
            return 0
        target.sticky = self.session.arena.sticky_partition(topic) % target.partition_count
        target.chains = topic.chains
        target.epoch = self.epoch
        return 0

    cdef int _add_extent(self) except -1:
        """Add the open batch of the current row to the future."""
        cdef Topic topic = self.session.topics.by_name[self.rows.topics[self.topic]]
        cdef Chain *chain = &topic.chains[self.partition]
        if chain.limit != 0:
            self.future.add_extent(
                self.targets[self.topic].lane_base + self.partition, <Batch>chain.batch, chain.total
            )
        return 0

    cdef int _make_room(self) except -1:
        """Close, extend or open the batch of the current row, or send the row alone. Wait if necessary."""
        cdef Topic topic = self.session.topics.by_name[self.rows.topics[self.topic]]
        cdef Chain *chain = &topic.chains[self.partition]
        cdef Arena arena = self.session.arena
        cdef int status
        if self.encoded >= self.window_check:
            return self._limit_outstanding()
        if not arena.fits_batch(self.bound):
            return self._send_alone(topic)
        if self.rows.partitions[self.row] < 0 and chain.row != NULL:
            # A full batch changes the sticky partition, and a batch that the sender has sealed may do so too.
            if chain.limit == 0:
                arena.close_chain(chain, False)
                return 0
            if arena.close_full(chain, self.bound):
                pack_closed(arena)
                return 0
        status = make_room(self.session, topic, self.partition, self.bound, self._timestamp(), self.place)
        return self._continue_or_wait(<Room>status)

    cdef int64_t _timestamp(self) noexcept:
        """Return the timestamp of the current row, in ms."""
        cdef int64_t timestamp = self.rows.timestamp
        if self.rows.timestamps != NULL:
            timestamp = self.rows.timestamps[self.row]
        return self.now if timestamp < 0 else timestamp

    cdef int _continue_or_wait(self, Room missing) except -1:
        """Handle the status of a request for memory: continue, or wait for what is missing."""
        if missing != HAVE_ROOM:
            return self._wait(missing)
        self._end_wait()
        return 0

    cdef int _block(self, Room missing, Session session, str topic, int32_t needed) except -1:
        """Wait for what is missing, as Retry.wait() does. The deadline is that of the first call since _end_wait()."""
        if self.retry is None:
            self.retry = BlockingRetry(self.settings.max_block_ms / 1000)
            self.place = self.retry.place
        run_blocking(self.retry.wait(missing, self.channel, session, topic, needed))
        return 0

    cdef int _end_wait(self) except -1:
        """Leave the queue for memory. The next wait has max_block_ms again."""
        cdef Place place = self.place
        self.retry = self.place = None
        if place is not None:
            place.leave()
        return 0

    cdef int _send_alone(self, Topic topic) except -1:
        """Send the current row in a batch of its own, because it does not fit a shared one."""
        cdef RecordView record
        cdef const uint8_t *section = NULL
        cdef Py_ssize_t row = self.row, section_size
        cdef HeaderView *views = NULL
        cdef Room missing = HAVE_ROOM
        cdef Batch batch
        cdef Extent *extent
        self.rows.seek(row, &self.cursor)
        record.key_length = segment_get(self.cursor.key, row - self.cursor.key.start, &record.key)
        record.value_length = segment_get(self.cursor.value, row - self.cursor.value.start, &record.value)
        record.header_count = 0
        section_size = segment_get(self.cursor.headers, row - self.cursor.headers.start, &section)
        try:
            if section_size > 1:
                views = _read_headers(section, section_size, &record.header_count)
            record.headers = views
            batch = put_alone(
                self.session, topic, self.partition, self._timestamp(), &record, self.place, &missing
            )
        finally:
            free(views)
        if missing == HAVE_ROOM:
            self.future.add_extent(self.targets[self.topic].lane_base + self.partition, batch, 0)
            extent = &self.future.extents[self.future.extent_count - 1]
            extent.count = 1
            extent.size = <uint32_t>self.bound
            self.rows.partitions[row] = self.partition
            self.encoded += self.bound
            self.row += 1
        return self._continue_or_wait(missing)

    cdef int _wait(self, Room missing) except -1:
        """Wait for memory, a sender, or a topic that has lost partitions. Raise the error after max_block_ms."""
        self._release_wakes()
        if missing != NEED_MEMORY and not self.session.alive:
            self._find_session()
        else:
            if missing != NEED_MEMORY:
                missing = NEED_METADATA
            self._block(missing, self.session, self.rows.topics[self.topic], self.partition)
        self.epoch += 1
        return 0

    cdef int _find_session(self) except -1:
        """Go on with the producer's session, and wait for it if it has none. Raise ProducerClosedError.

        Check the rows against the session's max_request_size if that is smaller.
        """
        cdef Session session
        self.channel = self.channel_of()
        if self.channel.closing or not self.channel.session.alive:  # closing: the session lives until it is flushed
            self._block(NEED_SESSION, self.channel.session, self.rows.topics[0], 0)
            self.channel = self.channel_of()
        self.session = session = self.channel.session
        self.port = &session.arena.port
        if session.arena.max_request < <Py_ssize_t>self.settings.max_request_size:
            limit_name = f"the max_request_size of the sender at {self.settings.sender}"
            self._check_sizes(session.arena.max_request, limit_name)
        return 0

    cdef int _between_slices(self) except -1:
        """Handle signals. Release the GIL once a millisecond so that other threads can take it."""
        cdef uint64_t now
        PyErr_CheckSignals()
        if self.encoded >= self.hold_end:
            self._release_wakes()
        now = monotonic_ns()
        if now - self.offered_ns > OFFER_NS:
            self._release_wakes()
            with nogil:
                pass
            self.offered_ns = monotonic_ns()
        return 0

    cdef void _release_wakes(self) noexcept:
        """Wake the sender for the rows queued so far, before anything that may take long."""
        if self.session is not None and self.session.alive:
            release_wakes(self.port)
        self.hold_end = self.encoded + HOLD_BYTES

    # ---------------------------------------------------------------- outstanding bytes

    cdef int _limit_outstanding(self) except -1:
        """If the closed batches without an outcome fill the window, wait until they fill only half of it.

        If that takes longer than SLOW_WAIT_NS, the window is doubled, up to SLOW_WINDOW_BYTES per broker: the waits
        cost more then than the CPU caches save. If no outcome comes for WINDOW_TIMEOUT_S, the window is doubled without
        a limit other than `buffer_memory`: the broker's latency requires a larger one. The next call starts with the
        resulting window. Short waits shrink it again.
        """
        cdef Py_ssize_t middle = 0
        cdef uint64_t outstanding, before, took, began = monotonic_ns()
        cdef uint64_t most = SLOW_WINDOW_BYTES * <uint64_t>max(1, self.session.topics.brokers)
        self._release_wakes()
        self.session.drain()
        outstanding = self._outstanding(&middle)
        while outstanding >= self.window:
            if not wait_batches([<Batch>self.future.extents[middle].batch], WINDOW_TIMEOUT_S):
                before = outstanding
                outstanding = self._outstanding(&middle)
                if outstanding >= before:
                    self.window *= 2
            outstanding = self._outstanding(&middle)
        took = monotonic_ns() - began
        if took > SLOW_WAIT_NS and self.window < most:
            self.window *= 2
        elif took < SLOW_WAIT_NS // 8 and self.window > most // 4:
            self.window //= 2
        self.session.bulk_window = self.window
        self.window_check = self.encoded + (self.window - outstanding)
        return 0

    cdef uint64_t _outstanding(self, Py_ssize_t *middle) noexcept:
        """Return the bytes in closed batches without an outcome.

        Set `middle` to the extent after whose outcome half the window is free, if all before it have one too.
        """
        cdef const Extent *extents = self.future.extents
        cdef Py_ssize_t at, count = self.future.extent_count
        cdef uint64_t total = 0, passed = 0
        while self.oldest < count and (<Batch>extents[self.oldest].batch).done:
            self.oldest += 1
        for at in range(self.oldest, count):
            # The last extent of a lane is assumed to be an open batch.
            if extents[at].next >= 0 and not (<Batch>extents[at].batch).done:
                total += extents[at].size
        for at in range(self.oldest, count):
            if extents[at].next >= 0 and not (<Batch>extents[at].batch).done:
                passed += extents[at].size
                if total - passed <= self.window // 2:
                    middle[0] = at
                    break
        return total


cdef HeaderView *_read_headers(const uint8_t *section, Py_ssize_t size, int *count) except? NULL:
    """Return the headers of an encoded section, or NULL if there are none. The caller frees them."""
    cdef const uint8_t *at = section
    cdef const uint8_t *end = section + size
    cdef HeaderView *views
    cdef int32_t found = 0, length = 0, i
    at = get_varint(at, end, &found)
    if found == 0:
        return NULL
    views = <HeaderView *>malloc(found * sizeof(HeaderView))
    if views == NULL:
        raise MemoryError
    for i in range(found):
        at = get_varint(at, end, &length)
        views[i].key = at
        views[i].key_length = length
        at = get_varint(at + length, end, &length)
        views[i].value = at
        views[i].value_length = length
        at += max(length, 0)
    count[0] = found
    return views
