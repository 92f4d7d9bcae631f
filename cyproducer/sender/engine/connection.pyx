"""Writes to, reads from, and closes connections to brokers.

Requests are written in order and answered in order. Chunks are held until their request is written in full and
answered, or until the connection is closed, even if their front-end ends meanwhile. Sockets are closed with a reset
(SO_LINGER 0), so that the kernel drops the unsent bytes of a sender that dies.
"""


# ------------------------------------------------------------ epoll tags
#
# The tag of a descriptor: its kind above TAG_SHIFT; below it an index, or the watched descriptor itself.


cdef enum EpollTag:
    TAG_NODE = 1
    TAG_FRONT_END = 2
    TAG_WATCHED = 3
    TAG_SHIFT = 28
    TAG_MASK = 0x0fffffff


# ------------------------------------------------------------ window
#
# Limits the bytes in flight to a broker that several front-ends use, so that none waits long behind another's bytes.
#
# A broker answers in order, so a batch waits for everything that is in flight before it. Five requests of 1 MiB take
# 120 ms at 44 MB/s. So the bytes in flight are limited to what the broker answers in the duration of a request on an
# otherwise idle connection plus QUEUE_NS, but not to less than WINDOW_MIN_BYTES. A request has at most half of that, so
# that the next one is under way while the broker handles it. The duration is measured with requests that were sent when
# none was in flight. After IDLE_TIME_VALID_NS without a measurement the next request waits for all answers.
#
# If only one front-end uses a broker, the only limits are max_request_size and max_in_flight_requests_per_connection.


cdef enum:
    QUEUE_NS = 10000000             # how long bytes may wait at the broker
    WINDOW_MIN_BYTES = 524288
    ROOM_MIN_BYTES = 65536          # less space counts as none: smaller requests cost the broker too much
    RATE_SAMPLE_NS = 5000000        # interval over which answered bytes are counted
    IDLE_TIME_MAX_NS = 50000000     # a longer duration is not that of an idle broker
    IDLE_TIME_VALID_NS = 10000000000


