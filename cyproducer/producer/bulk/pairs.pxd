"""Declares how (data, offsets) pairs are read, see pairs.pyx."""

from cyproducer.producer.bulk.columns cimport Column


cdef Column column_of_pair(object data, object offsets, str name)
