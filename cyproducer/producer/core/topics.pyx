"""Keeps the topics that this process sends to, with what the snapshot says about their partitions."""


# ------------------------------------------------------------ topic table
#
# Keeps the topics that one sender has numbered, with their partitions' open batches, and checks topic names.


#: Codes of errors after which a topic's metadata never arrives: send() fails at once.
PERMANENT_ERRORS = (errors.InvalidTopicError.code, errors.TopicAuthorizationFailedError.code)


@cython.final
@cython.auto_pickle(False)
cdef class Topic:
    def __init__(self):
        raise TypeError("topics come from the cluster's metadata")

    def __dealloc__(self):
        free(self.chains)

    cdef bint grow(self, int32_t partition_count) noexcept:
        """Allocate `partition_count` chains; no chain may be open. Return False if memory is lacking."""
        cdef Chain *chains
        cdef int32_t i
        if partition_count > self.allocated:
            chains = <Chain *>calloc(partition_count, sizeof(Chain))
            if chains == NULL:
                return False
            if self.chains != NULL:
                memcpy(chains, self.chains, self.allocated * sizeof(Chain))
                free(self.chains)
            self.chains = chains
            self.allocated = partition_count
        for i in range(self.allocated):
            self.chains[i].partition = i
            self.chains[i].owner = <void *>self
            self.chains[i].former = CYP_NONE
        return True

    cdef void renumber(self, uint32_t generation) noexcept:
        """Set the generation of the number, which has the same name as before."""
        self.generation = generation
        self.id = topic_id(self.number, generation)


cdef Topic make_topic(str name, uint32_t number, uint32_t generation, const cyp_topic_row *row):
    cdef Topic topic = Topic.__new__(Topic)
    topic.name = name
    topic.row = row
    topic.number = number
    topic.renumber(generation)
    topic.own = -1
    topic.compression_ratio = 1
    return topic


cdef int32_t pick_partition(Topic topic, Weights weights, uint64_t *random) noexcept:
    """Return a random partition; -1 if there is none. `weights` says how likely each partition is.

    If all weights are 0, every partition with a leader has the same weight. If no partition has a leader, any is
    returned.
    """
    cdef const uint8_t *shares = topic.shares
    cdef int32_t count = topic.partition_count, last = -1, i
    cdef uint64_t total = 0, choice
    cdef uint32_t chance
    if count <= 0:  # the topic has just been deleted
        return -1
    for i in range(count):
        total += _chance(load_relaxed8(&shares[i]), weights)
    if total == 0 and weights != WEIGHTS_EQUAL:
        return pick_partition(topic, WEIGHTS_EQUAL, random)
    if total == 0:
        return <int32_t>((next_random(random) >> 32) % <uint64_t>count)
    choice = (next_random(random) >> 32) % total
    for i in range(count):
        chance = _chance(load_relaxed8(&shares[i]), weights)
        if chance:
            last = i
            if choice < chance:
                break
            choice -= chance
    return max(last, 0)  # the sender may have changed a share in between


cdef inline uint32_t _chance(uint8_t share, Weights weights) noexcept nogil:
    if share == CYP_SHARE_NONE:
        return 0
    if weights == WEIGHTS_EQUAL:
        return 1
    return share - CYP_SHARE_AVOID if weights == WEIGHTS_SHARES else share != CYP_SHARE_AVOID


def check_name(name):
    """Raise TypeError if `name` is not a str, InvalidTopicError if Kafka does not allow it (Topic.java)."""
    if not isinstance(name, str):
        raise TypeError(f"topic must be a str, not {type(name).__name__}")
    if is_topic_name(name):
        return
    if not name:
        raise errors.InvalidTopicError("the topic's name is empty")
    if name in (".", ".."):
        raise errors.InvalidTopicError(f"the topic's name may not be {name!r}")
    if len(name) > TOPIC_NAME_MAX:
        raise errors.InvalidTopicError(
            f"the topic's name has {len(name)} characters, {TOPIC_NAME_MAX} are allowed: {name[:40]!r}..."
        )
    raise errors.InvalidTopicError(
        f"the topic's name {name!r} has a character that is not allowed; "
        "allowed are ASCII letters and digits, '.', '_' and '-'"
    )


