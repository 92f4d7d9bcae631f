"""Declares the objects of the application that take part in a send, see extensions.pyx."""

from cyproducer.producer.arena.send_arguments cimport Prepared
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.session.session cimport Session


cdef class Extensions:
    cdef object key_serializer
    cdef object value_serializer
    cdef readonly object interceptors       # Interceptors, or None
    cdef readonly object partitioner        # RoundRobin or Custom; None: the built-in rule
    cdef bint plain                         # there is none of them: nothing of the application runs in send()

    cdef int serialize(self, Prepared record) except -1
    cdef int complete(self, Prepared record, Session session, Topic topic) except -1
    cdef int refuse_arrays(self, str method) except -1
