"""Declares how integers and timestamps are read, see integers.pyx."""

from cyproducer.producer.bulk.columns cimport Column


cdef str time_hint(object time)
cdef Column column_of_integers(object numbers, str name)