def partition_for_key(const uint8_t[::1] key, int32_t partition_count):
    """Return the partition to which Kafka's Java producer sends a record with this key."""
    if partition_count <= 0:
        raise ValueError("partition_count must be positive")
    return key_partition(&key[0] if key.shape[0] else NULL, key.shape[0], partition_count)


# ------------------------------------------------------------ topic metadata
#
# Keeps what a front-end knows of topics and partitions, read from the snapshot that its sender publishes.
#
# Every method runs with the GIL held.


cdef enum:
    REFUSALS_MAX = 1024             # that are kept: a program may ask for names without end


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class TopicTable:
    """The topics in use, and the waiters for their metadata."""

    def __init__(self, *args):
        raise TypeError("TopicTable cannot be created directly: a session creates it")

    cdef int open(self, SnapshotReader snapshot) except -1:
        self.snapshot = snapshot
        self.published = &snapshot.header.published
        return 0

    cdef int forget_cached(self) except -1:
        """Let send() look up the next topic again."""
        self.cached_name = None
        self.cached_topic = None
        return 0

    cdef Topic cache(self, str name):
        """Make a topic the cached topic, and return it. Return None without usable metadata (`state` has the error)."""
        cdef Topic topic = self.by_name.get(name)
        if topic is None or topic.partition_count == 0:
            return None
        self.cached_name = name
        self.cached_topic = topic
        return topic

    cdef bint recall(self, object name) noexcept:
        """Make a known topic the cached topic. Return False if it is not known, or `name` is not exactly a str."""
        cdef PyObject *found
        if type(name) is not str:
            return False
        found = PyDict_GetItem(self.by_name, name)
        if found == NULL or (<Topic>found).partition_count == 0:
            return False
        self.cached_topic = <Topic>found
        self.cached_name = name
        return True

    cdef bint read_changes(self) except -1:
        """Read the metadata of the topics in use that has changed since the last call. Return whether any has."""
        cdef uint64_t published, former = self.seen_version
        published = load_acquire(self.published)  # pairs with cyp_change_publish: changes announced before are seen
        self.seen_version = published
        if published != former:
            self._read_rows(former, published)
        return published != former

    cdef int _read_rows(self, uint64_t position, uint64_t end) except -1:
        """Read the changed rows of the topics in use, or the rows of all topics in use if that is less work."""
        cdef Topic topic
        cdef uint32_t number = CYP_CHANGE_LOST
        if end - position <= <uint64_t>len(self.by_name):
            while position != end:
                number = change_read(self.snapshot.changes, position)
                if number == CYP_CHANGE_LOST or number == CYP_CHANGE_ALL:
                    break
                topic = self.by_number.get(number)
                if topic is not None:
                    self._read_row(topic)
                position += 1
            if position == end:
                return 0
        for topic in list(self.by_name.values()):
            self._read_row(topic)
        return 0

    cdef int look_up(self, str name) except -1:
        """Add the topic `name` to those in use, if it is not one of them and the sender has metadata of it."""
        cdef uint32_t place, number, generation = 0
        cdef Topic topic, former
        if name in self.by_name:
            return 0
        number = self.snapshot.number_of(name.encode(), &place, &generation)
        if number == CYP_NONE or self.snapshot.row(number) is None:
            return 0
        former = self.by_number.get(number)
        if former is not None:
            self._drop(former)
        topic = make_topic(name, number, generation, &self.snapshot.rows[number])
        self.by_name[name] = topic
        self.by_number[number] = topic
        self.names[number] = name
        return self._read_row(topic)

    cdef bint renew(self, Topic topic) except -1:
        """Read the number's generation anew. If the number has another name or none, drop the topic; return False.

        No batch of the topic can be opened then, and it has no partitions. It must be looked up again.
        """
        cdef bytes name = topic.name.encode()
        cdef uint32_t generation = topic_named(topic.row, name, <uint32_t>len(name))
        if generation and self.by_name.get(topic.name) is topic:
            topic.renumber(generation)
            return True
        self._drop(topic)
        return False

    cdef int _drop(self, Topic topic) except -1:
        """Close the batches of a topic that is not in use any more, and forget it."""
        cdef int32_t i
        for i in range(topic.allocated):
            if topic.chains[i].row != NULL:
                self.arena.close_chain(&topic.chains[i], False)
        topic.partition_count = 0
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        if self.by_number.get(topic.number) is topic:
            del self.by_number[topic.number]
        if self.cached_topic is topic:
            self.forget_cached()
        return 0

    cdef int _read_row(self, Topic topic) except -1:
        cdef tuple row
        cdef const uint8_t *shares
        self.rows_read += 1
        while True:
            row = self.snapshot.row(topic.number)
            shares = self.snapshot.shares(topic.number)
            if topic_is_valid(topic.row, topic.generation):
                break
            if not self.renew(topic):
                return 0
        if row is not None:
            self._update(topic, row)
            topic.shares = shares
        return 0

    cdef object _update(self, Topic topic, tuple row):
        cdef int32_t count, i
        error, leaders = row
        count = len(leaders)
        if count > topic.allocated:
            for i in range(topic.allocated):
                if topic.chains[i].row != NULL:
                    self.arena.close_chain(&topic.chains[i], False)
            if not topic.grow(count):
                raise MemoryError
        topic.error = error
        topic.leaders = leaders
        topic.partition_count = count
        if topic.own >= count:
            topic.own = -1

    def state(self, str name):
        """Return (partition count, Kafka's error code) as last read; (0, 0) for a topic that was never seen."""
        cdef Topic topic = self.by_name.get(name)
        if topic is None:
            return 0, 0
        return topic.partition_count, topic.error

    @property
    def brokers(self):
        """The number of brokers that the sender knows; 0 if none has answered yet."""
        return self.snapshot.brokers() if is_alive(self.arena) else 0

    @property
    def last_error(self):
        """The sender's last error with the cluster; "" if there is none."""
        return self.snapshot.last_error() if is_alive(self.arena) else ""

    @property
    def why_late(self):
        """The end of a message about what is not done in time: "; the sender's last error: ...", or ""."""
        error = self.last_error
        return f"; the sender's last error: {error}" if error else ""

    @property
    def auth_failures(self):
        """How often authentication has failed while the sender could use no broker; `last_error` says why."""
        return self.snapshot.auth_failures() if is_alive(self.arena) else 0

    # ---------------------------------------------------------------- waiting for metadata

    @property
    def is_read(self):
        """Whether this table has read all metadata that the sender has published, or its session has ended."""
        return not is_alive(self.arena) or is_current(self)

    def begin_wait(self):
        """Ask for a wake-up when metadata is published. The caller must check `is_read` before it polls."""
        if is_alive(self.arena):
            self.snapshot_epoch += 2
            waiter_sleeps(&self.arena.port.arena.wants_snapshot, self.snapshot_epoch | 1)

    def add_waiter(self, waiter):
        """Notify a waiter when metadata is published."""
        self.waiters.add(waiter)

    def remove_waiter(self, waiter):
        """Undo add_waiter(), and begin_wait() if no waiter for metadata is left."""
        self.waiters.discard(waiter)
        if is_alive(self.arena) and not self.waiters:
            waiter_wakes(&self.arena.port.arena.wants_snapshot, self.snapshot_epoch)

    def on_refusal(self, topic, message):
        """Keep why the sender refuses a topic, and notify the waiters for metadata."""
        if len(self.refusals) >= REFUSALS_MAX:
            self.refusals.clear()
        self.refusals[topic] = message
        self.notify_waiters()

    def take_refusal(self, str name):
        """Return why the sender has refused the topic since the last call; None if it has not."""
        return self.refusals.pop(name, None)

    cdef int notify_waiters(self) except -1:
        error = notify_all(list(self.waiters), "notify") if self.waiters else None
        if error is not None:
            raise error
        return 0


cdef TopicTable make_topic_table(Arena arena):
    cdef TopicTable topics = TopicTable.__new__(TopicTable)
    topics.arena = arena
    topics.by_name = {}
    topics.by_number = {}
    topics.names = {}
    topics.waiters = set()
    topics.refusals = {}
    return topics


native_only(TopicTable)
