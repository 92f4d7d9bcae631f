"""Declares how integers and timestamps are read, see integers.pyx."""

from cyproducer.producer.bulk.columns cimport Column


cdef Column column_of_integers(object numbers, str name)
