"""Declares Appender, which appends one record at a time, see appender.pyx."""

from cyproducer.producer.arena.arena cimport Room
from cyproducer.producer.arena.send_arguments cimport Prepared
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.extensions.extensions cimport Extensions
from cyproducer.producer.results.futures cimport Future
from cyproducer.producer.session.session cimport Session
from cyproducer.producer.session.wait_queue cimport Place


cdef class Appender:
    cdef object settings
    cdef Extensions extensions
    cdef bint ignore_keys
    cdef bint closed                    # the producer is closed: nothing more is appended
    cdef Py_ssize_t max_request

    cdef Future attempt(self, Session session, Prepared record, Place place, Room *missing)
    cdef int complete(self, Prepared record, Session session, Topic topic) except -1


cdef Appender make_appender(object settings, Extensions extensions)
