"""Declares the compression of batches by the process that fills them, see batch_compressor.pyx."""

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.record.encode cimport RecordView


cdef int pack_closed(Arena arena) except -1
cdef object pack_alone(Arena arena, const RecordView *record)
