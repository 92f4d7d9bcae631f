"""Declares how a record gets space in a session's arena, see record_space.pyx.

Each of these may run other code (waiters of outcomes). Everything that the caller has read of the session, a topic or a
chain before the call is stale after it.
"""

from libc.stdint cimport int32_t, int64_t

from cyproducer.producer.arena.arena cimport Room
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport Batch
from cyproducer.producer.session.session cimport Session
from cyproducer.producer.session.wait_queue cimport Place
from cyproducer.record.encode cimport RecordView


cdef Topic topic_of(Session session, object name)
cdef int make_room(
    Session session, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, Place place
) except -1
cdef Batch put_alone(
    Session session, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, Place place,
    Room *missing,
)
