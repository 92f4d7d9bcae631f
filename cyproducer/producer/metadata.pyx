"""Topics and partitions as a front-end knows them: from the snapshot that its sender publishes.

Every method runs with the GIL held, as those of Session, which this is a part of.
"""

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from cyproducer.producer.topics cimport make_topic
from cyproducer.shm.atomics cimport load_acquire
from cyproducer.shm.wake cimport waiter_sleeps, waiter_wakes

from cyproducer.shm import handshake


@cython.auto_pickle(False)
cdef class Metadata(Arena):
    """The session's arena, and the topics that records in it may be for."""

    def __cinit__(self, *args):
        self.topics = {}
        self.metadata_waiters = set()
        self.inherited = []
        self.last_error = ""

    cdef Topic find_topic(self, str name):
        """The topic with its partitions; None if its metadata is not there (see `topic_error`)."""
        cdef Topic topic = self.topics.get(name)
        if topic is None or topic.partition_count == 0 or self.seen_version != load_acquire(self.published) >> 1:
            self.refresh_topics(name)
            topic = self.topics.get(name)
        if topic is None or topic.partition_count == 0:
            return None
        self.cached_name = name
        self.cached_topic = topic
        return topic

    cdef bint recall(self, object name) noexcept:
        """Makes a known topic the cached one; False if it is not known, or not an exact str."""
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
        """Reads the metadata that the sender has published; `name` is wanted from it from now on."""
        if self.sentinel[0] != self.token:
            return
        former = self.seen_version
        self.seen_version, self.brokers, self.last_error, found = self.attachment.snapshot.read()
        for wanted in (name, *self.inherited_topics()):
            if wanted is not None and wanted not in self.topics and wanted in found:
                self.topics[wanted] = make_topic(wanted)
        for known, topic in list(self.topics.items()):
            if known in found:
                self._update(topic, found[known])
        self.take_over()
        if self.seen_version != former:
            # whoever reads it first: after this, on_wake has nothing to say about this version
            for waiter in list(self.metadata_waiters):
                waiter.notify()

    cdef object _update(self, Topic topic, tuple row):
        cdef int32_t count, i
        number, error, leaders = row
        count = len(leaders)
        if count > topic.allocated:
            for i in range(topic.allocated):
                if topic.chains[i].row != NULL:
                    self.close_chain(&topic.chains[i], False)
            topic.number = number
            if not topic.grow(count):
                raise MemoryError
        topic.error = error
        topic.leaders = leaders
        topic.partition_count = count
        if topic.own >= count:
            topic.own = -1

    cdef int take_over(self) except -1:
        """Session's: what was inherited enters the arena. 0: for want of memory, not all that could."""
        return 1

    def verify(self):
        """Session's: ends it if its descriptors are those of the program."""

    def inherited_topics(self):
        """Names of the topics that inherited batches are for."""
        return {name for estate in list(self.inherited) for name in list(estate.topics)}

    def topic_state(self, str name):
        """(partition count, Kafka's error code) as last read; (0, 0) for a topic that was never seen."""
        cdef Topic topic = self.topics.get(name)
        if topic is None:
            return 0, 0
        return topic.partition_count, topic.error

    def topic_leaders(self, str name):
        """One byte a partition: 1 = it has a leader."""
        cdef Topic topic = self.find_topic(name)
        return b"" if topic is None else topic.leaders

    @property
    def metadata_is_read(self):
        """Was everything read that the sender has published?"""
        return self.sentinel[0] != self.token or self.seen_version == load_acquire(self.published) >> 1

    def want_topic(self, str name):
        """Asks the sender for a topic's metadata; a wish that is lost is asked again by whoever waits."""
        self.verify()
        if self.sentinel[0] == self.token:
            try:
                handshake.send(self.attachment.socket, {"op": "want", "topic": name})
            except OSError:
                pass  # the socket is full of wishes, or the sender is gone, which the next look finds

    def sleep_for_metadata(self):
        """The caller is about to poll until metadata is published; then it looks at `metadata_is_read`."""
        if self.sentinel[0] == self.token:
            self.snapshot_epoch += 2
            waiter_sleeps(&self.port.arena.wants_snapshot, self.snapshot_epoch | 1)

    def end_metadata_wait(self):
        """Nobody waits for metadata any more, if so."""
        if self.sentinel[0] == self.token and not self.metadata_waiters:
            waiter_wakes(&self.port.arena.wants_snapshot, self.snapshot_epoch)
