"""Keeps what a front-end knows of topics and partitions, read from the snapshot that its sender publishes.

Every method runs with the GIL held. The class is a base of Session.
"""

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.producer.arena.topic_table cimport make_topic
from cyproducer.shm.atomics cimport load_acquire
from cyproducer.shm.layout cimport CYP_NONE
from cyproducer.shm.region cimport fork_page, fork_token
from cyproducer.shm.snapshot cimport CYP_CHANGE_ALL, CYP_CHANGE_LOST, change_take
from cyproducer.shm.wake cimport waiter_sleeps, waiter_wakes

from cyproducer.host import control_messages


@cython.auto_pickle(False)
cdef class Metadata(Arena):
    """The session's arena, and the topics in use."""

    def __cinit__(self, *args):
        self.token = ENDED
        self.process = fork_token()  # makes the page that `sentinel` points to
        self.sentinel = fork_page()
        self.topics = {}
        self.by_number = {}
        self.metadata_waiters = set()
        self.unsent_lists = []

    cdef Topic find_topic(self, str name):
        """Return the topic with its partitions; None without usable metadata (`topic_state` has the error)."""
        cdef Topic topic = self.topics.get(name)
        if topic is None or topic.partition_count == 0 or self.seen_version != load_acquire(self.published):
            self.refresh_topics(name)
            topic = self.topics.get(name)
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
        found = PyDict_GetItem(self.topics, name)
        if found == NULL or (<Topic>found).partition_count == 0:
            return False
        self.cached_topic = <Topic>found
        self.cached_name = name
        return True

    def refresh_topics(self, str name):
        """Read the metadata that has changed since the last call; from now on also that of topic `name` (or None)."""
        cdef uint64_t published, former = self.seen_version
        if self.sentinel[0] != self.token:
            return
        published = load_acquire(self.published)  # pairs with cyp_change_publish: changes announced before are seen
        self.seen_version = published
        if published != former:
            self._read_changes(former, published)
        for wanted in (name, *self.unsent_topics()) if self.unsent_lists else (name,):
            if wanted is not None and wanted not in self.topics:
                self._look_up(wanted)
        self.take_over()
        if published != former:
            # The first reader of a version notifies the others: on_wake finds nothing new after this.
            for waiter in list(self.metadata_waiters):
                waiter.notify()

    cdef int _read_changes(self, uint64_t position, uint64_t end) except -1:
        """Read the changed rows of the topics in use, or the rows of all topics in use if that is less work."""
        cdef Topic topic
        cdef uint32_t number = CYP_CHANGE_LOST
        if end - position <= <uint64_t>len(self.topics):
            while position != end:
                number = change_take(self.snapshot.changes, position)
                if number == CYP_CHANGE_LOST or number == CYP_CHANGE_ALL:
                    break
                topic = self.by_number.get(number)
                if topic is not None:
                    self._read_row(topic)
                position += 1
            if position == end:
                return 0
        for topic in list(self.topics.values()):
            self._read_row(topic)
        return 0

    cdef int _look_up(self, str name) except -1:
        """Add the topic `name` to those in use, if the sender has metadata of it."""
        cdef uint32_t place, number = self.snapshot.number_of(name.encode(), &place)
        cdef Topic topic
        if number == CYP_NONE or self.snapshot.row(number) is None:
            return 0
        topic = make_topic(name, number)
        self.topics[name] = topic
        self.by_number[number] = topic
        return self._read_row(topic)

    cdef int _read_row(self, Topic topic) except -1:
        cdef tuple row = self.snapshot.row(topic.number)
        self.rows_read += 1
        if row is not None:
            self._update(topic, row)
            topic.shares = self.snapshot.shares(topic.number)
        return 0

    cdef object _update(self, Topic topic, tuple row):
        cdef int32_t count, i
        error, leaders = row
        count = len(leaders)
        if count > topic.allocated:
            for i in range(topic.allocated):
                if topic.chains[i].row != NULL:
                    self.close_chain(&topic.chains[i], False)
            if not topic.grow(count):
                raise MemoryError
        topic.error = error
        topic.leaders = leaders
        topic.partition_count = count
        if topic.own >= count:
            topic.own = -1

    cdef int take_over(self) except -1:
        """Move unsent batches into the arena. Return 0 if memory is lacking, else 1. Session overrides this."""
        return 1

    def verify(self):
        """End the session if the program has closed or replaced its descriptors. Session overrides this."""

    def unsent_topics(self):
        """Return the names of the topics of the unsent batches."""
        return {name for unsent in list(self.unsent_lists) for name in list(unsent.topics)}

    def topic_state(self, str name):
        """Return (partition count, Kafka's error code) as last read; (0, 0) for a topic that was never seen."""
        cdef Topic topic = self.topics.get(name)
        if topic is None:
            return 0, 0
        return topic.partition_count, topic.error

    def topic_leaders(self, str name):
        """Return one byte per partition: 1 if it has a leader. Empty if the topic is not known."""
        cdef Topic topic = self.find_topic(name)
        return b"" if topic is None else topic.leaders

    @property
    def brokers(self):
        """The number of brokers that the sender knows; 0 if none has answered yet."""
        return self.snapshot.brokers() if self.sentinel[0] == self.token else 0

    @property
    def last_error(self):
        """The sender's last error with the cluster; "" if there is none."""
        return self.snapshot.last_error() if self.sentinel[0] == self.token else ""

    @property
    def metadata_is_read(self):
        """Whether this session has read all metadata that the sender has published, or has ended."""
        return self.sentinel[0] != self.token or self.seen_version == load_acquire(self.published)

    def want_topic(self, str name, int32_t partition=0):
        """Ask the sender for metadata of a topic that has `partition`.

        The message may be lost, so a caller that waits must repeat it.
        """
        self.verify()
        if self.sentinel[0] == self.token:
            try:
                control_messages.send(self.attachment.socket, {"op": "want", "topic": name, "partition": partition})
            except OSError:
                pass  # the socket's buffer is full, or the sender is gone, which the next look() finds

    def sleep_for_metadata(self):
        """Ask for a wake-up when metadata is published. The caller must check `metadata_is_read` before it polls."""
        if self.sentinel[0] == self.token:
            self.snapshot_epoch += 2
            waiter_sleeps(&self.port.arena.wants_snapshot, self.snapshot_epoch | 1)

    def end_metadata_wait(self):
        """Take back sleep_for_metadata() if no waiter for metadata is left."""
        if self.sentinel[0] == self.token and not self.metadata_waiters:
            waiter_wakes(&self.port.arena.wants_snapshot, self.snapshot_epoch)
