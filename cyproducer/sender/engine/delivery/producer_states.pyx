"""Asks a broker whether it still has the state of a producer, before an unsure batch is sent again.

A broker without state of a producer appends any sequence (ProducerAppendInfo.checkSequence): it cannot distinguish a
batch that is in its log from a new one. State is lost when it expires (producer.id.expiration.ms after the timestamp of
the last record, so at once for records with old timestamps), and when the records are deleted and the broker restarts.
So the leader is asked first (DescribeProducers, KIP-664, Kafka 2.8). If records of this producer were acknowledged and
the leader has no state of it, the unsure batches end with an unknown outcome, and the next ones get a new epoch.

An older broker does not know this request, and a broker may deny it (it requires READ on the topic). Then a batch can
be appended twice if the state was lost between two attempts, as with Kafka's own producer.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memcmp, memcpy

from cyproducer.record.varint cimport put_uvarint
from cyproducer.sender.engine.delivery.backoff cimport backoff_ns
from cyproducer.sender.engine.delivery.cursor cimport Cursor, get_count, get_int, get_text, skip_tags
from cyproducer.sender.engine.delivery.error_flags cimport is_retriable, is_stale_metadata
from cyproducer.sender.engine.delivery.requests cimport new_request, next_correlation_id, put32, put_request_header
from cyproducer.sender.engine.delivery.sequences cimport on_state_lost
from cyproducer.sender.engine.delivery.throttle cimport throttle
from cyproducer.sender.engine.delivery.wire_batches cimport newest_unsure
from cyproducer.sender.engine.state.events cimport EVENT_STATE_DENIED, EVENT_STATE_LOST
from cyproducer.sender.engine.state.model cimport REQUEST_STATES, STATES_PER_REQUEST_MAX, Core, Node, Lane, Request
from cyproducer.sender.engine.state.outcomes cimport push_event
from cyproducer.sender.engine.state.ready cimport relist
from cyproducer.sender.engine.state.states cimport STATE_ASKED, STATE_KNOWN, STATE_NOT_ASKED
from cyproducer.shm.layout cimport cyp_identity


cdef enum:
    DESCRIBE_PRODUCERS_KEY = 61
    # frame 4, request header 8 + client id 2 + tags 1, topic count 5, tags 1
    STATE_REQUEST_FIXED = 21
    # topic name length 3, partition count 1, partition 4, tags 1
    PARTITION_FIXED = 9


cdef bint may_send_again(Lane *lane) noexcept nogil:
    """Return False until the leader has answered whether it has the state of the producer. Nothing is in flight."""
    cdef Node *leader = lane.leader
    if not leader.describes_producers or newest_unsure(lane) == NULL:
        return True
    if lane.state_of != leader:
        lane.state = STATE_NOT_ASKED
    if lane.state == STATE_KNOWN:
        return True
    if lane.state == STATE_NOT_ASKED and not leader.states_asked:
        _ask_for(leader, lane)
    return False


cdef void _ask_for(Node *leader, Lane *lane) noexcept nogil:
    """Add the lane to the leader's next DescribeProducers request. If that has no space, a later call tries again."""
    if leader.asked == NULL:
        leader.asked = <Lane **>malloc(STATES_PER_REQUEST_MAX * sizeof(Lane *))
    if leader.asked != NULL and leader.asked_count < STATES_PER_REQUEST_MAX:
        leader.asked[leader.asked_count] = lane
        leader.asked_count += 1
        lane.state = STATE_ASKED
        lane.state_of = leader


cdef Request *states_request(Core *core, Node *node) noexcept nogil:
    """Return a request for the lanes that may_send_again() has noted; NULL if there is none to send.

    At most one such request per broker is in flight.
    """
    cdef Lane *lane
    cdef Request *request
    cdef uint32_t capacity = STATE_REQUEST_FIXED + core.client_id_bytes, index, name_bytes
    cdef uint8_t *at
    if node.asked_count == 0 or node.states_asked or node.out_head != NULL:
        return NULL
    for index in range(node.asked_count):
        capacity += PARTITION_FIXED + node.asked[index].topic.name_bytes
    request = new_request(core, capacity, 1, 0)
    if request == NULL:
        return NULL
    node.states_asked = True
    request.kind = REQUEST_STATES
    request.version = 0
    request.acks = 1
    request.correlation_id = next_correlation_id(node)
    at = put_request_header(core, request, DESCRIBE_PRODUCERS_KEY, True)
    at = put_uvarint(at, node.asked_count + 1)
    for index in range(node.asked_count):
        lane = node.asked[index]
        name_bytes = lane.topic.name_bytes
        at = put_uvarint(at, name_bytes + 1)
        memcpy(at, lane.topic.name, name_bytes)
        at = put_uvarint(at + name_bytes, 2)
        at = put32(at, <uint32_t>lane.number)
        at = put_uvarint(at, 0)
    at = put_uvarint(at, 0)
    request.bytes_length = <uint32_t>(at - request.bytes)
    put32(request.bytes, request.bytes_length - 4)
    request.iov[0].iov_base = request.bytes
    request.iov[0].iov_len = request.bytes_length
    request.iov_count = 1
    request.total = request.bytes_length
    return request


