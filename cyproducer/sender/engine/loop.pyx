"""Runs the native loop: clock, submission rings, timers, drain, write, epoll, read, outcomes.

One iteration is `nogil` C from end to end. Rare work (attaching, connecting, metadata, producer ids) goes to Python as
an event, and Python answers through the methods here.
"""


cdef enum:
    EVENTS_MAX = 256
    SATURATED_NS = 100000000    # when no broker takes more requests, the rings are looked at this often
    PENDING_TURN_NS = 1000000000  # longest sleep while there are batches


cdef inline void update_clock(Core *core) noexcept nogil:
    """Set the time of the loop, which is used until the next call."""
    core.loop.now = monotonic_ns()


cdef inline void schedule_timer(Core *core, uint64_t at_ns) noexcept nogil:
    """Make sure that the loop does not sleep beyond `at_ns`."""
    if at_ns < core.loop.next_timer_ns:
        core.loop.next_timer_ns = at_ns


cdef inline void want_refresh(Core *core) noexcept nogil:
    """Request a metadata refresh, which Python makes after this loop iteration."""
    core.loop.refresh_wanted = True


cdef inline uint64_t draw_random(Core *core) noexcept nogil:
    """Return a pseudo-random number (xorshift64), which is good enough to draw a partition or a pause."""
    core.loop.random ^= core.loop.random << 13
    core.loop.random ^= core.loop.random >> 7
    core.loop.random ^= core.loop.random << 17
    return core.loop.random


# ------------------------------------------------------------ activity
#
# Tracks which front-ends the loop has to look at, so that an idle front-end costs no time in a loop iteration.
#
#  - Active front-ends are in a list: the loop looks at their submission rings in every iteration. A front-end that has
#    submitted nothing for a while becomes idle. Its next submission writes the sender's eventfd (cyp_front_end_idles in
#    rings.h).
#  - Front-ends with a deadline (linger time or delivery timeout) are in a heap. A key is never later than the
#    front-end's next deadline. A key is corrected only when it reaches the top of the heap, so a batch that is done
#    before its deadline costs nothing here.


cdef int reserve_places(Core *core) except -1:
    """Make sure that the heap has a place for one more front-end than there are. Raise MemoryError."""
    cdef FrontEnd **grown
    cdef uint32_t room = 2 * (core.front_end.count + 32)
    if core.front_end.count + 1 > core.loop.deadline_room:
        grown = <FrontEnd **>realloc(core.loop.deadlines, room * sizeof(FrontEnd *))
        if grown == NULL:
            raise MemoryError
        core.loop.deadlines = grown
        core.loop.deadline_room = room
    return 0


# ---------------------------------------------------------------- active front-ends


