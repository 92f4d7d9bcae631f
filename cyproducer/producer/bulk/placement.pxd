"""Declares how the rows of an array get partitions from the producer's partitioner, see placement.pyx."""

from cyproducer.producer.bulk.bulk_arguments cimport Rows
from cyproducer.producer.session.session cimport Session


cdef int place_rows(Rows rows, Session session, list counts, object partitioner) except -1
