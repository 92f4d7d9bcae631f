"""The native loop: clock, submission rings, timers, drain, write, epoll, read, outcomes.

One turn is `nogil` C from end to end. Whatever is rare (attaching, connecting, metadata, producer ids) is
handed to Python as an event, and Python answers through the methods here.
"""

import os

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy
from posix.uio cimport iovec

from cyproducer.sender.accumulator cimport accumulate, anything_submitted, linger
from cyproducer.sender.attaching cimport end_front_end, free_front_end
from cyproducer.sender.breadcrumb cimport untouch
from cyproducer.sender.connection cimport check_timeouts, close_connection, enqueue, flush_out, on_socket
from cyproducer.sender.drain cimport drain, saturated
from cyproducer.sender.epoll cimport (
    EPOLLIN,
    EPOLLOUT,
    cyp_epoll_event,
    epoll_add,
    epoll_collect,
    epoll_remove,
)
from cyproducer.sender.expiry cimport expire
from cyproducer.sender.front_ends cimport FrontEnds
from cyproducer.sender.invariants cimport check_core
from cyproducer.sender.model cimport (
    CLOSE_BY_US,
    CONNECTION_CLOSED,
    CONNECTION_CONNECTING,
    CONNECTION_NEGOTIATING,
    CONNECTION_READY,
    EVENT_PRODUCER_ID,
    REQUEST_CONTROL,
    TAG_MASK,
    TAG_NODE,
    TAG_SHIFT,
    TAG_WATCHED,
    Core,
    Event,
    FrontEnd,
    Node,
    Partition,
    Request,
    Topic,
)
from cyproducer.sender.outcomes cimport announce, push_event
from cyproducer.sender.partitioner cimport choose_sticky, leave_stuck
from cyproducer.sender.partitions cimport delist, note_timer, relist
from cyproducer.sender.requests cimport new_request, recycle_all
from cyproducer.sender.tables cimport core_free
from cyproducer.sender.topics cimport append_partition, append_topic
from cyproducer.shm.atomics cimport store_relaxed, store_release
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.debug cimport CYPRODUCER_DEBUG
from cyproducer.shm.layout cimport CYP_CONTROL_DETACHED, CYP_PARTITIONS_MAX
from cyproducer.shm.wake cimport sender_sleeps, sender_wakes


cdef enum:
    EVENTS_MAX = 256
    SATURATED_NS = 100000000    # a sender whose brokers take no more looks at the rings this often
    PENDING_TURN_NS = 1000000000


