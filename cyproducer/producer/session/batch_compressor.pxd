"""Declares the compression of batches by the process that fills them, see batch_compressor.pyx."""

from cyproducer.producer.session.session cimport Session
from cyproducer.record.encode cimport RecordView


cdef int pack_closed(Session session) except -1
cdef object pack_alone(Session session, const RecordView *record)
