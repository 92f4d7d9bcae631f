"""Compression where a batch is filled, see pack.pyx."""

from cyproducer.producer.session cimport Session


cdef int pack_closed(Session session) except -1
