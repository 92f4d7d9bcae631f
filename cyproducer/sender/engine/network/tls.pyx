"""Writes to and reads from a connection with TLS, through Python's module ssl.

OpenSSL makes one TLS record, and one write(), of each call with up to 16 KiB. The pieces of a request are often much
shorter: a header of 100 bytes, a batch of 16 KiB. So they are gathered, and OpenSSL gets GATHERED_BYTES at a time. A
longer piece is given to it as it lies in shared memory.

The kernel would send a segment, and wake the receiver, for each record. TCP_CORK lets it wait for full segments until
the last byte of the pieces is written.

If the socket is full, OpenSSL must get the same bytes again, and at least as many (SSL_write(3)). The position in the
pieces does not change until then, so the same pieces are gathered.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy
from posix.uio cimport iovec

from cyproducer.sender.engine.state.events cimport CLOSE_BY_PEER, CLOSE_TLS


cdef extern from "netinet/in.h" nogil:
    const int IPPROTO_TCP


cdef extern from "netinet/tcp.h" nogil:
    const int TCP_CORK


cdef extern from "sys/socket.h" nogil:
    int setsockopt(int fd, int level, int name, const void *value, unsigned int size)


cdef enum:
    RECORD_BYTES = 16384        # the longest TLS record
    GATHERED_BYTES = 65536      # four TLS records; more gains nothing (docs/decisions/secured-connections.md)


cdef object ssl  # the module, which is imported for the first connection with TLS


cdef class TlsStream:
    """A TLS connection of the loop.

    socket: an ssl.SSLSocket, not blocking, whose handshake has not begun.
    """

    def __cinit__(self, socket):
        global ssl
        import ssl
        self.socket = socket
        self.error = None
        self._fd = socket.fileno()
        self._corked = False
        self._send = socket.send
        self._receive_into = socket.recv_into
        self._gathered = bytearray()

    def handshake(self):
        """Go on with the handshake. Return what it waits for: "read", "write", or "" once it is complete.

        Raise ssl.SSLError or OSError.
        """
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return "read"
        except ssl.SSLWantWriteError:
            return "write"
        return ""

    cdef void cork(self, bint corked) noexcept:
        """Let the kernel wait for full segments, or send what it has."""
        cdef int value = corked
        if self._corked != corked:
            self._corked = corked
            setsockopt(self._fd, IPPROTO_TCP, TCP_CORK, &value, sizeof(value))  # it only makes writes faster

    cdef Py_ssize_t gather(self, const iovec *pieces, int count, bint *all_gathered) except -1:
        """Copy the pieces, up to GATHERED_BYTES. Return the number of bytes, and whether these are all."""
        cdef Py_ssize_t length = 0, part
        cdef int index = 0
        cdef char *into
        if not self._gathered:
            self._gathered = bytearray(GATHERED_BYTES)
        into = self._gathered
        while index < count and length < GATHERED_BYTES:
            part = min(<Py_ssize_t>pieces[index].iov_len, GATHERED_BYTES - length)
            memcpy(into + length, pieces[index].iov_base, part)
            length += part
            all_gathered[0] = index == count - 1 and part == <Py_ssize_t>pieces[index].iov_len
            index += 1
        return length

    cdef Py_ssize_t write(self, const iovec *pieces, int count) except -1:
        """Write the first bytes of the pieces. Return how many; 0 if the socket is full."""
        cdef Py_ssize_t length, written
        cdef bint is_last
        cdef object data
        if count == 1 or pieces[0].iov_len >= GATHERED_BYTES:
            length, is_last = <Py_ssize_t>pieces[0].iov_len, count == 1
            data = PyMemoryView_FromMemory(<char *>pieces[0].iov_base, length, PyBUF_READ)
        else:
            length = self.gather(pieces, count, &is_last)
            data = memoryview(self._gathered)[:length]
        if length > RECORD_BYTES:
            self.cork(True)
        try:
            written = self._send(data)
        except ssl.SSLWantWriteError:
            return 0
        if is_last and written == length:
            self.cork(False)
        return written

    cdef Py_ssize_t read(self, uint8_t *into, Py_ssize_t size) except -1:
        """Read into a buffer. Return the number of bytes, 0 at the end of the connection, -2 if nothing has arrived."""
        try:
            return self._receive_into(PyMemoryView_FromMemory(<char *>into, size, PyBUF_WRITE))
        except ssl.SSLWantReadError:
            return -2

    cdef int32_t note(self, object error) noexcept:
        """Note the error that ends the connection. Return the reason to close it.

        An end or a break has the same reason as without TLS: it may tell that a request was too large. A KeyUpdate of
        the broker while the socket is full ends the connection too (SSLWantWriteError): brokers do not send it.
        """
        self.error = error
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return CLOSE_BY_PEER
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
            return error.errno
        return CLOSE_TLS


cdef ssize_t tls_write(void *stream, const iovec *pieces, int count, int32_t *reason) noexcept nogil:
    """Write pieces as writev() does. Return the number of bytes, or -1 with the reason: an errno or a CloseReason."""
    cdef Py_ssize_t written
    with gil:
        try:
            written = (<TlsStream>stream).write(pieces, count)
        except BaseException as error:
            reason[0] = (<TlsStream>stream).note(error)
            return -1
    if written == 0:
        reason[0] = EAGAIN
        return -1
    return written


cdef ssize_t tls_read(void *stream, uint8_t *into, size_t size, int32_t *reason) noexcept nogil:
    """Read as read() does. Return the number of bytes, 0 at the end, or -1 with an errno or a CloseReason."""
    cdef Py_ssize_t got
    with gil:
        try:
            got = (<TlsStream>stream).read(into, <Py_ssize_t>size)
        except BaseException as error:
            reason[0] = (<TlsStream>stream).note(error)
            return -1
    if got < 0:
        reason[0] = EAGAIN
        return -1
    return got


cdef void tls_end(void *stream) noexcept nogil:
    """Close the socket and drop the node's reference. No TLS alert is sent: the socket is closed with a reset."""
    with gil:
        try:
            (<TlsStream>stream).socket.close()
        except Exception as error:
            (<TlsStream>stream).error = error
        Py_DECREF(<TlsStream>stream)


cdef void *hold(TlsStream stream) noexcept:
    """Return the stream with a reference for a node, which tls_end() drops."""
    Py_INCREF(stream)
    return <void *>stream
