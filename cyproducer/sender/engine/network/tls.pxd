"""Declares a TLS connection of the loop, see tls.pyx."""

from libc.stdint cimport int32_t, uint8_t
from posix.uio cimport iovec


cdef class TlsStream:
    cdef readonly object socket         # an ssl.SSLSocket, which owns the descriptor of the connection
    cdef readonly object error          # the exception that has ended the connection; else None
    cdef int _fd
    cdef bint _corked                   # TCP_CORK is set
    cdef object _send
    cdef object _receive_into
    cdef bytearray _gathered            # pieces that are shorter than a TLS record; empty until used

    cdef void cork(self, bint corked) noexcept
    cdef Py_ssize_t gather(self, const iovec *pieces, int count, bint *all_gathered) except -1
    cdef Py_ssize_t write(self, const iovec *pieces, int count) except -1
    cdef Py_ssize_t read(self, uint8_t *into, Py_ssize_t size) except -1
    cdef int32_t note(self, object error) noexcept


cdef void *hold(TlsStream stream) noexcept
cdef ssize_t tls_write(void *stream, const iovec *pieces, int count, int32_t *reason) noexcept nogil
cdef ssize_t tls_read(void *stream, uint8_t *into, size_t size, int32_t *reason) noexcept nogil
cdef void tls_end(void *stream) noexcept nogil
