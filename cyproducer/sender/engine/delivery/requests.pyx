"""Builds Produce requests without reading or copying the records.

A request consists of one private buffer (frame, request header, topic names, batch headers) and an iovec that
interleaves the buffer with the front-ends' chunks. So records go straight to the socket from the memory where send()
has put them. The versions of Produce are 3 to 13; from 9 on they are flexible (compact lengths, tagged fields). From 13
on a topic id takes the place of the topic name.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcpy
from posix.uio cimport iovec

from cyproducer.record.header cimport BATCH_HEADER_BYTES
from cyproducer.record.varint cimport put_uvarint
from cyproducer.sender.engine.intake.compression cimport wire_bytes
from cyproducer.sender.engine.state.model cimport (
    REQUEST_PRODUCE, ClientBatch, Core, FrontEnd, Node, Request, Transaction, WireBatch,
)
from cyproducer.sender.engine.state.transactions cimport place_of
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_NONE, CYP_UNIT_BYTES


cdef enum:
    PRODUCE_KEY = 0
    FLEXIBLE_FROM = 9
    TOPIC_IDS_FROM = 13
    TOPIC_ID_BYTES = 16
    IMPLICIT_FROM = 12              # such a request adds its partitions to the transaction (KIP-890)
    # frame 4, request header 8 + client id 2 + tags 1, transactional id's length 2, acks 2, timeout 4, topic count 5,
    # tags 1
    REQUEST_FIXED = 32
    # topic name length 3, partition count 5, tags 2; partition 4, records length 5, tags 1
    WIRE_FIXED = 24
    # limits of what is kept for later requests: how many, and the buffer size and iovecs of each
    SPARE_MAX = 16
    SPARE_BYTES_MAX = 65536
    SPARE_PIECES_MAX = 1024


cdef uint32_t produce_overhead(WireBatch *wire) noexcept nogil:
    """Return the bytes that the wire batch adds to a request besides its records."""
    return WIRE_FIXED + BATCH_HEADER_BYTES + max(wire.lane.topic.name_bytes, <uint32_t>TOPIC_ID_BYTES)


cdef Request *new_request(
    Core *core, uint32_t byte_capacity, uint32_t iov_capacity, uint32_t wire_capacity
) noexcept nogil:
    """Return an empty request with these capacities; NULL without memory."""
    cdef Request *request = core.spare_requests
    cdef void *grown
    if request != NULL:
        core.spare_requests = request.next
        core.spare_count -= 1
    else:
        request = <Request *>calloc(1, sizeof(Request))
        if request == NULL:
            return NULL
        core.requests_made += 1
    request.next = NULL
    if request.bytes_capacity < byte_capacity:
        grown = realloc(request.bytes, byte_capacity)
        if grown == NULL:
            recycle(core, request)
            return NULL
        request.bytes = <uint8_t *>grown
        request.bytes_capacity = byte_capacity
    if request.iov_capacity < iov_capacity:
        grown = realloc(request.iov, iov_capacity * sizeof(iovec))
        if grown == NULL:
            recycle(core, request)
            return NULL
        request.iov = <iovec *>grown
        request.iov_capacity = iov_capacity
    grown = realloc(request.wires, (wire_capacity + 1) * sizeof(WireBatch *))
    if grown == NULL:
        recycle(core, request)
        return NULL
    request.wires = <WireBatch **>grown
    request.finished = False
    request.started = False
    request.late = False
    request.silent = False
    request.lone = False
    request.bytes_length = 0
    request.iov_count = 0
    request.iov_at = 0
    request.wire_count = 0
    request.total = 0
    request.sent_ns = 0
    return request


cdef void recycle(Core *core, Request *request) noexcept nogil:
    """Keep a request's memory for later requests. Free it if enough are kept, and its buffers if they are large."""
    if core.spare_count == SPARE_MAX:
        free_request(core, request)
        return
    if request.bytes_capacity > SPARE_BYTES_MAX:
        free(request.bytes)
        request.bytes = NULL
        request.bytes_capacity = 0
    if request.iov_capacity > SPARE_PIECES_MAX:
        free(request.iov)
        request.iov = NULL
        request.iov_capacity = 0
    request.next = core.spare_requests
    core.spare_requests = request
    core.spare_count += 1


