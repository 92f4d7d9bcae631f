"""Declares UnsentLists, all unsent batches of a session, see unsent_lists.pyx."""

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.producer.session.topic_metadata cimport TopicTable
from cyproducer.producer.session.unsent_batches cimport UnsentBatches


cdef class UnsentLists:
    cdef list lists                         # UnsentBatches of earlier sessions, those of the last one first
    cdef readonly bint filling              # the first list is not complete yet; empty lists are kept

    cdef int add(self, UnsentBatches unsent) except -1
    cdef bint move(self, Arena target, TopicTable known, list failed) except -1
    cdef list take_expired(self)
    cdef list take_all(self)
    cdef int set_session(self, object session) except -1
    cdef int drop_empty(self) except -1