cdef void forget_asked(Node *node) noexcept nogil:
    """Drop the request, because its connection was closed without a response: the states must be asked for again."""
    cdef uint32_t index
    for index in range(node.asked_count):
        if node.asked[index].state_of == node:
            node.asked[index].state = STATE_NOT_ASKED
    node.asked_count = 0
    node.states_asked = False


cdef bint on_states_response(Core *core, Node *node, const uint8_t *body, uint32_t size) noexcept nogil:
    """Handle the response, whose topics are in the order of the request. Return False if it is malformed."""
    cdef Cursor cursor
    cdef uint32_t index, count, name_bytes
    cdef const uint8_t *name
    cdef Lane *lane
    cursor.at = body
    cursor.end = body + size
    cursor.bad = False
    skip_tags(&cursor)              # of the response header
    throttle(node, core.now, <int32_t>get_int(&cursor, 4))
    if get_count(&cursor, True) != node.asked_count:
        return False
    for index in range(node.asked_count):
        lane = node.asked[index]
        name = get_text(&cursor, True, &name_bytes)
        count = get_count(&cursor, True)
        if cursor.bad or count != 1 or name_bytes != lane.topic.name_bytes \
                or memcmp(name, lane.topic.name, name_bytes) != 0 \
                or <int32_t>get_int(&cursor, 4) != lane.number \
                or not _take_state(core, node, lane, &cursor):
            return False
        skip_tags(&cursor)          # of the partition
        skip_tags(&cursor)          # of the topic
    node.asked_count = 0
    node.states_asked = False
    return not cursor.bad


cdef bint _take_state(Core *core, Node *node, Lane *lane, Cursor *cursor) noexcept nogil:
    """Handle the error and the active producers of one partition. Return False if they are malformed."""
    cdef int16_t error = <int16_t>get_int(cursor, 2)
    cdef uint32_t length, producers, _index
    cdef bint found = False
    get_text(cursor, True, &length)
    producers = get_count(cursor, True)
    for _index in range(producers):
        if <int64_t>get_int(cursor, 8) == lane.producer_id:
            found = True
        get_int(cursor, 4)          # epoch
        get_int(cursor, 4)          # last sequence
        get_int(cursor, 8)          # last timestamp
        get_int(cursor, 4)          # coordinator epoch
        get_int(cursor, 8)          # start of the current transaction
        skip_tags(cursor)
        if cursor.bad:
            return False
    if cursor.bad:
        return False
    if lane.state != STATE_ASKED or lane.state_of != node:
        return True  # the leader has changed since the request
    lane.state = STATE_KNOWN
    if is_retriable(error):
        if is_stale_metadata(error):
            core.refresh_wanted = True
        lane.state = STATE_NOT_ASKED
        lane.states_refused += 1
        lane.retry_at_ns = core.now + backoff_ns(core, lane.states_refused)
        relist(lane)
        return True
    lane.states_refused = 0
    if error:
        push_event(core, EVENT_STATE_DENIED, node.index, error, lane.index)
    elif not found and _was_acknowledged(lane):
        push_event(core, EVENT_STATE_LOST, node.index, 0, lane.index)
        lane.lost_id = lane.producer_id
        lane.lost_epoch = lane.producer_epoch
        on_state_lost(core, lane)
    relist(lane)
    return True


cdef bint _was_acknowledged(Lane *lane) noexcept nogil:
    """Return whether records of the producer id were acknowledged since the last loss of its state.

    Consider the present epoch and the one before.
    """
    cdef cyp_identity *identity
    cdef int place
    for place in range(2):
        identity = &lane.row.identity[place]
        if identity.producer_id == lane.producer_id and identity.acked_end > 0 \
                and not (lane.lost_id == identity.producer_id and identity.producer_epoch <= lane.lost_epoch):
            return True
    return False
