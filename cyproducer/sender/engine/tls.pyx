"""Writes to and reads from a connection with TLS, through Python's module ssl.

OpenSSL reads and writes memory (ssl.MemoryBIO), and the socket is read and written here. If OpenSSL wrote to the
socket, a full socket would leave a record in it that is only partly written. Then it can send nothing else, and the
connection ends when the broker asks for new keys meanwhile (KeyUpdate of TLS 1.3), because OpenSSL answers at once.

The pieces of a request are often much shorter than a TLS record: a header of 100 bytes, a batch of 16 KiB. So they are
gathered, and OpenSSL gets GATHERED_BYTES at a time. The records are given to the kernel in one call. MSG_MORE lets it
wait for full segments until the last byte of the pieces.

If the socket is full, the rest of the records waits here, and the pieces count as not written. The next call comes with
the same pieces, and sends the rest.
"""


cdef extern from "sys/socket.h" nogil:
    const int MSG_MORE


cdef enum:
    GATHERED_BYTES = 65536      # four TLS records; more gains nothing (docs/decisions.md#secured-connections)
    RECEIVED_BYTES = 18437      # the longest TLS record, with its header (RFC 5246, 6.2.3)
    RECEIVES_MAX = 2            # that give no data, in one call: they have messages of TLS, such as KeyUpdate
    UNSENT_BYTES_MAX = 1048576  # of answers to a broker that does not read them


cdef object ssl  # the module, which is imported for the first connection with TLS

# Of all connections: what is in them is used up before a call returns.
cdef bytearray gathered = bytearray()
cdef bytearray received = bytearray()


cdef class TlsStream:
    """A TLS connection of the loop.

    socket: connected, not blocking. wrap: makes an ssl.SSLObject of two ssl.MemoryBIO, incoming and outgoing.
    """

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

    def __cinit__(self, socket, wrap):
        global ssl
        import ssl
        if not gathered:
            gathered.extend(bytes(GATHERED_BYTES))
            received.extend(bytes(RECEIVED_BYTES))
        self.socket = socket
        self.error = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.secured = wrap(self._incoming, self._outgoing)
        self._encrypt = self.secured.write
        self._decrypt = self.secured.read
        self._send = socket.send
        self._receive_into = socket.recv_into
        self._unsent = None
        self._is_drained = False
        self._owed = 0
        self._more = 0

    def handshake(self):
        """Go on with the handshake. Return what it waits for: "read", "write", or "" once it is complete.

        Raise ssl.SSLError or OSError.
        """
        while True:
            try:
                self.secured.do_handshake()
            except ssl.SSLWantReadError:
                if not self.flush():
                    return "write"
                if not self.receive():
                    return "read"
            except ssl.SSLError:
                self.tell_why()
                raise
            else:
                return "" if self.flush() else "write"

    def tell_why(self):
        """Send the alert that tells the broker why the handshake has failed, if it is still there."""
        try:
            self.flush()
        except OSError:
            pass

    cdef bint flush(self) except -1:
        """Give the kernel the records that OpenSSL has made. Return False if the socket is full before the end."""
        while True:
            if self._unsent is None:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._send(self._unsent, self._more)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None

    cdef bint receive(self) except -1:
        """Give OpenSSL what has arrived. Return False if that is nothing."""
        try:
            got = self._receive_into(received)
        except BlockingIOError:
            return False
        if got:
            self._incoming.write(memoryview(received)[:got])
        else:
            self._incoming.write_eof()
        self._is_drained = 0 < got < RECEIVED_BYTES
        return True

    cdef Py_ssize_t write(self, const iovec *pieces, int count) except -1:
        """Write the first bytes of the pieces. Return how many; 0 if the socket is full."""
        cdef Py_ssize_t length = 0, part
        cdef bint is_last = False
        cdef int index = 0
        cdef char *into = gathered
        if not self._owed:
            if pieces[0].iov_len >= GATHERED_BYTES:
                length = GATHERED_BYTES
                is_last = count == 1 and pieces[0].iov_len == GATHERED_BYTES
                self._encrypt(PyMemoryView_FromMemory(<char *>pieces[0].iov_base, length, PyBUF_READ))
            else:
                while index < count and length < GATHERED_BYTES:
                    part = min(<Py_ssize_t>pieces[index].iov_len, GATHERED_BYTES - length)
                    memcpy(into + length, pieces[index].iov_base, part)
                    length += part
                    is_last = index == count - 1 and part == <Py_ssize_t>pieces[index].iov_len
                    index += 1
                self._encrypt(PyMemoryView_FromMemory(into, length, PyBUF_READ))
            self._owed = length
            self._more = 0 if is_last else MSG_MORE
        if not self.flush():
            return 0
        length, self._owed = self._owed, 0
        return length

    cdef Py_ssize_t read(self, uint8_t *into, Py_ssize_t size, bint may_receive) except -1:
        """Read into a buffer. Return the number of bytes, 0 at the end of the connection, -2 if nothing has arrived.

        may_receive     whether to read the socket, after what OpenSSL has got before

        After RECEIVES_MAX times without data, the rest of the socket is left to the next event: a broker that sends
        messages of TLS without end must not hold the loop.
        """
        cdef object data = PyMemoryView_FromMemory(<char *>into, size, PyBUF_WRITE)
        cdef int receives = 0
        while True:
            if self._incoming.pending or self._incoming.eof:
                try:
                    return self._decrypt(size, data)
                except ssl.SSLWantReadError:
                    pass
            if self._is_drained or not may_receive or receives == RECEIVES_MAX or not self.receive():
                self._is_drained = False
                self.answer()
                return -2
            receives += 1

    cdef int answer(self) except -1:
        """Send what OpenSSL has to answer, such as new keys. If the socket is full, the next call sends it."""
        if self._outgoing.pending > UNSENT_BYTES_MAX:
            raise ConnectionAbortedError(ECONNABORTED, "the broker does not read the answers to its messages of TLS")
        self.flush()
        return 0

    cdef int32_t set_error(self, object error) noexcept:
        """Set the error that ends the connection. Return the reason to close it.

        An end or a break has the same reason as without TLS: it may tell that a request was too large.
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
            reason[0] = (<TlsStream>stream).set_error(error)
            return -1
    if written == 0:
        reason[0] = EAGAIN
        return -1
    return written


cdef ssize_t tls_read(void *stream, uint8_t *into, size_t size, bint may_receive, int32_t *reason) noexcept nogil:
    """Read as read() does. Return the number of bytes, 0 at the end, or -1 with an errno or a CloseReason.

    may_receive     whether to read the socket. What was received before must be read until EAGAIN, since epoll does not
                    report it.
    """
    cdef Py_ssize_t got
    with gil:
        try:
            got = (<TlsStream>stream).read(into, <Py_ssize_t>size, may_receive)
        except BaseException as error:
            reason[0] = (<TlsStream>stream).set_error(error)
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
