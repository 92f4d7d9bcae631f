"""Compression of batches by the process that fills them, see batch_compressor.pyx."""

from libc.stdint cimport uint8_t

from cyproducer.producer.session.session cimport Session
from cyproducer.record.encode cimport HeaderView


cdef int pack_closed(Session session) except -1
cdef object pack_alone(
    Session session, const uint8_t *key, Py_ssize_t key_size, const uint8_t *value, Py_ssize_t value_size,
    const HeaderView *headers, int header_count,
)
