"""Keeps all unsent batches of a session: a list for each earlier session whose sender was lost.

A method that calls Python lets other threads run, which may change the lists: each method works on a copy.
"""

cimport cython

from cyproducer.producer.arena.topic_table cimport Topic

from cyproducer.producer.arena.topic_table import PERMANENT_ERRORS


@cython.final
@cython.auto_pickle(False)
cdef class UnsentLists:
    """The unsent batches of a session. Its length is the number of UnsentBatches."""

    def __cinit__(self):
        self.lists = []

    def __len__(self):
        return len(self.lists)

    cdef int add(self, UnsentBatches unsent) except -1:
        """Add the list of the session that has just ended."""
        self.lists.insert(0, unsent)
        return 0

    def topics(self):
        """Return the names of the topics of the batches."""
        return {name for unsent in list(self.lists) for name in list(unsent.topics)}

    def batches(self):
        """Return the batches; those of one partition are in the order in which they were opened."""
        return [batch for unsent in list(self.lists) for batch in unsent.batches()]

    def outstanding(self):
        """Return (batches, records)."""
        cdef UnsentBatches unsent
        cdef long long batches = 0, records = 0
        for unsent in list(self.lists):
            batches += unsent.count
            records += unsent.records()
        return batches, records

    def expires_in(self):
        """Return the seconds until the next batch expires; 0.0 if there is none."""
        return min([unsent.expires_in() for unsent in list(self.lists)], default=0.0)

    cdef int set_session(self, object session) except -1:
        """Assign the batches to `session`, see UnsentBatches.set_session."""
        for unsent in list(self.lists):
            unsent.set_session(session)
        return 0

    cdef bint move(self, Arena target, TopicTable known, list failed) except -1:
        """Move the batches of known topics into the arena `target`. Return False if memory is lacking.

        Batches that cannot be sent any more are added to `failed` as (batch, error code).
        """
        cdef Topic topic
        cdef UnsentBatches unsent
        cdef bint room = True
        for unsent in list(self.lists):
            for name in list(unsent.topics):
                topic = known.by_name.get(name)
                if topic is None or topic.partition_count == 0:
                    if topic is not None and topic.error in PERMANENT_ERRORS:
                        failed += [(batch, topic.error) for batch in unsent.take_topic(name)]
                elif room:
                    room = unsent.move(target, known, topic, failed)
        return room

    cdef list take_expired(self):
        """Remove and return the batches that are older than delivery_timeout_ms."""
        return [batch for unsent in list(self.lists) for batch in unsent.take_expired()]

    cdef list take_all(self):
        """Remove and return all batches."""
        return [
            batch for unsent in list(self.lists) for name in list(unsent.topics) for batch in unsent.take_topic(name)
        ]

    cdef int drop_empty(self) except -1:
        """Close and remove each UnsentBatches that is empty. Call this when the batches that were taken have failed."""
        cdef UnsentBatches unsent
        if self.filling:
            return 0
        for unsent in list(self.lists):
            if unsent.count == 0 and unsent in self.lists:
                self.lists.remove(unsent)
                unsent.close()
        return 0
