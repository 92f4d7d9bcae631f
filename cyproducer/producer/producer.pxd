"""Declares the public class KafkaProducer, see producer.pyx."""

from libc.stdint cimport int32_t, uint8_t

from cyproducer.producer.arena.arena cimport Room
from cyproducer.producer.arena.send_arguments cimport Prepared
from cyproducer.producer.results.futures cimport Future
from cyproducer.producer.session.session cimport Session


cdef class KafkaProducer:
    cdef Session session                # an ended one before the first use; None: __init__ did not complete
    cdef readonly object settings
    cdef object address                 # of the sender
    cdef object key_serializer
    cdef object value_serializer
    cdef dict lines                     # asyncio: (topic, event loop) -> the waiters of send_async(), in order
    cdef bint plain                     # no serializers
    cdef bint ignore_keys
    cdef bint closed
    cdef Py_ssize_t max_request
    cdef double max_block_s
    cdef object __weakref__

    cdef object configure(self, object settings)
    cdef Future attempt(self, Prepared record, object waiter, Room *missing)
    cdef int check_size(self, Prepared record, Py_ssize_t limit, bint of_sender) except -1
    cdef object send_blocking(self, Prepared record)
    cdef object serialize(self, object serializer, object topic, object headers, object data, str what)
    cdef Session current(self)
    cpdef Session attached(self, object deadline)