cdef class Loop(FrontEnds):
    """The data plane of one sender.

    settings: sender-side settings (max_request_size, request_timeout_ms, retry_backoff_ms, ...) as numbers.
    legacy: see FrontEnds.
    """

    def __cinit__(self, dict settings, object legacy=None):
        self._watched = {}
        self._ready = []
        self.core.max_in_flight = settings["max_in_flight_requests_per_connection"]
        self.core.request_timeout_ns = int(settings["request_timeout_ms"]) * 1_000_000
        self.core.retry_backoff_ns = int(settings["retry_backoff_ms"]) * 1_000_000
        self.core.retry_backoff_max_ns = max(
            int(settings["retry_backoff_max_ms"]) * 1_000_000, self.core.retry_backoff_ns
        )
        self.core.adaptive = settings.get("partitioner_adaptive_partitioning_enable", True)
        self.core.random = int.from_bytes(os.urandom(8), "little") | 1
        client_id = settings["client_id"].encode()[:255]
        memcpy(self.core.client_id, <const char *>client_id, len(client_id))
        self.core.client_id_bytes = len(client_id)

    def spare_memory(self):
        """What is kept for the next requests and responses: {"requests", "request_bytes", "input_bytes"}."""
        cdef Request *request = self.core.spare_requests
        cdef uint32_t index
        found = {"requests": self.core.spare_count, "request_bytes": 0, "input_bytes": 0}
        while request != NULL:
            found["request_bytes"] += request.bytes_capacity + request.iov_capacity * sizeof(iovec)
            request = request.next
        for index in range(self.core.node_count):
            found["input_bytes"] += self.core.nodes[index].input_capacity
        return found

    # ---------------------------------------------------------------- topics

    def add_topic(self, str name):
        """The dense number of a topic; partitions come with set_leaders. Raises OverflowError after 16,384."""
        cdef bytes encoded = name.encode()
        cdef uint32_t number
        for number in range(self.core.topic_count):
            if self.core.topics[number].name_bytes == len(encoded) and \
                    self.core.topics[number].name[:len(encoded)] == encoded:
                return number
        return append_topic(&self.core, encoded).number

    def set_leaders(self, uint32_t number, list leaders):
        """leaders: for each partition the index of the leader's node, -1 unknown. A topic never shrinks here.

        How many of them it has: all, or as many as before if there is no room for those that were added.
        """
        cdef Topic *topic = self.core.topics[number]
        cdef int32_t index, node
        cdef Partition *partition
        if len(leaders) - topic.partition_count <= <Py_ssize_t>(CYP_PARTITIONS_MAX - self.core.partition_count):
            while topic.partition_count < len(leaders):
                append_partition(&self.core, topic)
        topic.unled = False
        for index in range(topic.partition_count):
            node = leaders[index] if index < len(leaders) else -1
            partition = topic.partitions[index]
            leader = self.core.nodes[node] if node >= 0 else NULL
            while partition != NULL and partition.leader != leader:  # of both lanes
                delist(partition)
                partition.leader = leader
                relist(partition)
                partition = partition.twin
        if topic.sticky < 0 or topic.partitions[topic.sticky].leader == NULL:
            choose_sticky(&self.core, topic)
        return min(topic.partition_count, <int32_t>len(leaders))

    # ---------------------------------------------------------------- brokers

    def add_node(self, int32_t broker_id):
        """A node for a broker (negative id: a bootstrap address); its index."""
        cdef Node *node = <Node *>calloc(1, sizeof(Node))
        cdef Node **grown = <Node **>realloc(self.core.nodes, (self.core.node_count + 1) * sizeof(Node *))
        if node == NULL or grown == NULL:
            free(node)
            raise MemoryError
        self.core.nodes = grown
        node.id = broker_id
        node.index = self.core.node_count
        node.fd = -1
        node.state = CONNECTION_CLOSED
        node.epoll_tag = TAG_NODE << TAG_SHIFT | node.index
        self.core.nodes[node.index] = node
        self.core.node_count += 1
        return node.index

    def set_node_id(self, uint32_t index, int32_t broker_id):
        """A bootstrap address turned out to be this broker: its connection is used on."""
        self.core.nodes[index].id = broker_id

    def open_connection(self, uint32_t index, int fd):
        """Takes a connecting non-blocking socket; owns `fd`. EVENT_CONNECTED or EVENT_CLOSED follows."""
        cdef Node *node = self.core.nodes[index]
        error = epoll_add(self.core.epoll_fd, fd, node.epoll_tag, EPOLLIN | EPOLLOUT)
        if error:
            os.close(fd)
            raise OSError(error, os.strerror(error))
        node.fd = fd
        node.state = CONNECTION_CONNECTING
        node.wants_write = False
        node.active_ns = monotonic_ns()

    def connection_ready(self, uint32_t index, int16_t produce_version):
        """ApiVersions are agreed: batches may go out."""
        cdef Node *node = self.core.nodes[index]
        if node.state == CONNECTION_NEGOTIATING:
            node.produce_version = produce_version
            node.state = CONNECTION_READY

    def connection_state(self, uint32_t index):
        """(state, requests in flight): "closed", "connecting", "negotiating" or "ready"."""
        cdef Node *node = self.core.nodes[index]
        return ("closed", "connecting", "negotiating", "ready")[node.state], node.in_flight

    def idle_ms(self, uint32_t index):
        """For how long nothing went over the connection; 0 while a request is in flight."""
        cdef Node *node = self.core.nodes[index]
        if node.in_flight:
            return 0
        return (monotonic_ns() - node.active_ns) // 1_000_000

    def topics(self):
        """Names of all topics that have a number, in its order: a front-end has asked for each of them."""
        cdef uint32_t number
        return [
            self.core.topics[number].name[:self.core.topics[number].name_bytes].decode()
            for number in range(self.core.topic_count)
        ]

    def forget_topic(self, str name):
        """The topic is in the metadata no more: its next batch asks for a refresh."""
        self.core.topics[self.add_topic(name)].unled = True

    def take_used_topics(self):
        """Names of the topics that batches came for or went to since the last call, or that have batches still."""
        cdef uint32_t number
        names = []
        for number in range(self.core.partition_count):
            if self.core.partitions[number].queue_count or self.core.partitions[number].unresolved:
                self.core.partitions[number].topic.used = True
        for number in range(self.core.topic_count):
            if self.core.topics[number].used:
                self.core.topics[number].used = False
                names.append(self.core.topics[number].name[:self.core.topics[number].name_bytes].decode())
        return names

    def close_node(self, uint32_t index):
        """Closes the connection; what was in flight is to be sent again."""
        self.core.now = monotonic_ns()
        close_connection(&self.core, self.core.nodes[index], CLOSE_BY_US)

    def next_correlation_id(self, uint32_t index):
        """For a request that Python encodes and sends next."""
        cdef Node *node = self.core.nodes[index]
        correlation_id = node.next_correlation_id
        node.next_correlation_id = (node.next_correlation_id + 1) & 0x7fffffff
        return correlation_id

    def send(self, uint32_t index, bytes frame, int32_t correlation_id):
        """Sends a framed request; its response comes as an event. Raises ConnectionError if there is no connection."""
        cdef Node *node = self.core.nodes[index]
        cdef Request *request
        if node.state != CONNECTION_NEGOTIATING and node.state != CONNECTION_READY:
            raise ConnectionError("not connected")
        request = new_request(&self.core, <uint32_t>len(frame), 1, 0)
        if request == NULL:
            raise MemoryError
        memcpy(request.bytes, <const uint8_t *>frame, len(frame))
        request.kind = REQUEST_CONTROL
        request.acks = 1
        request.correlation_id = correlation_id
        request.bytes_length = <uint32_t>len(frame)
        request.iov[0].iov_base = request.bytes
        request.iov[0].iov_len = len(frame)
        request.iov_count = 1
        request.total = len(frame)
        self.core.now = monotonic_ns()
        enqueue(node, request)
        flush_out(&self.core, node)

    def set_producer_id(self, int64_t producer_id, int16_t epoch):
        """The answer to EVENT_PRODUCER_ID: for the ordinary lanes, or else for the penalty lanes."""
        if self.core.wants_penalty_id and not self.core.wants_producer_id:
            self.core.penalty_producer_id = producer_id
            self.core.penalty_producer_epoch = epoch
            self.core.wants_penalty_id = False
            return
        self.core.producer_id = producer_id
        self.core.producer_epoch = epoch
        self.core.wants_producer_id = False
        CRASHPOINT(b"attach.identity-came")
        # -1 in between: a successor never sees one's epoch with the other's id
        store_release(<uint64_t *>&self.core.state_header.producer_id, <uint64_t>-1)
        self.core.state_header.producer_epoch = epoch
        store_release(<uint64_t *>&self.core.state_header.producer_id, <uint64_t>producer_id)
        if self.core.wants_penalty_id:
            push_event(&self.core, EVENT_PRODUCER_ID, 0, 0, 0)  # one answer is for one lane

    # ---------------------------------------------------------------- running

    def watch(self, int fd):
        """run() returns when `fd` is readable or hung up."""
        error = epoll_add(self.core.epoll_fd, fd, TAG_WATCHED << TAG_SHIFT | <uint32_t>fd, EPOLLIN)
        if error:
            raise OSError(error, os.strerror(error))
        self._watched[fd] = True

    def unwatch(self, int fd):
        """Before `fd` is closed."""
        if self._watched.pop(fd, None):
            epoll_remove(self.core.epoll_fd, fd)

    def run(self, double timeout_ms):
        """Turns until there is something for Python, or `timeout_ms` is over: (events, watched descriptors).

        An event is (kind, node index, correlation id, error, attach id, payload or None).
        """
        cdef uint64_t deadline = monotonic_ns() + <uint64_t>(max(timeout_ms, 0) * 1e6)
        self._ready = []
        while not self._turn(deadline):
            pass
        self._bury()
        return self._take_events(), self._ready

    cdef bint _turn(self, uint64_t deadline_ns) except -1:
        """One turn; True when Python has something to do or the time is over."""
        cdef Core *core = &self.core
        cdef Node *node
        cdef cyp_epoll_event events[EVENTS_MAX]
        cdef uint32_t index, kind
        cdef int found
        cdef bint watched = False
        cdef uint64_t wait
        with nogil:
            core.now = monotonic_ns()
            core.next_timer_ns = deadline_ns
            core.totals.turns += 1
            core.packing_ns = 0
            store_relaxed(&core.state_header.tick, core.state_header.tick + 1)
            accumulate(core)
            linger(core)
            expire(core)
            check_timeouts(core)
            leave_stuck(core)
            for index in range(core.node_count):
                # each in turn is the first: the time for compressing is used up by whoever comes before
                node = core.nodes[(core.totals.turns + index) % core.node_count]
                while drain(core, node):
                    flush_out(core, node)
            untouch(core)
            announce(core)
            if core.live_batches:
                note_timer(core, core.now + PENDING_TURN_NS)  # a supervisor takes a standing tick for a hang
            wait = 0
            if not _has_news(core) and core.next_timer_ns > core.now:
                if saturated(core):
                    # nobody needs to wake us for a batch; their delivery timeouts begin soon all the same
                    note_timer(core, core.now + SATURATED_NS)
                    sender_sleeps(core.snapshot, 0)
                else:
                    sender_sleeps(core.snapshot, core.next_timer_ns)
                if not anything_submitted(core):
                    wait = core.next_timer_ns - core.now
                    core.totals.sleeps += 1
            store_relaxed(&core.state_header.pending, core.live_batches)
            found = epoll_collect(core.epoll_fd, events, EVENTS_MAX, wait)
            store_relaxed(&core.state_header.pending, core.live_batches + 1)  # awake: whatever it does is work
            sender_wakes(core.snapshot)
            core.now = monotonic_ns()
            for index in range(<uint32_t>found):
                kind = events[index].tag >> TAG_SHIFT
                if kind == TAG_NODE:
                    on_socket(core, core.nodes[events[index].tag & TAG_MASK], events[index].events)
                elif kind == TAG_WATCHED:
                    watched = True
            untouch(core)
            announce(core)
            if CYPRODUCER_DEBUG:
                check_core(core)
        if watched:
            for index in range(<uint32_t>found):
                if events[index].tag >> TAG_SHIFT == TAG_WATCHED:
                    self._ready.append(events[index].tag & TAG_MASK)
        return watched or _has_news(core) or core.now >= deadline_ns

    def _take_events(self):
        cdef Event *event
        cdef uint32_t index
        events = []
        if self.core.refresh_wanted:
            self.core.refresh_wanted = False
            events.append(("refresh", 0, 0, 0, 0, None))
        for index in range(self.core.event_count):
            event = &self.core.events[index]
            payload = None
            if event.payload != NULL:
                payload = event.payload[:event.payload_length]
                free(event.payload)
            kind = ("", "connected", "closed", "response", "producer_id", "condemned", "work")[event.kind]
            events.append((kind, event.node, event.correlation_id, event.error, event.attach_id, payload))
        self.core.event_count = 0
        return events

    # ---------------------------------------------------------------- observing

    def take_failures(self):
        """[(attach id, topic, error code, records)] since the last call."""
        cdef uint32_t index
        failures = []
        for index in range(self.core.failure_count):
            failure = &self.core.failures[index]
            topic = ""
            if failure.topic < self.core.topic_count:
                topic = self.core.topics[failure.topic].name[:self.core.topics[failure.topic].name_bytes].decode()
            failures.append((failure.attach_id, topic, failure.error, failure.records))
        self.core.failure_count = 0
        return failures

    def totals(self):
        """Counters since the start: records, bytes, batches, requests, retries, errors, merged, turns, sleeps."""
        return dict(self.core.totals)

    # ---------------------------------------------------------------- the end

    def close(self):
        """Closes every connection and unmaps everything. Again: nothing."""
        cdef FrontEnd *front_end
        cdef uint32_t index
        if self._closed:
            return
        self._closed = True
        for index in range(self.core.node_count):
            close_connection(&self.core, self.core.nodes[index], CLOSE_BY_US)
        self._take_events()
        while self.core.front_ends != NULL:
            front_end = self.core.front_ends
            front_end.outcomes_header.control = CYP_CONTROL_DETACHED
            end_front_end(&self.core, front_end)
        self._bury()
        if CYPRODUCER_DEBUG:
            assert not self._regions and not self.core.front_end_count, "every front-end is unmapped at the end"
        os.close(self.core.epoll_fd)
        core_free(&self.core)
        self.core.wires = NULL
        self.snapshot.region.close()
        self.state.close()

    def abandon(self):
        """In a forked child: frees private memory and closes brokers' sockets, which stay the parent's connections.

        No mapping is touched; there is none in a child. The descriptors of `descriptors` and of the regions stay
        open and belong to the caller.
        """
        cdef FrontEnd *front_end
        cdef Node *node
        cdef uint32_t index
        if self._closed:
            return
        self._closed = True
        self._take_events()
        for index in range(self.core.node_count):
            node = self.core.nodes[index]
            if node.state != CONNECTION_CLOSED:
                os.close(node.fd)
            recycle_all(&self.core, node.sent_head)
            recycle_all(&self.core, node.out_head)
        os.close(self.core.epoll_fd)
        while self.core.front_ends != NULL:
            end_front_end(&self.core, self.core.front_ends)
        while self.core.ended != NULL:
            front_end = self.core.ended
            self.core.ended = front_end.next
            free_front_end(front_end)
        for arena, outcomes in self._regions.values():
            arena.forget()
            outcomes.forget()
        self._regions.clear()
        core_free(&self.core)
        self.core.wires = NULL
        self.snapshot.region.forget()
        self.state.forget()


cdef inline bint _has_news(Core *core) noexcept nogil:
    """Is there something for Python?"""
    return core.event_count > 0 or core.refresh_wanted or core.ended != NULL or core.failure_count > 0