cdef inline uint64_t window_room(const Core *core, const Node *node) noexcept nogil:
    """Return how many bytes the next request may have; 0 if it must wait for an answer."""
    cdef uint64_t window
    if node.drain.users < 2:
        return core.settings.max_request_size
    if node.connection.in_flight_bytes and core.loop.now - node.connection.window.idle_time_at_ns > IDLE_TIME_VALID_NS:
        return 0
    window = max(
        node.connection.window.rate * (node.connection.window.idle_time_ns + QUEUE_NS) // 1000000000,
        <uint64_t>WINDOW_MIN_BYTES
    )
    if node.connection.in_flight_bytes and node.connection.in_flight_bytes + ROOM_MIN_BYTES > window:
        return 0
    return min(window // 2, <uint64_t>core.settings.max_request_size)


cdef inline void window_enter(Node *node, const Request *request, uint64_t now) noexcept nogil:
    """Count a request that will be written."""
    if node.connection.in_flight_bytes == 0:
        node.connection.window.rate_since_ns = now
        node.connection.window.rate_bytes = 0
        node.connection.window.first_is_alone = request.kind == REQUEST_PRODUCE
    node.connection.in_flight_bytes += request.produce.total


cdef inline void window_leave(Node *node, const Request *request, uint64_t now) noexcept nogil:
    """Count the answer to the first request in flight."""
    cdef uint64_t passed = now - node.connection.window.rate_since_ns
    cdef uint64_t taken = min(now - request.connection.sent_ns, <uint64_t>IDLE_TIME_MAX_NS)
    if node.connection.window.first_is_alone:
        node.connection.window.first_is_alone = False
        if taken <= node.connection.window.idle_time_ns \
                or now - node.connection.window.idle_time_at_ns > IDLE_TIME_VALID_NS:
            node.connection.window.idle_time_ns = taken
            node.connection.window.idle_time_at_ns = now
    node.connection.answered_ns = now
    node.connection.in_flight_bytes -= request.produce.total
    node.connection.window.rate_bytes += request.produce.total
    if passed >= RATE_SAMPLE_NS:
        node.connection.window.rate = node.connection.window.rate_bytes * 1000000000 // passed
        node.connection.window.rate_since_ns = now
        node.connection.window.rate_bytes = 0


# ------------------------------------------------------------ throttle
#
# Delays requests to a broker that throttles this client until the throttle time is over (KIP-219).


cdef enum:
    # A quota of Kafka delays for seconds: at most for the samples of the quota, 11 of 1 s by default. A longer time is
    # a defect of the broker, and one answer must not stop a host for days.
    THROTTLE_MAX_MS = 300000


cdef inline void throttle(Node *node, uint64_t now, int32_t throttle_ms) noexcept nogil:
    """Apply the throttle time of a response to all connections of the broker, unless it is throttled for longer."""
    cdef uint64_t until = now + <uint64_t>min(max(throttle_ms, 0), <int32_t>THROTTLE_MAX_MS) * 1000000
    if throttle_ms <= 0:
        return
    node = first_connection(node)
    while node != NULL:
        node.connection.muted_until_ns = max(node.connection.muted_until_ns, until)
        node = node.pool.next


# ------------------------------------------------------------ connection


cdef enum:
    SILENT_NS = 1000000000          # a broker that answers nothing for so long counts as silent


cdef inline uint64_t silent_at(const Node *node) noexcept nogil:
    """Return from when on the broker counts as silent; UINT64_MAX if it is not asked anything."""
    cdef const Request *request = oldest_request(node)
    if request == NULL:
        return UINT64_MAX
    # a broker that throttles does not read what was sent meanwhile
    return max(max(request.connection.sent_ns, node.connection.answered_ns), node.connection.muted_until_ns) + SILENT_NS


cdef enum:
    RESPONSE_BYTES_MAX = 104857600      # a Kafka broker sends no longer response
    READ_BYTES = 65536
    INPUT_KEPT_MAX = 131072             # an empty input buffer that is larger is freed: few responses are that large
    IOV_PER_CALL_MAX = 1024             # IOV_MAX of Linux
    TLS_READS_MAX = 256                 # up to 4 MiB in full records
    TLS_ALERT = 0x1503                  # the first two bytes of a TLS alert: its type, and the version 3.x


cdef Node *new_node(Core *core, int32_t broker_id, Node *first) noexcept nogil:
    """Add a node without a connection to the core's nodes. Return NULL if there is no memory.

    first  the first connection to the broker, if this is a further one; else NULL
    """
    cdef Node *node = <Node *>calloc(1, sizeof(Node))
    cdef Node **grown = <Node **>realloc(core.connection.nodes, (core.connection.node_count + 1) * sizeof(Node *))
    if grown != NULL:
        core.connection.nodes = grown
    if node == NULL or grown == NULL:
        free(node)
        return NULL
    node.id = broker_id
    node.index = core.connection.node_count
    node.common.node = node
    node.connection.fd = -1
    node.connection.state = CONNECTION_CLOSED
    node.epoll_tag = TAG_NODE << TAG_SHIFT | node.index
    find_node_row(core, node)
    core.connection.nodes[node.index] = node
    node.common.home = &node.common if first == NULL else &first.common
    if first == NULL:
        core.connection.broker_count += 1
    else:
        add_to_pool(first, node)
    core.connection.node_count += 1
    return node


cdef void begin_connection(Core *core, Node *node, int fd) noexcept nogil:
    """Use `fd`, a connecting socket that epoll watches, for the connection of the node."""
    node.connection.fd = fd
    node.connection.state = CONNECTION_CONNECTING
    count_connection(core, 1)
    node.connection.wants_write = False
    node.connection.active_ns = monotonic_ns()


cdef int take_descriptor(Node *node) noexcept nogil:
    """Return the descriptor of an established connection, which the node no longer has."""
    cdef int fd = node.connection.fd
    node.connection.fd = -1
    return fd


cdef int begin_tunnel(Node *node) noexcept nogil:
    """Let Python ask a proxy on an established connection. Return its descriptor, which stays the node's."""
    node.connection.state = CONNECTION_HANDSHAKING
    return node.connection.fd


cdef void begin_handshake(Node *node, int fd, void *tls) noexcept nogil:
    """Use TLS on the connection. `tls` is a TlsStream, of which the node has a reference, and `fd` its socket."""
    node.connection.fd = fd
    node.connection.tls = tls
    node.connection.state = CONNECTION_HANDSHAKING


cdef void end_handshake(Node *node) noexcept nogil:
    """Let Python exchange ApiVersions after the TLS handshake."""
    if node.connection.state == CONNECTION_HANDSHAKING:
        node.connection.state = CONNECTION_NEGOTIATING


cdef void allow_batches(Node *node) noexcept nogil:
    """Send batches on a connection whose ApiVersions were exchanged."""
    node.connection.state = CONNECTION_READY


cdef void hold_batches(Node *node) noexcept nogil:
    """Send no batches on the connection until they are allowed again."""
    if node.connection.state == CONNECTION_READY:
        node.connection.state = CONNECTION_NEGOTIATING


cdef void await_writable(Core *core, Node *node, bint writable) noexcept nogil:
    """Let epoll report when the socket is readable, or also when it is `writable`."""
    cdef uint32_t events = CYP_EPOLLIN | CYP_EPOLLOUT if writable else CYP_EPOLLIN
    if node.connection.wants_write != writable:
        node.connection.wants_write = writable
        epoll_update(core.epoll_fd, node.connection.fd, node.epoll_tag, events)


cdef inline void clear_progress(Request *request) noexcept nogil:
    """Note of a new request that nothing of it was written."""
    request.connection.finished = False
    request.connection.started = False
    request.connection.silent = False
    request.connection.iov_at = 0
    request.connection.sent_ns = 0


cdef void enqueue(Core *core, Node *node, Request *request) noexcept nogil:
    """Append a request to the node's output; flush_out writes it."""
    window_enter(node, request, core.loop.now)
    request.connection.node = node
    if node.connection.out_tail != NULL:
        node.connection.out_tail.connection.next = request
    else:
        node.connection.out_head = request
    node.connection.out_tail = request
    node.connection.in_flight += 1
    count_unanswered(core, 1)


cdef void flush_out(Core *core, Node *node) noexcept nogil:
    """Write as much as the socket takes; wait with epoll for the rest."""
    cdef Request *request = node.connection.out_head
    cdef uint32_t index
    cdef ssize_t written
    cdef int32_t reason = 0
    cdef bint blocked = False
    while request != NULL and not blocked:
        if not request.connection.started:
            request.connection.started = True
            request.connection.sent_ns = core.loop.now
            for index in range(request.produce.wire_count):
                store_sent(core, request.produce.wires[index])
        written = _write(
            node, request.produce.iov + request.connection.iov_at,
            min(request.produce.iov_count - request.connection.iov_at, <uint32_t>IOV_PER_CALL_MAX),
            &reason,
        )
        if written < 0:
            if reason != EAGAIN:
                close_connection(core, node, reason)
                return
            CRASHPOINT(b"write.blocked")
            blocked = True
            continue
        count_written(core, node, <uint64_t>written)
        if _advance(request, <uint64_t>written):
            CRASHPOINT(b"write.whole")
            node.connection.active_ns = core.loop.now
            node.connection.out_head = request.connection.next
            if node.connection.out_head == NULL:
                node.connection.out_tail = NULL
            _written(core, node, request)
            request = node.connection.out_head
    await_writable(core, node, blocked)


cdef inline ssize_t _write(Node *node, const iovec *pieces, int count, int32_t *reason) noexcept nogil:
    """Write pieces to the socket. Return the number of bytes, or -1 with the reason: an errno or a CloseReason."""
    cdef ssize_t written
    if node.connection.tls != NULL:
        return tls_write(node.connection.tls, pieces, count, reason)
    while True:
        written = writev(node.connection.fd, pieces, count)
        if written >= 0 or errno != EINTR:
            reason[0] = errno
            return written


cdef inline ssize_t _read(Node *node, bint may_receive, int32_t *reason) noexcept nogil:
    """Read into the node's input. Return the number of bytes, or -1 with the reason: an errno or a CloseReason.

    may_receive     with TLS, whether to read the socket, too
    """
    cdef ssize_t got
    if node.connection.tls != NULL:
        return tls_read(
            node.connection.tls, node.connection.input + node.connection.input_length, READ_BYTES, may_receive, reason
        )
    while True:
        got = read(node.connection.fd, node.connection.input + node.connection.input_length, READ_BYTES)
        if got >= 0 or errno != EINTR:
            reason[0] = errno
            return got


cdef bint _advance(Request *request, uint64_t written) noexcept nogil:
    """Skip `written` bytes. Return True at the end of the request."""
    cdef iovec *piece
    while written:
        piece = &request.produce.iov[request.connection.iov_at]
        if written < piece.iov_len:
            piece.iov_base = <uint8_t *>piece.iov_base + written
            piece.iov_len -= written
            return False
        written -= piece.iov_len
        request.connection.iov_at += 1
    return request.connection.iov_at == request.produce.iov_count


cdef void _written(Core *core, Node *node, Request *request) noexcept nogil:
    """Move a request that is written in full to the requests that wait for a response."""
    cdef uint32_t index
    request.connection.finished = True
    request.connection.next = NULL
    count_request(core, node, request)
    core.totals.requests += request.kind == REQUEST_PRODUCE
    if request.kind == REQUEST_PRODUCE and request.acks == 0:
        for index in range(request.produce.wire_count):
            publish_written(core, request.produce.wires[index])
    if node.connection.sent_tail != NULL:
        node.connection.sent_tail.connection.next = request
    else:
        node.connection.sent_head = request
    node.connection.sent_tail = request


cdef void on_socket(Core *core, Node *node, uint32_t events) noexcept nogil:
    """Handle epoll events of the node's socket."""
    cdef int error
    if node.connection.state == CONNECTION_CLOSED:
        return
    if node.connection.state == CONNECTION_CONNECTING:
        error = socket_error(node.connection.fd)
        if error:
            close_connection(core, node, error)
        elif events & CYP_EPOLLOUT:
            node.connection.state = CONNECTION_NEGOTIATING
            count_established(core)
            epoll_update(core.epoll_fd, node.connection.fd, node.epoll_tag, CYP_EPOLLIN)
            push_event(core, EVENT_CONNECTED, node.index, 0, 0)
        return
    if node.connection.state == CONNECTION_HANDSHAKING:
        push_event(core, EVENT_HANDSHAKE, node.index, 0, 0)
        return
    if events & (CYP_EPOLLIN | CYP_EPOLLHUP | CYP_EPOLLERR):
        _read_available(core, node)
    if node.connection.state != CONNECTION_CLOSED and events & CYP_EPOLLOUT:
        flush_out(core, node)


cdef bint _read_available(Core *core, Node *node) noexcept nogil:
    """Read until the socket is empty, and take every complete response. Return whether there may be more to read.

    With TLS a call reads one record, which may have one byte. So a peer could hold the loop without a limit of calls.
    After it, only what was received before is read.
    """
    cdef ssize_t got
    cdef uint32_t calls = 0
    cdef int32_t reason = 0
    cdef void *grown
    while True:
        if node.connection.input_capacity - node.connection.input_length < READ_BYTES:
            grown = realloc(
                node.connection.input, node.connection.input_capacity + node.connection.input_capacity // 2 + READ_BYTES
            )
            if grown == NULL:
                close_connection(core, node, CLOSE_PROTOCOL)
                return False
            node.connection.input = <uint8_t *>grown
            node.connection.input_capacity += node.connection.input_capacity // 2 + READ_BYTES
        got = _read(node, calls < TLS_READS_MAX, &reason)
        if got == 0:
            close_connection(core, node, CLOSE_BY_PEER)
            return False
        if got < 0:
            if reason != EAGAIN:
                close_connection(core, node, reason)
                return False
            return calls >= TLS_READS_MAX
        node.connection.input_length += <uint32_t>got
        count_read(core, node, <uint64_t>got)
        CRASHPOINT(b"read.arrived")
        node.connection.active_ns = core.loop.now
        if not _parse_responses(core, node):
            close_connection(core, node, CLOSE_NEEDS_TLS if _is_alert(node) else CLOSE_PROTOCOL)
            return False
        _trim_input(node)
        if got < READ_BYTES and node.connection.tls == NULL:
            return False
        calls += 1


cdef inline bint _is_alert(const Node *node) noexcept nogil:
    """Return whether the input is a TLS alert, as a listener with TLS sends it after a request without TLS."""
    return (
        node.connection.tls == NULL and node.connection.input_length >= 4
        and _get32(node.connection.input) >> 16 == TLS_ALERT
    )


cdef void _trim_input(Node *node) noexcept nogil:
    """Free an empty input buffer that is larger than usual."""
    if node.connection.input_length == 0 and node.connection.input_capacity > INPUT_KEPT_MAX:
        free(node.connection.input)
        node.connection.input = NULL
        node.connection.input_capacity = 0


cdef inline uint32_t _get32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef bint _parse_responses(Core *core, Node *node) noexcept nogil:
    """Handle the complete frames at the start of the input. Return False if they break Kafka's protocol."""
    cdef uint32_t at = 0, size
    cdef Request *request
    while node.connection.input_length - at >= 4:
        size = _get32(node.connection.input + at)
        if size < 4 or size > RESPONSE_BYTES_MAX:
            return False
        if node.connection.input_length - at - 4 < size:
            break
        request = node.connection.sent_head
        if request == NULL or <int32_t>_get32(node.connection.input + at + 4) != request.correlation_id:
            return False
        node.connection.sent_head = request.connection.next
        if node.connection.sent_head == NULL:
            node.connection.sent_tail = NULL
        node.connection.in_flight -= 1
        count_answer(core, node, request)
        window_leave(node, request, core.loop.now)
        count_unanswered(core, -1)
        count_response(core, node, request, size + 4)
        CRASHPOINT(b"read.framed")
        if request.kind == REQUEST_PRODUCE:
            if not on_produce_response(core, node, request, node.connection.input + at + 8, size - 4):
                _retry_batches(core, request)
                recycle(core, request)
                return False
            node.connection.answers += 1
            node.connection.largest_answered = max(node.connection.largest_answered, request.produce.total)
            if request.drain.exclusive:
                end_exclusive(node)
        elif request.kind == REQUEST_STATES:
            if not on_states_response(core, node, node.connection.input + at + 8, size - 4):
                recycle(core, request)
                return False
        elif not _hand_to_python(core, node, request, node.connection.input + at + 4, size):
            recycle(core, request)
            return False
        CRASHPOINT(b"read.judged")
        recycle(core, request)
        at += 4 + size
    if at:
        memmove(node.connection.input, node.connection.input + at, node.connection.input_length - at)
        node.connection.input_length -= at
    return True


cdef bint _hand_to_python(
    Core *core, Node *node, Request *request, const uint8_t *payload, uint32_t size
) noexcept nogil:
    """Push the response as an event for Python. Return False without memory."""
    cdef uint8_t *copy = <uint8_t *>malloc(size)
    cdef Event *event
    cdef uint32_t before = core.outcome.event_count
    if copy == NULL:
        return False
    memcpy(copy, payload, size)
    push_event(core, EVENT_RESPONSE, node.index, 0, 0)
    if core.outcome.event_count == before:
        free(copy)
        return False
    event = &core.outcome.events[before]
    event.correlation_id = request.correlation_id
    event.payload = copy
    event.payload_length = size
    return True


cdef void _retry_batches(Core *core, Request *request) noexcept nogil:
    """Retry the batches of a request without a result in a response. If writing had begun, they are unsure.

    With acks=0 they fail then: they are sent at most once.
    """
    cdef uint32_t index
    cdef WireBatch *wire
    for index in range(request.produce.wire_count):
        wire = request.produce.wires[index]
        if wire.wire.state != WIRE_IN_FLIGHT or wire.wire.request != request:
            continue  # the response contained its result
        if request.acks == 0 and request.connection.started:
            fail_batch(core, wire, ERROR_NETWORK_EXCEPTION, NULL)
        else:
            back_off(core, wire)
            retry(core, wire, ERROR_NETWORK_EXCEPTION, request.connection.started, NULL)


cdef void close_connection(Core *core, Node *node, int32_t reason) noexcept nogil:
    """Close the connection. `reason` is an errno or a CloseReason.

    The batches of its requests are sent again, unless their retries are used up or they have acks=0 and were begun.
    """
    cdef Request *request
    cdef Request *following
    if node.connection.state == CONNECTION_CLOSED:
        return
    node.connection.state = CONNECTION_CLOSED
    report_work_again(node)
    if node.connection.tls != NULL:
        tls_end(node.connection.tls)  # closes the socket
        node.connection.tls = NULL
    elif node.connection.fd >= 0:
        close(node.connection.fd)
    node.connection.fd = -1
    node.connection.wants_write = False
    node.connection.input_length = 0
    _trim_input(node)
    count_connection(core, -1)
    count_unanswered(core, -<int32_t>node.connection.in_flight)
    node.connection.in_flight = 0
    node.connection.in_flight_bytes = 0
    forget_asked(node)
    end_exclusive(node)
    request = node.connection.sent_head
    if node.connection.sent_tail != NULL:
        node.connection.sent_tail.connection.next = node.connection.out_head
    else:
        request = node.connection.out_head
    node.connection.sent_head = NULL
    node.connection.sent_tail = NULL
    node.connection.out_head = NULL
    node.connection.out_tail = NULL
    while request != NULL:
        following = request.connection.next
        on_break(core, node, request, reason)
        _retry_batches(core, request)
        CRASHPOINT(b"read.abandoned")
        recycle(core, request)
        request = following
    leave_connection(core, node)
    push_event(core, EVENT_CLOSED, node.index, reason, 0)


cdef void check_timeouts(Core *core) noexcept nogil:
    """Close connections with a request that was not answered within request_timeout_ms.

    The socket is read first, because an answer may have come while this process was stopped. Kafka's NetworkClient.poll
    does the same.
    """
    cdef uint32_t index
    cdef uint64_t deadline
    cdef Node *node
    for index in range(core.connection.node_count):
        node = core.connection.nodes[index]
        deadline = _answer_deadline(core, node)
        if deadline <= core.loop.now:
            if _read_available(core, node):
                schedule_timer(core, core.loop.now)  # the answer may be in the rest
                continue
            deadline = _answer_deadline(core, node)
        if deadline <= core.loop.now:
            close_connection(core, node, CLOSE_TIMEOUT)
        elif deadline != UINT64_MAX:
            schedule_timer(core, deadline)
            _check_silence(core, node)


cdef void _check_silence(Core *core, Node *node) noexcept nogil:
    """Report it if the broker has not answered the oldest request of the connection for SILENT_NS."""
    cdef Request *request
    if silent_at(node) <= core.loop.now and not oldest_request(node).connection.silent:
        _read_available(core, node)
    request = oldest_request(node)
    if request == NULL:
        return
    if core.loop.now < silent_at(node):
        report_silence_again(request)  # the broker may have begun to throttle since it was reported
        schedule_timer(core, silent_at(node))
    elif not request.connection.silent:
        request.connection.silent = True
        push_event(core, EVENT_SILENT, node.index, 0, 0)


cdef inline void report_silence_again(Request *request) noexcept nogil:
    """Report it with EVENT_SILENT once more if the broker does not answer the request."""
    request.connection.silent = False


cdef uint64_t _answer_deadline(const Core *core, const Node *node) noexcept nogil:
    """Return when the oldest request must be answered; UINT64_MAX without one."""
    cdef const Request *request = oldest_request(node)
    if node.connection.state == CONNECTION_CLOSED or request == NULL:
        return UINT64_MAX
    # a broker that throttles does not read what was sent meanwhile
    return max(request.connection.sent_ns, node.connection.muted_until_ns) + core.settings.request_timeout_ns
