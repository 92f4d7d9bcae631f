"""Gives the control plane the connections of the loop: their set-up, the silence of a broker, further connections."""


cdef extern from "netinet/in.h" nogil:
    const int IPPROTO_TCP


cdef extern from "netinet/tcp.h" nogil:
    const int TCP_INFO

    struct tcp_info:
        uint8_t tcpi_retransmits    # of the oldest segment that is not acknowledged
        uint32_t tcpi_unacked       # segments that are sent and not acknowledged
        uint32_t tcpi_last_ack_recv  # ms since the last acknowledgement, also one of a window or of a keep-alive probe


cdef extern from "sys/socket.h" nogil:
    int getsockopt(int fd, int level, int name, void *value, unsigned int *size)


cdef enum:
    LOST_MS = 1400          # longer than two retransmissions, after 0.2 and 0.6 s
    LOST_RETRANSMITS = 2
    IDLE_MS = 1000


cdef class Nodes:
    """The connections of a loop. `index` is the index of a broker's node in it.

    A connection is CONNECTING, NEGOTIATING, and READY. A proxy and TLS lead from NEGOTIATING to HANDSHAKING and back,
    another authentication from READY to NEGOTIATING and back.
    """

    cdef Loop _loop

    def __cinit__(self, Loop loop not None):
        self._loop = loop

    cdef Node *_node(self, uint32_t index) noexcept:
        return self._loop.core.connection.nodes[index]

    def take_descriptor(self, uint32_t index):
        """Return the descriptor of a connection that was just established. The caller owns it from here on.

        begin_handshake() or Loop.close_node() must follow at once.
        """
        cdef Node *node = self._node(index)
        if node.connection.state != CONNECTION_NEGOTIATING or node.connection.tls != NULL:
            raise ValueError("the connection is not one that was just established")
        return take_descriptor(node)

    def begin_tunnel(self, uint32_t index):
        """Let Python ask a proxy on a connection that was just established, until end_handshake().

        Return its descriptor, which stays the loop's. await_handshake() says what to wait for.
        """
        cdef Node *node = self._node(index)
        if node.connection.state != CONNECTION_NEGOTIATING or node.connection.tls != NULL:
            raise ValueError("the connection is not one that was just established")
        return begin_tunnel(node)

    def begin_handshake(self, uint32_t index, socket, wrap):
        """Use TLS on the connection whose descriptor was taken. Return its TlsStream, for whose arguments see there.

        The loop closes the socket with the connection. If this raises, the caller closes it.
        """
        cdef Node *node = self._node(index)
        cdef TlsStream stream = TlsStream(socket, wrap)
        cdef int fd
        if node.connection.state != CONNECTION_NEGOTIATING or node.connection.tls != NULL or node.connection.fd >= 0:
            raise ValueError("the descriptor of the connection was not taken")
        fd = stream.socket.fileno()
        begin_handshake(node, fd, hold(stream))
        return stream

    def await_handshake(self, uint32_t index, bint writable):
        """Wait until the socket is readable, or also `writable`. EVENT_HANDSHAKE follows."""
        cdef Node *node = self._node(index)
        if node.connection.state == CONNECTION_HANDSHAKING:
            await_writable(self._loop.core, node, writable)

    def end_handshake(self, uint32_t index):
        """Use the connection for requests: the handshake is complete."""
        self.await_handshake(index, False)
        end_handshake(self._node(index))

    def ready(self, uint32_t index, int16_t produce_version, bint describes_producers=False):
        """Allow batches after ApiVersions were exchanged. `describes_producers`: the broker has DescribeProducers."""
        cdef Node *node = self._node(index)
        if node.connection.state == CONNECTION_NEGOTIATING:
            node.connections.produce_version = produce_version
            node.connections.describes_producers = describes_producers
            node.connections.error_bytes = 0
            allow_batches(node)

    def set_error(self, uint32_t index, bytes text):
        """Set why the broker cannot be used, in UTF-8, until ready() is called. Batches that expire tell it."""
        cdef Node *node = self._node(index)
        node.connections.error_bytes = <uint32_t>min(len(text), sizeof(node.connections.error))
        memcpy(node.connections.error, <const char *>text, node.connections.error_bytes)

    def answers(self, uint32_t index):
        """Return how many Produce requests the broker has answered on all its connections so far."""
        return self._node(index).connection.answers

    def is_silent(self, uint32_t index):
        """Return whether the broker still does not answer the oldest request of the connection (EVENT_SILENT)."""
        return silent_at(self._node(index)) <= monotonic_ns()

    def is_lost(self, uint32_t index):
        """Return whether a connection was idle, and nothing that was sent on it since then reaches the broker's host.

        A host acknowledges what arrives also for a process that is stopped or does not read.
        """
        cdef Node *node = self._node(index)
        cdef tcp_info info
        cdef unsigned int size = sizeof(info)
        cdef uint64_t since = silent_at(node), now = monotonic_ns()
        if since > now or node.connection.fd < 0 \
                or getsockopt(node.connection.fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0:
            return False
        since = (now - since + SILENT_NS) // 1000000
        return (
            since >= LOST_MS
            and info.tcpi_unacked > 0
            and info.tcpi_retransmits >= LOST_RETRANSMITS
            and info.tcpi_last_ack_recv >= since + IDLE_MS
        )

    def hold_batches(self, uint32_t index):
        """Send no batches to the broker until ready() is called again. Requests in flight keep waiting for answers."""
        hold_batches(self._node(index))

    def count_authentication(self, bint failed, bint again=False, uint64_t took_ms=0):
        """Count that a broker has, or has not, authenticated a connection, for the metrics.

        again     the connection had been authenticated before, and it has taken `took_ms` to do it again
        """
        update_clock(self._loop.core)
        count_authentication(self._loop.core, again, failed, took_ms * 1000000)

    # ---------------------------------------------------------------- several connections to a broker, see pool.pyx

    def add_further(self, uint32_t index):
        """Add a node for another connection to the broker with this first one. Return its index. Raise MemoryError."""
        cdef Node *first = self._node(index)
        cdef Node *node = new_node(self._loop.core, first.id, first)
        if node == NULL:
            raise MemoryError
        return node.index

    def for_call(self, uint32_t index):
        """Return the index of the connection that a request to the broker with this first connection waits least for.

        RequestsWait follows if another connection would help.
        """
        update_clock(self._loop.core)
        return shortest_queue(self._loop.core, self._node(index)).index