cdef void free_request(Core *core, Request *request) noexcept nogil:
    free(request.bytes)
    free(request.iov)
    free(request.wires)
    free(request)
    core.requests_made -= 1


cdef void recycle_all(Core *core, Request *request) noexcept nogil:
    """Recycle a list of requests."""
    cdef Request *following
    while request != NULL:
        following = request.next
        recycle(core, request)
        request = following


cdef int _by_topic(const void *a, const void *b) noexcept nogil:
    cdef WireBatch *left = (<WireBatch **>a)[0]
    cdef WireBatch *right = (<WireBatch **>b)[0]
    if left.lane.topic.number != right.lane.topic.number:
        return 1 if left.lane.topic.number > right.lane.topic.number else -1
    return 1 if left.lane.number > right.lane.number else -1


cdef inline uint8_t *_put_count(uint8_t *at, uint32_t count, bint flexible) noexcept nogil:
    """Write the length of an array or of records. Return the position after it."""
    return put_uvarint(at, count + 1) if flexible else put32(at, count)


cdef uint32_t _pieces(Core *core, WireBatch *wire) noexcept nogil:
    """Return how many iovecs the wire batch's records need."""
    cdef uint32_t pieces = 0, slot
    cdef ClientBatch *batch
    if wire.body != NULL or wire.copy != NULL or wire.packed != NULL:
        return 1
    batch = core.contributor_batches[wire.entry.contributors]
    slot = batch.slot
    while slot != CYP_NONE:
        pieces += 1
        slot = batch.front_end.chunk_next[slot]
    return pieces


cdef int16_t _version(Node *node, WireBatch **wires, uint32_t count) noexcept nogil:
    """Return the version of a Produce request: one with topic names if a topic's id is not known.

    A transaction whose partitions the coordinator adds needs a version that adds none.
    """
    cdef uint32_t index
    cdef Transaction *transaction = wires[0].lane.transaction
    if transaction != NULL and not place_of(transaction).v2:
        return min(node.produce_version, <int16_t>(IMPLICIT_FROM - 1))
    if node.produce_version >= TOPIC_IDS_FROM:
        for index in range(count):
            if not wires[index].lane.topic.has_id:
                return TOPIC_IDS_FROM - 1
    return node.produce_version


cdef Request *produce_request(Core *core, Node *node, WireBatch **wires, uint32_t count) noexcept nogil:
    """Return one request with all the wire batches, and sort `wires`. Return NULL without memory.

    They are stamped, have one `acks`, and are all of one transaction or of none.
    """
    cdef Transaction *transaction = wires[0].lane.transaction
    cdef int16_t version = _version(node, wires, count)
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef uint32_t index, capacity = REQUEST_FIXED + core.client_id_bytes, pieces = 1, topics = 0, same
    cdef uint8_t *at
    cdef uint8_t *piece
    cdef Request *request
    if transaction != NULL:
        capacity += transaction.row.id_bytes
    qsort(wires, count, sizeof(WireBatch *), _by_topic)
    for index in range(count):
        capacity += produce_overhead(wires[index])
        pieces += 1 + _pieces(core, wires[index])
        if index == 0 or wires[index].lane.topic != wires[index - 1].lane.topic:
            topics += 1
    request = new_request(core, capacity, pieces, count)
    if request == NULL:
        return NULL
    request.kind = REQUEST_PRODUCE
    request.version = version
    request.acks = wires[0].acks
    request.correlation_id = next_correlation_id(node)
    piece = request.bytes
    at = _put_produce_fields(core, request, flexible, transaction)
    at = _put_count(at, topics, flexible)
    for index in range(count):
        if index == 0 or wires[index].lane.topic != wires[index - 1].lane.topic:
            if index and flexible:
                at = put_uvarint(at, 0)  # tags of the topic before
            same = index + 1
            while same < count and wires[same].lane.topic == wires[index].lane.topic:
                same += 1
            at = _put_topic(at, wires[index], same - index, version)
        at = put32(at, <uint32_t>wires[index].lane.number)
        at = _put_count(at, wire_bytes(wires[index]) + BATCH_HEADER_BYTES, flexible)
        memcpy(at, wires[index].header, BATCH_HEADER_BYTES)
        at += BATCH_HEADER_BYTES
        _add_piece(request, piece, <uint32_t>(at - piece))
        piece = at
        _add_records(core, request, wires[index])
        if flexible:
            at = put_uvarint(at, 0)  # tags of the partition
        memcpy(wires[index].topic_id, wires[index].lane.topic.id, TOPIC_ID_BYTES)  # it may change before the response
        request.wires[index] = wires[index]
    request.wire_count = count
    if flexible:
        at = put_uvarint(at, 0)  # tags of the last topic
        at = put_uvarint(at, 0)  # tags of the request
    _add_piece(request, piece, <uint32_t>(at - piece))
    request.bytes_length = <uint32_t>(at - request.bytes)
    put32(request.bytes, <uint32_t>(request.total - 4))
    CRASHPOINT(b"build.framed")
    return request