cdef void activate(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make the loop look at the front-end's submission ring from the next iteration on."""
    if front_end.loop.active or front_end.front_ends.detached:
        return
    front_end_acts(&front_end.outcomes_header.idle)
    front_end.loop.active = True
    front_end.loop.active_ns = core.loop.now
    front_end.loop.active_previous = NULL
    front_end.loop.active_next = core.loop.active
    if core.loop.active != NULL:
        core.loop.active.loop.active_previous = front_end
    core.loop.active = front_end


cdef void deactivate(Core *core, FrontEnd *front_end) noexcept nogil:
    """Stop the loop from looking at the front-end's submission ring."""
    if not front_end.loop.active:
        return
    front_end.loop.active = False
    if front_end.loop.active_previous != NULL:
        front_end.loop.active_previous.loop.active_next = front_end.loop.active_next
    else:
        core.loop.active = front_end.loop.active_next
    if front_end.loop.active_next != NULL:
        front_end.loop.active_next.loop.active_previous = front_end.loop.active_previous


cdef bint make_idle(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make an active front-end idle, unless it submits something at this moment. Return whether it is idle."""
    front_end_idles(&front_end.outcomes_header.idle)
    if submit_tail(&front_end.header.submit_tail) != front_end.intake.submit_head:
        front_end_acts(&front_end.outcomes_header.idle)
        return False
    deactivate(core, front_end)
    return True


# ---------------------------------------------------------------- deadlines


cdef uint64_t _deadline(FrontEnd *front_end) noexcept nogil:
    """Return the earlier of the front-end's next linger deadline and delivery timeout; UINT64_MAX if it has neither."""
    cdef uint64_t at = UINT64_MAX
    if front_end.intake.linger_head != NULL:
        at = front_end.intake.linger_head.intake.created_ns + front_end.settings.linger_ns
    if front_end.outcome.age_head != NULL:
        at = min(at, front_end.outcome.age_head.intake.born_ns + <uint64_t>front_end.settings.delivery_timeout_ns)
    return at


cdef void _put(Core *core, uint32_t place, FrontEnd *front_end) noexcept nogil:
    core.loop.deadlines[place] = front_end
    front_end.loop.deadline_place = place + 1


cdef void _sift_up(Core *core, uint32_t place) noexcept nogil:
    cdef FrontEnd *front_end = core.loop.deadlines[place]
    cdef uint32_t parent
    while place > 0:
        parent = (place - 1) // 2
        if core.loop.deadlines[parent].loop.deadline_ns <= front_end.loop.deadline_ns:
            break
        _put(core, place, core.loop.deadlines[parent])
        place = parent
    _put(core, place, front_end)


cdef void _sift_down(Core *core, uint32_t place) noexcept nogil:
    cdef FrontEnd *front_end = core.loop.deadlines[place]
    cdef uint32_t child = 2 * place + 1
    while child < core.loop.deadline_count:
        if (
            child + 1 < core.loop.deadline_count
            and core.loop.deadlines[child + 1].loop.deadline_ns
            < core.loop.deadlines[child].loop.deadline_ns
        ):
            child += 1
        if front_end.loop.deadline_ns <= core.loop.deadlines[child].loop.deadline_ns:
            break
        _put(core, place, core.loop.deadlines[child])
        place = child
        child = 2 * place + 1
    _put(core, place, front_end)


cdef void schedule_deadline(Core *core, FrontEnd *front_end, uint64_t at_ns) noexcept nogil:
    """Note that the first batch of one of the front-end's lists has this deadline."""
    if front_end.loop.deadline_place == 0:
        front_end.loop.deadline_ns = at_ns
        core.loop.deadlines[core.loop.deadline_count] = front_end
        core.loop.deadline_count += 1
        _sift_up(core, core.loop.deadline_count - 1)
    elif at_ns < front_end.loop.deadline_ns:
        front_end.loop.deadline_ns = at_ns
        _sift_up(core, front_end.loop.deadline_place - 1)


cdef void forget_deadline(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take the front-end out of the heap."""
    cdef uint32_t place = front_end.loop.deadline_place - 1
    cdef FrontEnd *last
    if front_end.loop.deadline_place == 0:
        return
    front_end.loop.deadline_place = 0
    core.loop.deadline_count -= 1
    last = core.loop.deadlines[core.loop.deadline_count]
    if last != front_end:
        _put(core, place, last)
        _sift_up(core, place)
        _sift_down(core, last.loop.deadline_place - 1)


cdef FrontEnd *next_due(Core *core) noexcept nogil:
    """Return a front-end whose deadline has passed. If there is none, return NULL and note the next one as a timer."""
    cdef FrontEnd *front_end
    cdef uint64_t at
    while core.loop.deadline_count:
        front_end = core.loop.deadlines[0]
        at = _deadline(front_end)
        if at == UINT64_MAX:
            forget_deadline(core, front_end)
        elif at > front_end.loop.deadline_ns:
            front_end.loop.deadline_ns = at
            _sift_down(core, 0)
        elif at <= core.loop.now:
            return front_end
        else:
            schedule_timer(core, at)
            return NULL
    return NULL


# ------------------------------------------------------------ the loop


# In the order of the enumerators.
cdef tuple CONNECTION_STATES = tuple(connection_state.ConnectionState)


cdef class Loop:
    """The data plane of one sender.

    front_ends: the front-ends that it serves. The loop closes them with itself.
    """

    cdef readonly FrontEnds front_ends
    cdef Core *core                 # of the front-ends
    cdef dict _watched              # fd -> True
    cdef list _ready                # watched descriptors that were ready in the last call of run()

    def __cinit__(self, FrontEnds front_ends not None):
        self.front_ends = front_ends
        self.core = &front_ends.core
        self._watched = {}
        self._ready = []
        self.core.loop.random = int.from_bytes(os.urandom(8), "little") | 1

    def set_client_id(self, str client_id not None):
        """Set what the header of each request has from now on. Only the first 255 bytes count."""
        cdef bytes name = client_id.encode()[:255]
        memcpy(self.core.client_id, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        self.core.client_id_bytes = <int16_t>PyBytes_GET_SIZE(name)

    def retry_delay_ns(self, uint32_t attempts):
        """Return how long a batch would wait after `attempts` failed attempts, with new random jitter in each call."""
        return backoff_ns(self.core, attempts)

    def spare_memory(self):
        """Return the memory kept for the next requests and responses: {"requests", "request_bytes", "input_bytes"}."""
        cdef Request *request = self.core.produce.spare_requests
        cdef uint32_t index
        found = {"requests": self.core.produce.spare_count, "request_bytes": 0, "input_bytes": 0}
        while request != NULL:
            found["request_bytes"] += request.produce.bytes_capacity + request.produce.iov_capacity * sizeof(iovec)
            request = request.connection.next
        for index in range(self.core.connection.node_count):
            found["input_bytes"] += self.core.connection.nodes[index].connection.input_capacity
        return found

    # ---------------------------------------------------------------- topics

    def add_topic(self, str name):
        """Return the number of a topic, which is added if needed; set_leaders adds partitions.

        Raise OverflowError if 16,384 topics are in use, ValueError if the name is too long.
        """
        return self.front_ends.add_topic(name)

    def room_for_topic(self, str name):
        """Return whether the topic is known, and how many topics can still be added."""
        left = CYP_TOPICS_MAX - self.core.topics.count + self.core.topics.free_topic_count
        return name in self.front_ends.topic_numbers, left

    def set_leaders(self, uint32_t number, list leaders, list epochs):
        """Set the leaders of a topic's partitions, and add new partitions. A topic never shrinks.

        `leaders` has the index of the leader's node for each partition, -1 if unknown, and `epochs` its epoch, -1 if
        unknown. Return how many partitions the topic has: all, or as many as before if the table has no space for the
        new ones.
        """
        cdef Topic *topic = self.core.topics.table[number]
        cdef int32_t index, node, epoch
        cdef Lane *lane
        if len(leaders) - topic.topics.partition_count <= <Py_ssize_t>rows_left(self.core):
            while topic.topics.partition_count < len(leaders):
                append_partition(self.core, topic)
        topic.loop.not_refreshed = False
        for index in range(topic.topics.partition_count):
            node = leaders[index] if index < len(leaders) else -1
            lane = topic.topics.partitions[index]
            leader = self.core.connection.nodes[node] if node >= 0 else NULL
            epoch = epochs[index] if node >= 0 else -1
            set_broker(self.core, lane, leader, epoch)
            if lane.topics.other_lane != NULL:
                set_broker(self.core, lane.topics.other_lane, leader, epoch)
            lane = lane.topics.transactional
            while lane != NULL:
                set_broker(self.core, lane, leader, epoch)
                lane = lane.topics.next_transactional
        if topic.partitioner.sticky < 0 or topic.topics.partitions[topic.partitioner.sticky].drain.leader == NULL:
            choose_sticky(self.core, topic)
        schedule_load(self.core, topic)
        return min(topic.topics.partition_count, <int32_t>len(leaders))

    def set_topic_id(self, uint32_t number, bytes topic_id):
        """Set the topic's id of 16 bytes; empty: the brokers have no topic ids.

        A topic with another id was created again, and its log knows no producer. Its partitions begin a new epoch: then
        only one batch is in flight until the first one is acknowledged.
        """
        cdef Topic *topic = self.core.topics.table[number]
        cdef Lane *lane
        cdef bint created_again = topic.loop.has_id and len(topic_id) == 16 and topic.loop.id[:16] != topic_id
        cdef int32_t index
        topic.loop.has_id = len(topic_id) == 16
        if topic.loop.has_id:
            memcpy(topic.loop.id, <const char *>topic_id, 16)
        for index in range(topic.topics.partition_count if created_again else 0):
            lane = topic.topics.partitions[index]
            while lane != NULL:
                if lane.idempotence.producer_id >= 0 and (lane.transaction == NULL or is_open(lane.transaction)):
                    demand_epoch(lane)
                lane = next_lane(lane)

    def set_topic_error(self, uint32_t number, int16_t error):
        """Set Kafka's error code for the topic in the last metadata response; 0: none."""
        self.core.topics.table[number].loop.error = error

    # ---------------------------------------------------------------- brokers

    def add_node(self, int32_t broker_id):
        """Add a node for a broker (negative id: a bootstrap address). Return its index. Raise MemoryError."""
        cdef Node *node = new_node(self.core, broker_id, NULL)
        if node == NULL:
            raise MemoryError
        return node.index

    def set_node_id(self, uint32_t index, int32_t broker_id):
        """Give a bootstrap address the id of its broker, which keeps using the connection."""
        self.core.connection.nodes[index].id = broker_id
        find_node_row(self.core, self.core.connection.nodes[index])

    def set_in_rack(self, uint32_t index, bint in_rack):
        """Set whether a broker is in the rack of this host (client_rack)."""
        self.core.connection.nodes[index].loop.in_rack = in_rack

    def open_connection(self, uint32_t index, int fd):
        """Take over `fd`, a connecting non-blocking socket. EVENT_CONNECTED or EVENT_CLOSED follows. Raise OSError."""
        cdef Node *node = self.core.connection.nodes[index]
        error = epoll_add(self.core.epoll_fd, fd, node.epoll_tag, CYP_EPOLLIN | CYP_EPOLLOUT)
        if error:
            os.close(fd)
            raise OSError(error, os.strerror(error))
        begin_connection(self.core, node, fd)

    def connection_state(self, uint32_t index):
        """Return (ConnectionState, requests in flight)."""
        cdef Node *node = self.core.connection.nodes[index]
        return CONNECTION_STATES[node.connection.state], node.connection.in_flight

    def can_send_request(self, uint32_t index):
        """Return whether the broker can take another request, as canSendRequest() in Kafka's NetworkClient.

        It is ready and does not throttle, has read what was sent, and has less than the allowed requests in flight.
        """
        cdef Node *node = self.core.connection.nodes[index]
        return (
            node.connection.state == CONNECTION_READY and node.connection.muted_until_ns <= monotonic_ns()
            and node.connection.out_head == NULL and node.connection.in_flight < self.core.settings.max_in_flight
        )

    def throttle(self, uint32_t index, int32_t throttle_ms):
        """Send the broker no requests for `throttle_ms`, as it demands in an answer."""
        throttle(self.core.connection.nodes[index], monotonic_ns(), throttle_ms)

    def count_throttle(self, int32_t throttle_ms):
        """Count the throttle time of a response, whether or not the client must wait for it."""
        update_clock(self.core)
        count_throttle(self.core, throttle_ms)

    def set_auth_failed(self, bint failed):
        """Set whether authentication has failed and no broker can be used. It has not once a broker is ready."""
        self.core.loop.auth_failed = failed

    def set_metadata_time(self):
        """Set the time of the last metadata, for the metrics."""
        store_relaxed(&self.core.metrics.metadata_ns, monotonic_ns())

    def throttled_ms(self, uint32_t index):
        """Return for how many milliseconds the broker still gets no requests, rounded up; 0 if it is not throttled."""
        cdef uint64_t now = monotonic_ns()
        cdef uint64_t until = self.core.connection.nodes[index].connection.muted_until_ns
        return (until - now + 999_999) // 1_000_000 if until > now else 0

    def wants_connection(self, uint32_t index):
        """Return whether there are batches for the broker. If not, the next one is reported with EVENT_WORK again."""
        cdef Node *node = self.core.connection.nodes[index]
        if node.drain.ready_count or node.drain.lingering.length:
            return True
        report_work_again(node)
        return False

    def idle_ms(self, uint32_t index):
        """Return for how long the connection was not used; 0 while a request is in flight or a batch waits for it."""
        cdef Node *node = self.core.connection.nodes[index]
        if node.connection.in_flight or node.drain.ready_count or node.drain.lingering.length:
            return 0
        return (monotonic_ns() - node.connection.active_ns) // 1_000_000

    def partition_name(self, uint32_t row):
        """Return (topic, partition) of a row of the partition table."""
        cdef Lane *lane = self.core.topics.lanes[row]
        return lane.topic.name[:lane.topic.name_bytes].decode(), lane.number

    def topics_without_metadata(self):
        """Return the names of topics that a front-end has requested and that have no usable metadata yet."""
        snapshot = self.front_ends.snapshot
        return [name for name, number in self.front_ends.topic_numbers.items() if not snapshot.is_usable(number)]

    def topics(self):
        """Return the names of all topics that have a number."""
        return list(self.front_ends.topic_numbers)

    def forget_topic(self, str name):
        """Note that the topic has left the metadata, which is not kept up to date from here on.

        Its next batch requests a refresh, and so does the next front-end that needs it. Do nothing if it has no number.
        """
        number = self.front_ends.topic_numbers.get(name)
        if number is not None:
            self.core.topics.table[<uint32_t>number].loop.not_refreshed = True
            self.front_ends.snapshot.forget(number)

    def take_used_topics(self):
        """Return the names of topics with batches queued or sent since the last call, or that still have batches."""
        cdef Topic *topic = take_used(self.core)
        cdef Topic *following
        names = []
        while topic != NULL:
            following = topic.topics.next_used
            if has_batches(topic):
                flag_use(self.core, topic)
            names.append(topic.name[:topic.name_bytes].decode())
            topic = following
        return names

    def close_node(self, uint32_t index):
        """Close the connection: see close_connection(). Requests that send() was given get no response."""
        update_clock(self.core)
        close_connection(self.core, self.core.connection.nodes[index], CLOSE_BY_US)

    def next_correlation_id(self, uint32_t index):
        """Return the correlation id for a request that Python encodes and sends next."""
        cdef Node *node = self.core.connection.nodes[index]
        return next_correlation_id(node)

    def send(self, uint32_t index, bytes frame, int32_t correlation_id):
        """Send a framed request; its response comes as an event. Raise ConnectionError or MemoryError."""
        cdef Node *node = self.core.connection.nodes[index]
        cdef Request *request
        if node.connection.state != CONNECTION_NEGOTIATING and node.connection.state != CONNECTION_READY:
            raise ConnectionError("cannot send a request: the broker is not connected")
        request = control_request(self.core, <const uint8_t *>frame, <uint32_t>len(frame), correlation_id)
        if request == NULL:
            raise MemoryError
        update_clock(self.core)
        enqueue(self.core, node, request)
        flush_out(self.core, node)

    def set_producer_id(self, int64_t producer_id, int16_t epoch):
        """Answer EVENT_PRODUCER_ID: set the producer id of the ordinary lanes, or else of the isolation lanes."""
        set_producer_id(self.core, producer_id, epoch)

    def refuse_producer_id(self, int32_t error):
        """Answer EVENT_PRODUCER_ID with Kafka's error code: batches that wait for the producer id fail with it."""
        with nogil:
            update_clock(self.core)
            refuse_producer_id(self.core, error)

    # ---------------------------------------------------------------- running

    def watch(self, int fd):
        """Make run() return when `fd` is readable or hung up. Raise OSError."""
        error = epoll_add(self.core.epoll_fd, fd, TAG_WATCHED << TAG_SHIFT | <uint32_t>fd, CYP_EPOLLIN)
        if error:
            raise OSError(error, os.strerror(error))
        self._watched[fd] = True

    def unwatch(self, int fd):
        """Stop watching `fd`. Must be called before `fd` is closed."""
        if self._watched.pop(fd, None):
            epoll_remove(self.core.epoll_fd, fd)

    def run(self, double timeout_ms):
        """Run iterations until there is work for Python or `timeout_ms` is over. Return (events, ready descriptors).

        The descriptors are those of watch(). The events are those of events.py.
        """
        cdef double most_ms = 0 if self.front_ends.is_unmapping() else max(timeout_ms, 0)
        cdef uint64_t deadline = monotonic_ns() + <uint64_t>(most_ms * 1e6)
        self._ready = []
        while not self._turn(deadline):
            pass
        self.front_ends.unmap_ended()
        return self._take_events(), self._ready

    cdef bint _turn(self, uint64_t deadline_ns) except -1:
        """Run one loop iteration. Return True when Python has work or the time is over."""
        cdef Core *core = self.core
        cdef cyp_epoll_event ready[EVENTS_MAX]
        cdef uint32_t index, kind
        cdef int found
        cdef bint watched = False
        cdef uint64_t wait, began
        with nogil:
            update_clock(core)
            core.loop.next_timer_ns = deadline_ns
            core.totals.turns += 1
            core.compression.packing_ns = 0
            store_relaxed(&core.state_header.tick, core.state_header.tick + 1)
            accumulate(core)
            scan_ending(core)
            _serve_due(core)
            check_timeouts(core)
            if core.loop.now - core.partitioner.sticky_checked_ns >= UNRESPONSIVE_CHECK_NS:
                leave_unresponsive(core)
            if core.partitioner.shares_due != NULL:
                publish_shares(core)
            if core.transactions.failing != NULL:
                end_failed(core)
            untouch(core)
            drain_all(core)
            untouch(core)
            announce(core)
            if core.intake.live_batches:
                # the supervisor kills a sender whose tick does not change
                schedule_timer(core, core.loop.now + PENDING_TURN_NS)
            wait = 0
            if not _has_news(core) and core.loop.next_timer_ns > core.loop.now:
                if saturated(core):
                    # a new batch cannot be sent now, so no wake-up is needed; but its delivery timeout must start soon
                    schedule_timer(core, core.loop.now + SATURATED_NS)
                    sender_sleeps(core.snapshot, 0)
                else:
                    sender_sleeps(core.snapshot, core.loop.next_timer_ns)
                if not anything_submitted(core):
                    wait = core.loop.next_timer_ns - core.loop.now
                    core.totals.sleeps += 1
            store_relaxed(&core.state_header.pending, core.intake.live_batches)
            began = monotonic_ns()
            found = epoll_collect(core.epoll_fd, ready, EVENTS_MAX, wait)
            # awake: not 0, so the tick must change
            store_relaxed(&core.state_header.pending, core.intake.live_batches + 1)
            sender_wakes(core.snapshot)
            update_clock(core)
            count_select(core, core.loop.now - began)
            for index in range(<uint32_t>found):
                kind = ready[index].tag >> TAG_SHIFT
                if kind == TAG_NODE:
                    on_socket(core, core.connection.nodes[ready[index].tag & TAG_MASK], ready[index].events)
                elif kind == TAG_WATCHED:
                    watched = True
                elif core.front_end.tagged[ready[index].tag & TAG_MASK] != NULL:  # a front-end that was idle
                    activate(core, core.front_end.tagged[ready[index].tag & TAG_MASK])
            if found:
                count_work(core, monotonic_ns() - core.loop.now)
            untouch(core)
            announce(core)
            if CYPRODUCER_DEBUG:
                check_core(core)
        if watched:
            for index in range(<uint32_t>found):
                if ready[index].tag >> TAG_SHIFT == TAG_WATCHED:
                    self._ready.append(ready[index].tag & TAG_MASK)
        return watched or _has_news(core) or core.loop.now >= deadline_ns

    def _take_events(self):
        """Return the events for Python and clear them."""
        cdef uint32_t index
        found = []
        if self.core.loop.refresh_wanted:
            self.core.loop.refresh_wanted = False
            found.append(events.RefreshWanted())
        for index in range(self.core.outcome.event_count):
            found.append(_event(&self.core.outcome.events[index]))
        if self.core.transactions.news:
            self.core.transactions.news = False
            for index in range(self.core.transactions.end):
                if self.core.transactions.table[index].has_news:
                    self.core.transactions.table[index].has_news = False
                    found.append(events.TransactionChanged(index))
        if clear_events(self.core):
            found += self._lost_events(found)
        return found

    def _lost_events(self, list stored):
        """Return events that replace those for which there was no memory, made from the state.

        An event reports a change only once. If it is lost, nothing would request a producer id, connect, or detach a
        front-end again. Resync makes Connections compare its states with those of the loop. These events come after the
        stored ones.
        """
        cdef FrontEnd *front_end = self.core.front_end.first
        cdef Request *request
        cdef uint32_t index
        lost = [events.Resync()]
        if self.core.idempotence.wants_producer_id or self.core.idempotence.wants_isolation_id:
            lost.append(events.ProducerIdWanted())
        for index in range(self.core.connection.node_count):
            report_work_again(self.core.connection.nodes[index])
            request = oldest_request(self.core.connection.nodes[index])
            if request != NULL:
                report_silence_again(request)
        known = {event.attach_id for event in stored if type(event) is events.Violated}
        while front_end != NULL:
            if front_end.intake.violation and not front_end.front_ends.detached and front_end.attach_id not in known:
                lost.append(events.Violated(front_end.attach_id, front_end.intake.violation))
            front_end = front_end.front_end.next
        return lost

    # ---------------------------------------------------------------- observing

    def take_failures(self):
        """Return [(attach id, topic, error code, records)] since the last call."""
        cdef uint32_t index
        failures = []
        for index in range(self.core.outcome.failure_count):
            failure = &self.core.outcome.failures[index]
            topic = ""
            if failure.topic < self.core.topics.count:
                topic = (
                    self.core.topics.table[failure.topic].name[
                        :self.core.topics.table[failure.topic].name_bytes
                    ].decode()
                )
            failures.append((failure.attach_id, topic, failure.error, failure.records))
        clear_failures(self.core)
        return failures

    def totals(self):
        """Return counters since the start: records, bytes, batches, requests, retries, errors, merged, turns, ..."""
        return dict(self.core.totals)

    # ---------------------------------------------------------------- the end

    def close(self):
        """Close every connection and the front-ends. A second call does nothing."""
        cdef uint32_t index
        if self.front_ends.is_closed:
            return
        for index in range(self.core.connection.node_count):
            close_connection(self.core, self.core.connection.nodes[index], CLOSE_BY_US)
        self._take_events()
        self.front_ends.close()

    def abandon(self):
        """Free private memory and close the sockets in a forked child; the connections remain the parent's.

        No mapping is changed; the child has none. The descriptors of `FrontEnds.descriptors` and of the regions stay
        open and belong to the caller.
        """
        cdef Node *node
        cdef uint32_t index
        if self.front_ends.is_closed:
            return
        self._take_events()
        for index in range(self.core.connection.node_count):
            node = self.core.connection.nodes[index]
            if node.connection.tls != NULL:
                tls_end(node.connection.tls)
            elif node.connection.fd >= 0:
                os.close(node.connection.fd)
            recycle_all(self.core, node.connection.sent_head)
            recycle_all(self.core, node.connection.out_head)
        self.front_ends.abandon()


cdef inline void _serve_due(Core *core) noexcept nogil:
    """End the linger times and the delivery timeouts that are over."""
    cdef FrontEnd *front_end = next_due(core)
    while front_end != NULL:
        linger(core, front_end)
        if has_expired(core, front_end):
            expire(core, front_end)
        front_end = next_due(core)


cdef inline bint _has_news(Core *core) noexcept nogil:
    """Return whether there is something for Python."""
    return (
        core.outcome.event_count > 0 or core.outcome.events_lost or core.loop.refresh_wanted
        or core.front_ends.ended != NULL or core.outcome.failure_count > 0 or core.transactions.news
    )


cdef object _event(const Event *event):
    """Return an event for Python, and free its payload."""
    cdef bytes payload = None
    if event.payload != NULL:
        payload = event.payload[:event.payload_length]
        free(event.payload)
    if event.kind == EVENT_CONNECTED:
        return events.Connected(event.node)
    if event.kind == EVENT_HANDSHAKE:
        return events.Handshake(event.node)
    if event.kind == EVENT_CLOSED:
        return events.Closed(event.node, event.error)
    if event.kind == EVENT_RESPONSE:
        return events.Answered(event.node, event.correlation_id, payload)
    if event.kind == EVENT_PRODUCER_ID:
        return events.ProducerIdWanted()
    if event.kind == EVENT_VIOLATION:
        return events.Violated(event.subject, event.error)
    if event.kind == EVENT_WORK:
        return events.HasWork(event.node)
    if event.kind == EVENT_STATE_LOST:
        return events.ProducerStateLost(event.node, event.subject)
    if event.kind == EVENT_STATE_DENIED:
        return events.ProducerStateDenied(event.node, event.subject, event.error)
    if event.kind == EVENT_LEADERS:
        return _leaders_named(event.node, payload)
    if event.kind == EVENT_REQUESTS_WAIT:
        return events.RequestsWait(event.node)
    return events.Silent(event.node)


cdef object _leaders_named(uint32_t node, bytes payload):
    """Return the event for a payload that push_leaders() has made."""
    cdef const uint8_t *at = payload
    cdef uint32_t count, index
    cdef LeaderHint leader
    memcpy(&count, at, sizeof(count))
    found = []
    for index in range(count):
        memcpy(&leader, at + sizeof(count) + index * sizeof(leader), sizeof(leader))
        found.append((leader.row, leader.leader_id, leader.leader_epoch))
    return events.LeadersNamed(node, found, payload[sizeof(count) + count * sizeof(leader):])
