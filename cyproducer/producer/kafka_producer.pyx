"""Implements KafkaProducer, the public API.

send() has two paths. The fast path takes plain bytes, ints and headers with ASCII names for a known topic. It appends
them to the open batch of the partition, and calls no Python code before. Without an open batch it opens one, if that
needs no waiting. The slow path prepares the record, and waits until it can append it.
"""


cdef bint ALWAYS = True

_log = logging.getLogger("cyproducer")
_parent_channels = []   # the parent's channels, kept in a forked child: freeing them would write to its memory


@cython.embedsignature(False)
cdef class KafkaProducer:
    """KafkaProducer(**configs)
--

    Publishes records to Kafka through the sender process that all producers of this host share.

    Settings have Kafka's names, in snake case (`linger_ms=5`) or dotted (`**{"linger.ms": 5}`). The constructor
    checks them and starts nothing. The first use attaches to the sender, and starts one if none runs. Threads can
    share a producer, and it works in forked children. Pickles and copies contain its settings only.
    Raises KafkaConfigurationError, UnsupportedPlatformError.
    """

    cdef Session session                # of the channel, for send(): current() follows it; None: no settings yet
    cdef SessionOwner channel           # the Channel of this process
    cdef readonly object settings
    cdef object address                 # of the sender
    cdef Extensions extensions          # serializers, partitioner, interceptors
    cdef bint plain                     # nothing of the application runs in send()
    cdef const bint *may_send           # whether send() may take its fast path; NULL: never
    cdef object transactions            # TransactionManager; None without transactional_id
    cdef TransactionMonitor sends       # says whether records may be sent; None without transactional_id
    cdef Appender appender              # for what the fast path does not take
    cdef bint closing                   # a call of close() is running or has ended
    cdef bint ignore_keys
    cdef double max_block_s
    cdef double started_ms              # when it was made, in ms since 1970
    cdef object __weakref__

    def __init__(self, *args, **configs):
        if args:
            raise TypeError(
                f"KafkaProducer takes settings by name only, not {type(args[0]).__name__}: KafkaProducer(linger_ms=5), "
                'or KafkaProducer(**{"linger.ms": 5})'
            )
        check_platform()
        self.configure(Settings.parse(**configs))

    cdef object configure(self, object settings):
        """Make the parts of the producer. Without a session it is not complete; `may_send` lets send() use that."""
        self.may_send = NULL
        self.settings = settings
        self.address = Address(settings)
        self.started_ms = system_clock.wall() * 1000
        self.extensions = Extensions(settings)
        if settings.transactional_id is not None and settings.joined_transaction is None:
            self.transactions = TransactionManager()
            self.sends = self.transactions.monitor
        self.ignore_keys = settings.partitioner_ignore_keys
        self.appender = make_appender(settings, self.extensions)
        self.max_block_s = settings.max_block_ms / 1000
        self.plain = self.extensions.plain
        self.open_channel(False)
        self.may_send = NULL if not self.plain else &ALWAYS if self.sends is None else &self.sends.open

    cdef int open_channel(self, bint closing) except -1:
        """Make the channel of this process. It has no sender yet."""
        cdef SessionOwner channel = Channel(self.settings, self.address)
        channel.closing = closing
        exit.register(channel)
        self.channel, self.session = channel, channel.session
        return 0

    @cython.binding(False)
    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None):
        """send($self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None)
--

        Queue a record for sending and return its future, without waiting for the broker.

        topic         str
        value, key    bytes, bytearray, contiguous memoryview, None (Kafka's null; serializers do not see it), or
                      any type that the serializer accepts
        headers       dict of str to bytes, str (as UTF-8) or None, or a sequence of such pairs
        partition     int; default: by the key's hash as in Java, without a key the sticky partition
        timestamp_ms  int, ms since 1970; default: now, at most 4 ms old
        on_delivery   called once, as on_delivery(error or None, RecordMetadata), on the callback thread

        Block up to max_block_ms for the sender, metadata or memory. If it raises, the record was not queued; after an
        exception of a signal's handler, it may be. Raise TypeError, ValueError, InvalidTopicError,
        TopicAuthorizationFailedError, SerializationError, RecordTooLargeError, KafkaTimeoutError,
        BufferExhaustedError, SenderUnavailableError, ProducerClosedError.
        """
        cdef Session session = self.session
        cdef Arena arena = session.arena if self.may_send != NULL and self.may_send[0] else None
        cdef Topic known
        cdef Chain *chain
        cdef Future future
        cdef RecordView record
        cdef int64_t timestamp = -1, wanted = -1, delta
        cdef int32_t chosen
        cdef Py_ssize_t bound
        cdef HeaderView views[FEW_HEADERS]
        cdef Py_ssize_t header_bytes = 0
        record.headers, record.header_count = views, 0
        if headers is not None:
            record.header_count = view_headers(headers, views, &header_bytes)
        if timestamp_ms is not None:
            timestamp = small_number(timestamp_ms)
        if partition is not None:
            wanted = small_number(partition)
        while (
            arena is not None and is_alive(arena)
            and (type(value) is bytes or value is None) and (type(key) is bytes or key is None)
            and record.header_count >= 0
            and (partition is None or wanted >= 0) and (timestamp_ms is None or timestamp >= 0)
            and (on_delivery is None or self.channel.delivery is not None and PyCallable_Check(on_delivery))
            and topic is not None
            and (<PyObject *>topic == <PyObject *>session.topics.cached_name or session.topics.recall(topic))
        ):
            known = session.topics.cached_topic
            _view_bytes(value, key, &record)
            if known.partition_count <= 0 or wanted >= known.partition_count:
                break
            chosen = <int32_t>wanted if wanted >= 0 else draw_partition(arena, known, &record, self.ignore_keys)
            chain = &known.chains[chosen]
            if timestamp < 0:
                timestamp = realtime_coarse_ms()
            future = Future.__new__(Future)
            bound = record_size_bound(&record, header_bytes)
            delta = timestamp - chain.base_timestamp
            # Compared as unsigned: a negative delta, after the wall clock was set back, counts as large.
            if timestamp_ms is None and <uint64_t>delta > <uint64_t>session.check_after_ms and chain.limit != 0:
                session.poll()  # the batch should have been sealed long ago: check whether the sender is gone
                break
            if (
                chain.limit != 0 and -0x7fffffff <= delta <= 0x7fffffff
                and (on_delivery is None or room_for_delivery(<Batch>chain.batch, on_delivery, None))
                and append_record(&arena.port, chain, timestamp, &record, bound)
            ):
                future.batch = <Batch>chain.batch
                future.index = chain.total - 1
                future.timestamp_delta = <int32_t>delta
                future.key_size = <int32_t>record.key_length
                future.value_size = <int32_t>record.value_length
                if on_delivery is not None:
                    watch_delivery(future, on_delivery, None)
                return future
            if chain.limit != 0 or not self._opens_batch(session, known, chosen, bound, timestamp):
                break
            # Other code may have run: all is checked again, and the headers may be others.
            if headers is not None:
                record.header_count = view_headers(headers, views, &header_bytes)
        self.current()  # raises if there are no extensions, because __init__() was not called
        headers = header_pairs(headers)
        if self.extensions.interceptors is not None:
            intercepted = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
            return self.extensions.interceptors.send(self._send, intercepted, on_delivery)
        return self._send(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def _send(self, topic, value, key, headers, partition, timestamp_ms, on_delivery):
        cdef Prepared record
        cdef RunningSend running = None
        try:
            if self.sends is not None:
                running = self._enter_send("send")
            record = self.describe(topic, value, key, headers, partition, timestamp_ms, on_delivery, True)
            return self.send_blocking(record)
        except errors.KafkaError as error:
            count_refused(self.current(), error)
            raise
        finally:
            if running is not None:
                self.sends.leave_send(running)

    def send_async(
        self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None
    ):
        """Do what `send()` does, for asyncio: `future = await producer.send_async(...)` never blocks the event loop.

        While it waits for the sender, metadata or memory, the loop runs. `await future` gives the RecordMetadata.
        """
        self.current()  # raises if there are no extensions, because __init__() was not called
        headers = header_pairs(headers)
        if self.extensions.interceptors is not None:
            intercepted = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
            return self.extensions.interceptors.send_async(self._send_async, intercepted, on_delivery)
        return self._send_async(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def send_and_wait(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Do what `send_async()` does, and wait for the outcome: `await` gives the RecordMetadata or raises the error.

        One record waits for one answer of the broker. To send many records, keep the futures of `send_async()`.
        """
        return asyncio_part().send_and_wait(self.send_async(topic, value, key, headers, partition, timestamp_ms))

    def _send_async(self, topic, value, key, headers, partition, timestamp_ms, on_delivery):
        # Serialized at once: the coroutine may start when the program has already changed the value.
        try:
            record = self.describe(topic, value, key, headers, partition, timestamp_ms, on_delivery, False)
        except errors.KafkaError as error:
            count_refused(self.current(), error)
            raise
        aio = asyncio_part()
        sending = aio.Sending(self._channel, self._attempt_prepared, record, self.max_block_s)
        if self.transactions is not None:
            return send_counted(self, aio.send, sending)
        return aio.send(sending)

    cdef Prepared describe(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms,
        object on_delivery, bint later,
    ):
        """Return the checked record. Serialize it here, or `later`: in `complete`, when its topic is known."""
        cdef Prepared record
        if self.plain:
            return prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        record = prepare_raw(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        record.unplaced = self.extensions.partitioner is not None and record.partition < 0
        if not later:
            self.extensions.serialize(record)
        return record

    def send_array(self, topic, values, keys=None, partition=None, timestamps_ms=None, headers=None):
        """Send the rows of arrays, in order. Return one future for all rows; its result is an `ArrayMetadata`.

        values, keys   a 1-D array of a fixed-width dtype (all bytes of an element as they are in memory: `S` with
                       its padding), a 2-D array of uint8 (one row is one record), a (data, offsets) pair, a list
                       of bytes and None, or an Arrow array or stream of a binary or string type. Masked and null
                       elements become Kafka's null. Serializers do not run. `keys` may be None
        partition      int for all rows, or an integer or null per row; default: as in `send()`
        timestamps_ms  int for all rows, or integers (ms since 1970), datetime64 or Arrow timestamps, rounded
                       down to ms; null and NaT mean now
        headers        those of `send()` for all rows (a dict, or if the first element is a header), an iterable of
                       such headers or None per row, or Arrow's list<struct<key: string, value: binary>>

        Check all arguments, sizes and partitions before the first row is queued, and copy all but the bytes of values
        and keys. Block, each time up to max_block_ms, for the sender, metadata or memory. If that raises, or a signal
        handler does, the rows queued before are still delivered: the error says how many, and its `queued` is their
        future. Raise the same errors as `send()`.
        """
        return self.send_rows("send_array", send_array, (topic, values, keys, partition, timestamps_ms, headers))

    def send_arrow(self, table, topic=None):
        """Send the rows of an Arrow table, record batch or stream (pyarrow is not needed), like `send_array`.

        Columns are found by name: `value` (binary or string) is required. Optional are `key` (binary or string),
        `headers` (list<struct<key: string, value: binary>>), `partition` (integer), `timestamp` (a timestamp of any
        unit, or integer ms) and `topic` (string); the argument `topic` overrides that column. The index of a pandas
        frame is left out. Any other column, and a structure that was released or is malformed, raises ValueError.
        """
        return self.send_rows("send_arrow", send_arrow, (table, topic))

    cdef object send_rows(self, str method, send, tuple arguments):
        """Send rows by `send`, and count the call if it raises an error. Nothing may fail after it returns."""
        self.current()
        self.extensions.refuse_arrays(method)
        cdef RunningSend running = None
        try:
            if self.sends is not None:
                running = self._enter_send(method)
            return send(self._channel, self.extensions.partitioner, *arguments)
        except errors.KafkaError as error:
            count_refused(self.current(), error)
            raise
        finally:
            if running is not None:
                self.sends.leave_send(running)

    # ---------------------------------------------------------------- state

    cdef bint _opens_batch(
        self, Session session, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp
    ) except -1:
        """Open a batch for a record of at most `bound` bytes. Return False if send() has to wait, or to raise an error.

        Code of the application may run meanwhile: waiters of a former batch, and finalizers.
        """
        cdef SessionOwner channel = self.channel
        if channel.closing or not is_current(session.topics) or not session.arena.fits_batch(bound):
            return False
        if make_room(session, topic, partition, bound, timestamp, None) != HAVE_ROOM:
            return False
        if (
            not channel.closing and self.may_send != NULL and self.may_send[0]
            and (self.sends is None or channel.own.first_error == 0)
        ):
            return True
        session.arena.drop_empty(topic, partition)
        return False

    cdef object send_blocking(self, Prepared record):
        cdef Room missing = HAVE_ROOM
        cdef SessionOwner channel = self.current()
        cdef Future future = self.appender.attempt(channel, record, None, &missing)
        cdef Place place
        if future is not None:
            return future
        retry = BlockingRetry(self.max_block_s)
        place = retry.place
        try:
            while future is None:
                channel = self.current()
                run_blocking(retry.wait(missing, channel, channel.session, record.topic, record.needed))
                future = self.appender.attempt(self.current(), record, place, &missing)
            return future
        finally:
            place.leave()

    def _attempt_prepared(self, Prepared record, Place place):
        """Attempt to append a record, for channel/aio.py. Return (future, HAVE_ROOM) or (None, what is missing)."""
        cdef Room missing = HAVE_ROOM
        return self.appender.attempt(self.current(), record, place, &missing), missing

    def _channel(self):
        return self.current()

    @property
    def _transactions(self):
        return self.transactions

    def _enter_send(self, str method, loop=None):
        """Count a send in the open transaction; return what _leave_send() needs. Raise if records cannot be sent.

        loop   the event loop of its coroutine
        """
        cdef SessionOwner channel
        cdef RunningSend running = make_running_send(threading.get_ident(), loop)
        while True:
            channel = self.current()
            channel.poll()
            if (
                self.sends is not None and self.sends.open
                and channel.own.first_error == 0 and is_alive(self.session.arena)
            ):
                self.sends.enter_send(running)
                return running
            self.transactions.refuse_send(channel, method)

    def _leave_send(self, RunningSend running):
        if self.sends is not None:
            self.sends.leave_send(running)

    cdef bint is_closed(self) noexcept:
        return self.channel is not None and self.channel.closing

    cdef SessionOwner current(self):
        """Return the channel of this process, and let send() use its session.

        Raise KafkaConfigurationError if a subclass did not call `KafkaProducer.__init__` or caught its exception.
        """
        if self.session is None:
            raise errors.KafkaConfigurationError(
                "this producer has no settings: KafkaProducer.__init__() was not called, or it raised an error"
            )
        if self.is_parents():
            raise errors.IllegalStateError(
                "a transactional producer cannot be used in a forked child, because two processes with one id fence "
                "each other; make the producer in the child, with a transactional_id of its own"
            )
        if is_foreign(self.session.arena):
            _parent_channels.append(self.channel)
            self.open_channel(self.channel.closing)
        elif self.session is not self.channel.session:
            self.session = self.channel.session
            if self.sends is not None:
                self.sends.shut()  # an open transaction is lost with its session
        return self.channel

    cdef bint is_parents(self) noexcept:
        """Return whether this is a forked child, and the producer a transactional one of its parent."""
        return self.sends is not None and self.session is not None and is_foreign(self.session.arena)

    # ---------------------------------------------------------------- the rest of the interface

    def flush(self, timeout=None):
        """Seal all open batches and wait until all records that were sent before have their outcome.

        Their callbacks have run then. Raise KafkaTimeoutError after `timeout` seconds; the sender still delivers the
        records. Raise IllegalStateError in a callback, as Kafka's producer does.
        """
        run_blocking(self.current().flush(ThreadWaits(), timeout))

    def flush_async(self, timeout=None):
        """Do what `flush()` does, for asyncio. If the task is cancelled, the records are still delivered."""
        return self.current().flush(asyncio_part().LoopWaits(), timeout)

    def purge(self, timeout=None):
        """Drop the records that were sent before and are certain to be in no log. Their outcome is a PurgedError.

        A record that is on its way to a broker, or of which an earlier attempt may be in the log, is not dropped. It
        gets the same outcome as without this call. Records of other threads may be dropped while it runs.

        Raise KafkaTimeoutError if the sender does not answer within `timeout` seconds, SenderUnavailableError if it is
        of a version that cannot do this, and IllegalStateError for a transactional producer, whose
        abort_transaction() drops what was not sent.
        """
        channel = self.current()
        if self.transactions is not None:
            raise errors.IllegalStateError(
                "a transactional producer has no purge(): abort_transaction() drops the records that were not sent"
            )
        purge(channel, timeout)

    # ---------------------------------------------------------------- transactions

    def init_transactions(self, timeout=None):
        """Prepare for transactions. Call it once, before all other calls of a transactional producer.

        Fence an earlier producer of this transactional_id, and abort the transaction that it has left open.

        Like the other methods for transactions, wait up to `timeout` seconds (None: max_block_ms) and raise
        KafkaTimeoutError then: only the same call is possible next. Raise IllegalStateError for a call that is not
        possible now, ProducerFencedError and other errors that end this producer, SenderUnavailableError.
        """
        run_transactional(self, TransactionManager.init_transactions, timeout)

    def begin_transaction(self):
        """Begin a transaction. What is sent until its end is committed or aborted together."""
        run_transactional(self, TransactionManager.begin_transaction, None)

    def send_offsets_to_transaction(self, offsets, group_metadata, timeout=None):
        """Add the offsets of a consumer to the transaction: they are committed if the transaction is.

        offsets         offsets of the next records to read: a dict {TopicPartition: offset or OffsetAndMetadata}, with
                        (topic, partition) as well, or confluent-kafka's list of TopicPartition
        group_metadata  `consumer.group_metadata()` of kafka-python, `consumer.consumer_group_metadata()` of
                        confluent-kafka, or the group's id, with which the broker cannot fence the consumer

        Raise TypeError and ValueError, and the errors of the other methods for transactions. The metadata of a consumer
        that is not in its group any more gives the error UNKNOWN_MEMBER_ID.
        """
        run_transactional(self, TransactionManager.send_offsets_to_transaction, timeout, offsets, group_metadata)

    def commit_transaction(self, timeout=None):
        """Wait for the outcomes of all records of the transaction, run their callbacks, and commit.

        If a record has failed, raise an error; only abort_transaction() is possible then. After KafkaTimeoutError it
        is unknown whether the transaction is committed, until the call is repeated.
        """
        run_transactional(self, TransactionManager.commit_transaction, timeout)

    def abort_transaction(self, timeout=None):
        """Abort the transaction. Records that were not sent yet get TransactionAbortedError."""
        run_transactional(self, TransactionManager.abort_transaction, timeout)

    def transaction(self):
        """Return a transaction for `with` and `async with`: its normal end commits, and an exception aborts."""
        return Transaction(self)

    def init_transactions_async(self, timeout=None):
        """Do what `init_transactions()` does, for asyncio. If the task is cancelled, the call can be repeated."""
        return run_transactional_async(self, TransactionManager.init_transactions, timeout)

    def send_offsets_to_transaction_async(self, offsets, group_metadata, timeout=None):
        """Do what `send_offsets_to_transaction()` does, for asyncio."""
        method = TransactionManager.send_offsets_to_transaction
        return run_transactional_async(self, method, timeout, offsets, group_metadata)

    def commit_transaction_async(self, timeout=None):
        """Do what `commit_transaction()` does, for asyncio. If the task is cancelled, the call can be repeated."""
        return run_transactional_async(self, TransactionManager.commit_transaction, timeout)

    def abort_transaction_async(self, timeout=None):
        """Do what `abort_transaction()` does, for asyncio. If the task is cancelled, the call can be repeated."""
        return run_transactional_async(self, TransactionManager.abort_transaction, timeout)

    def close(self, timeout=None):
        """Abort an open transaction, flush and detach from the sender. A second call does nothing.

        Records without an outcome after `timeout` seconds get OutcomeUnknownError: the sender continues to deliver
        them, but this process does not learn the result. Unsent records whose sender is gone, and for which no other
        sender was found by then, get SenderUnavailableError. After an exception of a signal's handler, call it again.
        """
        run_blocking(self._close(ThreadWaits(), run_in_thread, timeout))

    def close_async(self, timeout=None):
        """Do what `close()` does, for asyncio. If the task is cancelled, call it again."""
        return self._close(asyncio_part().LoopWaits(), run_transactional_async, timeout)

    async def _close(self, waits, run, timeout):
        """Close the producer. `run` makes a coroutine that runs a method of the TransactionManager."""
        deadline = deadline_after(timeout)
        if self.closing or self.session is None:
            return
        self.closing = True
        try:
            await self._shut(waits, run, timeout, deadline)
        except BaseException:
            self.closing = False
            raise

    async def _shut(self, waits, run, timeout, deadline):
        """Do the work of close(). After an exception, a repetition continues with what is not given back."""
        if self.transactions is not None and not self.is_parents() and not self.is_closed():
            await self._abort_open(run, self.max_block_s if timeout is None else timeout)
        self.channel.closing = True
        if self.is_parents():
            _parent_channels.append(self.channel)
            return
        try:
            await self.current().finish(waits, deadline)
        finally:
            try:
                await self.current().detach(waits, self.extensions.interceptors is not None)
            finally:
                self.address.close()
                self.extensions.close()

    async def _abort_open(self, run, timeout):
        """Abort an open transaction. Without time for it, the sender does that when this producer has gone."""
        if timeout <= 0 or not self.transactions.is_open_at_close(self.current()):
            return
        try:
            await run(self, TransactionManager.abort_transaction, timeout)
        except errors.KafkaError as error:
            _log.warning(
                "close() did not abort the open transaction, which the sender or the broker will do: %s", error
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        await self.close_async()

    def __del__(self):
        if self.session is not None and not self.is_closed():
            self.channel.closing = True
            if interpreter_ends():
                return  # open batches are sealed already, or the sender seals them once this process is gone
            if self.is_parents():
                _parent_channels.append(self.channel)
                return
            self.current().orphan()

    def partitions_for(self, topic):
        """Return the set of the topic's partition numbers. Block up to max_block_ms. Raise the errors of send()."""
        return partitions_of(self.current(), topic)

    def bootstrap_connected(self):
        """Return, without waiting, whether the sender has reached the cluster; False if no sender is attached."""
        cdef Session session = self.current().session
        if not is_alive(session.arena):
            return False
        session.refresh_topics(None)
        return session.topics.brokers > 0

    def client_instance_id(self, timeout=None):
        """Return the UUID under which the sender pushes metrics; None: no broker has assigned one in `timeout` seconds.

        Without a timeout, wait for max_block_ms. Raise IllegalStateError if enable_metrics_push is False.
        """
        return ask_client_instance_id(self.current(), timeout)

    def metrics(self):
        """Return {group: {name: number}} by the names of Kafka's Java producer. NaN means that there is no value.

        The groups are "producer-metrics", "producer-node-metrics.node-ID" for each broker,
        "producer-topic-metrics.NAME" for each topic, and "app-info" (which also has text). What concerns records is
        that of this process. What concerns connections is that of the sender, for all processes of the host.
        """
        return groups_of(self.current(), self.started_ms)

    def __len__(self):
        raise errors.UnsupportedMethodError(LENGTH)

    def __bool__(self):
        return True

    def __dir__(self):
        return [name for name in object.__dir__(self) if name not in ADVICE]

    def __reduce__(self):
        if self.transactions is not None:
            raise TypeError(
                "a transactional producer cannot be pickled or copied, because two producers with one id fence each "
                "other; make another one, with a transactional_id of its own"
            )
        self.current()
        return restore_producer, (type(self), self.settings)

    def __deepcopy__(self, memo):
        return restore_producer(*self.__reduce__()[1])

    def __repr__(self):
        if self.session is None:
            return f"<{type(self).__name__} without settings>"
        if self.is_parents():
            return f"<{type(self).__name__} {self.settings!r} of the parent process>"
        state = "closed" if self.is_closed() else "attached" if self.channel.session.alive else "not attached"
        return f"<{type(self).__name__} {self.settings!r} {state}>"


cdef inline int32_t draw_partition(Arena arena, Topic topic, const RecordView *record, bint ignore_keys) noexcept:
    """Return the partition of a record for which none is named."""
    if record.key_length < 0 or ignore_keys:
        return arena.sticky_partition(topic)
    return key_partition(record.key, record.key_length, topic.partition_count)


cdef inline void _view_bytes(object value, object key, RecordView *record) noexcept:
    """Let `record` have a value and a key, which are bytes or None. It is valid as long as they are."""
    record.key = record.value = NULL
    record.key_length = record.value_length = -1
    if value is not None:
        record.value, record.value_length = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
    if key is not None:
        record.key, record.key_length = <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)


cdef object asyncio_part():
    """Return the module with the waits of asyncio."""
    from cyproducer.producer.channel import aio  # loads asyncio: 50 ms that other programs save

    return aio


def restore_producer(cls, settings):
    """Return a producer with these settings, which are checked already. It is not attached."""
    cdef KafkaProducer producer = cls.__new__(cls)
    check_platform()
    producer.configure(settings)
    return producer


patchable(KafkaProducer)
refuse_methods(KafkaProducer)