cdef uint8_t *put_request_header(Core *core, Request *request, int16_t api, bint flexible) noexcept nogil:
    """Write the request header after the frame's length, which is filled in last. Return the position after it."""
    cdef uint8_t *at = request.bytes + 4
    at = put16(at, api)
    at = put16(at, request.version)
    at = put32(at, <uint32_t>request.correlation_id)
    at = put16(at, core.client_id_bytes)
    memcpy(at, core.client_id, core.client_id_bytes)
    at += core.client_id_bytes
    return put_uvarint(at, 0) if flexible else at  # its tags


cdef uint8_t *_put_produce_fields(
    Core *core, Request *request, bint flexible, const Transaction *transaction
) noexcept nogil:
    cdef uint8_t *at = put_request_header(core, request, PRODUCE_KEY, flexible)
    cdef uint32_t id_bytes
    if transaction == NULL:
        at = put_uvarint(at, 0) if flexible else put16(at, -1)
    else:
        id_bytes = transaction.row.id_bytes
        at = put_uvarint(at, id_bytes + 1) if flexible else put16(at, <int32_t>id_bytes)
        memcpy(at, transaction.row.id, id_bytes)
        at += id_bytes
    at = put16(at, request.acks if request.acks else 1)  # never 0: the broker would close the connection on an error
    return put32(at, <uint32_t>(core.request_timeout_ns // 1000000))


cdef uint8_t *_put_topic(uint8_t *at, WireBatch *wire, uint32_t partitions, int16_t version) noexcept nogil:
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef uint32_t name_bytes = wire.lane.topic.name_bytes
    if version >= TOPIC_IDS_FROM:
        memcpy(at, wire.lane.topic.id, TOPIC_ID_BYTES)
        return _put_count(at + TOPIC_ID_BYTES, partitions, flexible)
    if flexible:
        at = put_uvarint(at, name_bytes + 1)
    else:
        at = put16(at, <int32_t>name_bytes)
    memcpy(at, wire.lane.topic.name, name_bytes)
    return _put_count(at + name_bytes, partitions, flexible)


cdef void _add_piece(Request *request, uint8_t *base, uint32_t length) noexcept nogil:
    if length == 0:
        return
    request.iov[request.iov_count].iov_base = base
    request.iov[request.iov_count].iov_len = length
    request.iov_count += 1
    request.total += length


cdef void _add_records(Core *core, Request *request, WireBatch *wire) noexcept nogil:
    cdef ClientBatch *batch
    cdef FrontEnd *front_end
    cdef uint32_t slot
    if wire.packed != NULL:
        _add_piece(request, wire.packed, wire.packed_bytes)
        return
    if wire.body != NULL or wire.copy != NULL:
        _add_piece(request, wire.body if wire.body != NULL else wire.copy, wire.entry.length)
        return
    batch = core.contributor_batches[wire.entry.contributors]
    front_end = batch.front_end
    slot = batch.slot
    while slot != CYP_NONE:
        _add_piece(request, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot])
        slot = front_end.chunk_next[slot]
