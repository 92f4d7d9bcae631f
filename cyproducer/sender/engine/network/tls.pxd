"""Declares a TLS connection of the loop, see tls.pyx."""

from libc.stdint cimport int32_t, uint8_t
from posix.uio cimport iovec


cdef class TlsStream:
    cdef readonly object socket         # owns the descriptor of the connection
    cdef readonly object secured        # an ssl.SSLObject
    cdef readonly object error          # the exception that has ended the connection; else None
    cdef object _incoming               # an ssl.MemoryBIO with what was received
    cdef object _outgoing               # the same with what is to be sent
    cdef object _unsent                 # what was taken from it, and did not fit into the socket; else None
    cdef bint _is_drained               # the socket had less than was asked for; epoll reports what arrives after that
    cdef Py_ssize_t _owed               # bytes of the pieces that are encrypted, and not reported as written yet
    cdef int _more                      # flags of send(): MSG_MORE before the last bytes of the pieces
    cdef object _encrypt
    cdef object _decrypt
    cdef object _send
    cdef object _receive_into

    cdef bint flush(self) except -1
    cdef bint receive(self) except -1
    cdef int answer(self) except -1
    cdef Py_ssize_t write(self, const iovec *pieces, int count) except -1
    cdef Py_ssize_t read(self, uint8_t *into, Py_ssize_t size, bint may_receive) except -1
    cdef int32_t note(self, object error) noexcept


cdef void *hold(TlsStream stream) noexcept
cdef ssize_t tls_write(void *stream, const iovec *pieces, int count, int32_t *reason) noexcept nogil
cdef ssize_t tls_read(void *stream, uint8_t *into, size_t size, bint may_receive, int32_t *reason) noexcept nogil
cdef void tls_end(void *stream) noexcept nogil
