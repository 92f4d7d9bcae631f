"""Moves lanes that are slow to acknowledge to a second connection, so that the other lanes of the broker need not wait.

A broker handles the requests of a connection one after another. A Produce request that waits for a slow follower, or
for a disk, delays all requests behind it. A request is late if it is the first one of its connection for longer than
late_after_ns(). If the broker answers an ApiVersions request by the slow connection meanwhile, then the broker itself
does not hang, and some of the lanes of the late request are slow. Which of them is not known, so all are doubted:

    DOUBT_SHARED    a late request contained the lane. It goes by the slow connection, alone in a request (a trial),
                    again and again: a slow lane may also get prompt answers.
    DOUBT_ALONE     a trial of the lane was late: it is slow, or the broker was just then. Its trials go on until
                    SURE_MIN of them were late. Then it shares the requests of the slow connection with other such
                    lanes, and every few requests one of them has a trial. Prompt answers in a row end the doubt: four
                    for each late one, at most PROMPT_MIN.

One late trial explains the late request, so it ends the other trials. If there is another slow lane, the next request
that contains it is late again, and the trials go on. Without a late trial they end some time after the last lane has
joined them (_trials_end). If most trials are late, or most lanes slow, then the broker is slow and not a lane: all
doubts end, and there are none for a while.

A slow connection is a Node of its own (Node.slow, and back by Node.broker). A lane moves with nothing in flight, so the
broker sees its sequences in order. While it has something in flight it is held only if the slow connection can take it.
The slow connection has one request in flight. Trials do not wait behind a lane that is slow (trials_wait), and such a
lane waits until they have ended (has_trials). If the slow connection ends or cannot be opened, its lanes are not
doubted any more, and go by the first connection. Doubts are private to this process: a successor begins without them.
"""


# ------------------------------------------------------------ latency
#
# Measures how long a broker takes for a Produce request, and says from when on an answer is late.
#
# The time counts from when the request is the first one of its connection, because a broker handles the requests of a
# connection one after another. The average falls faster than it rises: a slow partition that is in many requests must
# not raise it before the partition is found. So an answer is compared with what the broker usually can do.


cdef enum:
    LATE_MIN_NS = 25000000              # no answer is late before
    LATE_FACTOR = 4                     # an answer is late after this multiple of the average
    SAMPLES_MIN = 8                     # before so many answers the average is not known
    PAUSE_MIN_NS = 250000000
    PAUSE_MAX_NS = 4000000000
    SECOND_LOOK_NS = 60000000000
    SECOND_LOOK_MAX_NS = 3840000000000


cdef inline bint is_known(const Latency *latency) noexcept nogil:
    """Return whether there were enough answers to judge one."""
    return latency.samples >= SAMPLES_MIN


cdef inline uint64_t late_after_ns(const Latency *latency) noexcept nogil:
    """Return after which time an answer is late."""
    return max(<uint64_t>LATE_MIN_NS, LATE_FACTOR * latency.average_ns)


cdef inline void add_sample(Latency *latency, uint64_t taken_ns, uint64_t now) noexcept nogil:
    """Count an answer. A late one does not count: trials show whether the broker has become slower."""
    if not is_known(latency):
        latency.average_ns = (latency.average_ns * latency.samples + taken_ns) // (latency.samples + 1)
        latency.samples += 1
        return
    if taken_ns > late_after_ns(latency):
        taken_ns = latency.average_ns
    if taken_ns < latency.average_ns:
        latency.average_ns -= (latency.average_ns - taken_ns) // 8
    else:
        latency.average_ns += (taken_ns - latency.average_ns) // 32
    _look_again(latency, now)


cdef inline void _look_again(Latency *latency, uint64_t now) noexcept nogil:
    """Forget a large average from time to time, in case that a partition has been slow for as long as it is measured.

    If the broker itself is slow, this causes a few trials. So the pauses grow.
    """
    if latency.average_ns <= LATE_MIN_NS:
        latency.second_look_ns = 0
    elif latency.second_look_ns == 0:
        latency.second_look_pause_ns = max(latency.second_look_pause_ns, <uint64_t>SECOND_LOOK_NS)
        latency.second_look_ns = now + latency.second_look_pause_ns
    elif now >= latency.second_look_ns:
        latency.second_look_pause_ns = min(2 * latency.second_look_pause_ns, <uint64_t>SECOND_LOOK_MAX_NS)
        latency.second_look_ns = 0
        latency.average_ns = 0


cdef inline void note_slow_broker(Latency *latency, uint64_t taken_ns) noexcept nogil:
    """Note that the broker itself takes this long now."""
    latency.average_ns = max(latency.average_ns, taken_ns)


cdef inline void note_slow_lane(Latency *latency) noexcept nogil:
    """Note that a lane is slow, and the broker is not."""
    latency.pause_ns = 0
    latency.second_look_pause_ns = 0


cdef inline void begin_alarm(Latency *latency, uint64_t trials_wait_ns) noexcept nogil:
    """Note that lanes are doubted."""
    latency.trials_wait_ns = trials_wait_ns
    if not latency.alarmed:
        latency.alarmed = True
        latency.found = False


cdef inline uint64_t false_alarm_ns(Latency *latency) noexcept nogil:
    """Return how long to doubt nobody after a false alarm: longer after each of them, until a lane is slow."""
    latency.pause_ns = min(max(2 * latency.pause_ns, <uint64_t>PAUSE_MIN_NS), <uint64_t>PAUSE_MAX_NS)
    return latency.pause_ns


# ------------------------------------------------------------ doubts


cdef enum:
    SURE_MIN = 4                    # late trials after which a lane is certainly slow


cdef inline bint is_tried(const Lane *lane) noexcept nogil:
    """Return whether the lane has a request of its own on the slow connection: it may be slow, or not."""
    return (
        lane.drain.leader.broker != NULL
        and (lane.slow_lanes.doubt == DOUBT_SHARED or lane.slow_lanes.late_answers < SURE_MIN)
    )


cdef inline bint trials_wait(const Node *broker) noexcept nogil:
    """Return whether trials must wait: the slow connection waits for the answer to a lane that is slow."""
    cdef const Request *request = broker.slow.connection.sent_head
    return broker.slow_lanes.latency.trials_wait_ns and request != NULL and request.kind == REQUEST_PRODUCE \
        and request.produce.wires[0].lane.slow_lanes.doubt == DOUBT_ALONE


cdef inline bint has_trials(const Node *broker) noexcept nogil:
    """Return whether the slow connection must be left to trials: they are running, or about to begin."""
    return (
        broker.slow_lanes.latency.alarmed
        and (broker.slow_lanes.trials_end_ns or broker.slow_lanes.latency.trials_wait_ns)
    )


cdef inline bint is_held(const Lane *lane) noexcept nogil:
    """Return whether the lane waits until nothing of it is in flight.

    Either it then moves to the slow connection, or something is in flight there. The latter is only possible if its
    partition has had another leader meanwhile.
    """
    cdef const Node *slow = lane.drain.leader.slow
    cdef const WireBatch *wire = lane.wire.head
    if slow == NULL or not lane.wire.in_flight:
        return False
    if lane.slow_lanes.doubt != DOUBT_NONE and slow.connection.state == CONNECTION_READY \
            and not (lane.slow_lanes.doubt == DOUBT_SHARED and trials_wait(lane.drain.leader)):
        return True
    while wire != NULL and slow.connection.in_flight:
        if wire.wire.state == WIRE_IN_FLIGHT and wire.wire.request.connection.node == slow:
            return True
        wire = wire.wire.next
    return False


cdef enum:
    PROMPT_MIN = 8                  # prompt answers in a row that end any doubt
    TRIALS_FACTOR = 4
    LATE_TRIALS_MIN = 4
    TRIALS_COUNTED = 16
    LATE_MAX_NS = 500000000
    RECENT_NS = 10000000000         # a lane that was answered since counts as one with data
    TRIALS_WAIT_NS = 500000000      # so long trials wait for the answer to a slow lane, and slow lanes for trials
    BUSY_NS = 1000000000            # so long trials wait for the answer to another request
    SLOW_BROKER_NS = 5000000000     # a broker that is slow as a whole: no doubts for so long
    ENDED_NS = 1000000000           # no doubts for so long after a connection has ended


cdef uint64_t late_at(const Core *core, const Node *node) noexcept nogil:
    """Return when the first request of the connection is late; UINT64_MAX if that does not matter."""
    cdef const Node *broker = first_connection(<Node *>node)
    cdef const Request *request = node.connection.sent_head
    if request == NULL or request.slow_lanes.late or request.kind != REQUEST_PRODUCE \
            or node.connection.state != CONNECTION_READY or not is_known(&broker.slow_lanes.latency) \
            or (node == broker and core.loop.now < broker.slow_lanes.no_doubts_until_ns):
        return UINT64_MAX
    # a broker that throttles does not read what was sent meanwhile
    return (
        max(
            max(request.connection.sent_ns, node.connection.answered_ns),
            max(node.connection.muted_until_ns, broker.slow_lanes.hung_until_ns)
        ) + late_after_ns(&broker.slow_lanes.latency)
    )


cdef bint delays_others(const Node *node) noexcept nogil:
    """Return whether another lane waits behind a lane of the connection's first request, or shares the request."""
    cdef const Request *request = node.connection.sent_head
    cdef const Lane *lane = request.produce.wires[0].lane
    if node.broker != NULL or request.produce.wire_count > 1:
        return True
    if (
        node.drain.ready_count + node.drain.lingering.length
        > <uint32_t>(lane.drain.leader == node and lane.drain.listed != LIST_NONE)
    ):
        return True
    request = request.connection.next
    while request != NULL:
        if request.produce.wire_count > 1 or (request.produce.wire_count and request.produce.wires[0].lane != lane):
            return True
        request = request.connection.next
    return False


cdef void note_late(Core *core, Node *node) noexcept nogil:
    """Note that the connection's first request is late. On the first connection, ask whether the broker answers others.

    While the slow connection waits for the answer to a Produce request, it cannot show that. Then the lanes are doubted
    at once.
    """
    node.connection.sent_head.slow_lanes.late = True
    if node.broker != NULL:
        _judge_late(core, node, node.connection.sent_head)
    elif _is_open(node.slow) and _waits_for_produce(node.slow):
        _doubt_all(core, node)
    else:
        push_event(core, EVENT_LATE, node.index, 0, 0)


cdef bint is_late(const Node *node) noexcept nogil:
    """Return whether the connection still waits for the answer to a late request."""
    return (
        node.connection.state == CONNECTION_READY and node.connection.sent_head != NULL
        and node.connection.sent_head.slow_lanes.late
    )


cdef void judge_answer(Core *core, Node *node, Request *request) noexcept nogil:
    """Judge how long the answer to a request took. This must be called before the answer is handled and counted."""
    cdef Node *broker = first_connection(node)
    cdef uint64_t taken = _taken_ns(core, node, request)
    cdef uint32_t index
    cdef Lane *lane
    broker.slow_lanes.doubts_changed = True
    if node != broker and broker.slow_lanes.trials_end_ns:
        broker.slow_lanes.trials_end_ns = min(broker.slow_lanes.trials_end_ns, _trials_end(core, broker))
    if request.kind != REQUEST_PRODUCE:
        return
    for index in range(request.produce.wire_count):
        request.produce.wires[index].lane.slow_lanes.answered_ns = core.loop.now
    if node == broker:
        if request.slow_lanes.late:
            broker.slow_lanes.latency.late_ns = taken
        add_sample(&broker.slow_lanes.latency, taken, core.loop.now)
        return
    for index in range(request.produce.wire_count):
        lane = request.produce.wires[index].lane
        if taken > late_after_ns(&broker.slow_lanes.latency):
            lane.slow_lanes.prompt_answers = 0  # it was noted as late before, unless this process did not run meanwhile
            continue
        lane.slow_lanes.prompt_answers += 1
        if lane.slow_lanes.doubt == DOUBT_SHARED:
            broker.slow_lanes.prompt_trials += 1
            _age_trials(broker)
        elif lane.slow_lanes.doubt == DOUBT_ALONE \
                and lane.slow_lanes.prompt_answers >= min(4 * lane.slow_lanes.late_answers, <uint32_t>PROMPT_MIN):
            lane.slow_lanes.doubt = DOUBT_NONE
            if lane.slow_lanes.late_answers == 1:
                _pause(core, broker)


cdef inline uint64_t _taken_ns(const Core *core, const Node *node, const Request *request) noexcept nogil:
    """Return for how long the request has been the first one of its connection."""
    return core.loop.now - min(max(request.connection.sent_ns, node.connection.answered_ns), core.loop.now)


cdef inline bint _is_open(const Node *slow) noexcept nogil:
    return slow != NULL and slow.connection.state == CONNECTION_READY


cdef inline bint _waits_for_produce(const Node *node) noexcept nogil:
    return node.connection.sent_head != NULL and node.connection.sent_head.kind == REQUEST_PRODUCE


cdef inline void _age_trials(Node *broker) noexcept nogil:
    """Halve the counts of trials from time to time, so that they tell how the broker is now."""
    if broker.slow_lanes.late_trials + broker.slow_lanes.prompt_trials > TRIALS_COUNTED:
        broker.slow_lanes.late_trials //= 2
        broker.slow_lanes.prompt_trials //= 2


cdef inline void _pause(Core *core, Node *broker) noexcept nogil:
    """Doubt nobody for a while, after a false alarm."""
    broker.slow_lanes.no_doubts_until_ns = max(
        broker.slow_lanes.no_doubts_until_ns, core.loop.now + false_alarm_ns(&broker.slow_lanes.latency)
    )


cdef bint may_ask(Core *core, Node *broker) noexcept nogil:
    """Return whether the broker is to be asked by its slow connection now, and note the time.

    Another question may be unanswered. Behind a Produce request the answer would show nothing, so the lanes are doubted
    at once.
    """
    if broker.slow_lanes.asked_ns:
        return False
    if _waits_for_produce(broker.slow):
        if is_late(broker):
            _doubt_all(core, broker)
        return False
    broker.slow_lanes.asked_ns = core.loop.now
    return True


cdef void judge_slow_answer(Core *core, Node *broker) noexcept nogil:
    """If a request of the first connection is late, doubt its lanes: the broker has answered ApiVersions meanwhile.

    If that answer was late, too, the broker itself has hung, and the time for the request begins anew.
    """
    cdef uint64_t asked_ns = broker.slow_lanes.asked_ns
    broker.slow_lanes.asked_ns = 0
    if asked_ns == 0 or not is_late(broker) or not _is_open(broker.slow) \
            or core.loop.now < broker.slow_lanes.no_doubts_until_ns:
        return
    if core.loop.now - min(asked_ns, core.loop.now) <= late_after_ns(&broker.slow_lanes.latency):
        _doubt_all(core, broker)
        return
    broker.slow_lanes.hung_until_ns = core.loop.now
    broker.connection.sent_head.slow_lanes.late = False
    schedule_timer(core, core.loop.now + late_after_ns(&broker.slow_lanes.latency))


cdef void _doubt_all(Core *core, Node *broker) noexcept nogil:
    """Doubt all lanes of the late request of the first connection."""
    cdef Request *request = broker.connection.sent_head
    cdef uint32_t index
    cdef Lane *lane
    begin_alarm(&broker.slow_lanes.latency, core.loop.now + TRIALS_WAIT_NS)
    for index in range(request.produce.wire_count):
        lane = request.produce.wires[index].lane
        if lane.drain.leader != broker or lane.slow_lanes.doubt != DOUBT_NONE:
            continue
        if lane.slow_lanes.doubted_at != broker:
            forget_doubt(lane)
            lane.slow_lanes.doubted_at = broker
            lane.slow_lanes.next_doubted = broker.slow_lanes.doubted
            broker.slow_lanes.doubted = lane
        lane.slow_lanes.doubt = DOUBT_SHARED
        lane.slow_lanes.prompt_answers = lane.slow_lanes.late_answers = 0
    broker.slow_lanes.doubts_changed = True


cdef void forget_doubt(Lane *lane) noexcept nogil:
    """Take the lane out of the list of doubted lanes that it is in. After the last one, the trials begin anew."""
    cdef Node *broker = lane.slow_lanes.doubted_at
    cdef Lane **link
    if broker == NULL:
        return
    link = &broker.slow_lanes.doubted
    while link[0] != lane:
        link = &link[0].slow_lanes.next_doubted
    link[0] = lane.slow_lanes.next_doubted
    lane.slow_lanes.doubted_at = NULL
    lane.slow_lanes.doubt = DOUBT_NONE
    if broker.slow_lanes.doubted == NULL:
        broker.slow_lanes.trials_end_ns = 0
        broker.slow_lanes.late_trials = 0
        broker.slow_lanes.prompt_trials = 0
        broker.slow_lanes.latency.alarmed = False


cdef void _judge_late(Core *core, Node *slow, Request *request) noexcept nogil:
    """Handle a late request of the slow connection. Late trials show which lane is slow."""
    cdef Node *broker = slow.broker
    cdef Lane *tried
    cdef Lane *lane = broker.slow_lanes.doubted
    broker.slow_lanes.doubts_changed = True
    if request.produce.wire_count != 1:
        return
    tried = request.produce.wires[0].lane
    tried.slow_lanes.prompt_answers = 0
    tried.slow_lanes.late_answers += 1
    if tried.drain.leader == slow and tried.slow_lanes.doubt == DOUBT_ALONE and tried.slow_lanes.late_answers == 2:
        note_slow_lane(&broker.slow_lanes.latency)
    if tried.drain.leader != slow or tried.slow_lanes.doubt != DOUBT_SHARED:
        return
    tried.slow_lanes.doubt = DOUBT_ALONE
    broker.slow_lanes.latency.found = True
    broker.slow_lanes.late_trials += 1
    _age_trials(broker)
    _end_trials(broker)
    if not _is_slow(core, broker):
        return
    note_slow_broker(&broker.slow_lanes.latency, _taken_ns(core, slow, request))
    broker.slow_lanes.no_doubts_until_ns = core.loop.now + SLOW_BROKER_NS
    while lane != NULL:
        lane.slow_lanes.doubt = DOUBT_NONE
        lane = lane.slow_lanes.next_doubted


cdef void _end_trials(Node *broker) noexcept nogil:
    """End the doubts of the lanes that wait at the slow connection for a trial."""
    cdef Lane *lane = broker.slow_lanes.doubted
    broker.slow_lanes.trials_end_ns = 0
    broker.slow_lanes.doubts_changed = True
    while lane != NULL:
        if lane.slow_lanes.doubt == DOUBT_SHARED and lane.drain.leader == broker.slow:
            lane.slow_lanes.doubt = DOUBT_NONE
        lane = lane.slow_lanes.next_doubted


cdef bint _is_slow(const Core *core, const Node *broker) noexcept nogil:
    """Return whether most trials were late, or most of the broker's lanes with data are slow."""
    cdef uint32_t index, slow = 0, used = 0
    cdef const Lane *lane
    if broker.slow_lanes.late_trials >= LATE_TRIALS_MIN \
            and broker.slow_lanes.late_trials > broker.slow_lanes.prompt_trials:
        return True
    for index in range(core.topics.lane_count):
        lane = core.topics.lanes[index]
        if lane == NULL or lane.drain.leader == NULL \
                or (lane.drain.leader != broker and lane.drain.leader != broker.slow):
            continue
        if _has_data(core, lane):
            used += 1
            slow += lane.slow_lanes.doubt == DOUBT_ALONE
    return 2 * slow > used


cdef inline bint _has_data(const Core *core, const Lane *lane) noexcept nogil:
    """Return whether the lane has batches, or has had some lately."""
    return lane.intake.queues.length or lane.wire.unresolved \
        or core.loop.now - min(lane.slow_lanes.answered_ns, core.loop.now) < <uint64_t>RECENT_NS


cdef void note_opened(Node *node) noexcept nogil:
    """Note that a connection is ready: doubted lanes may go by the slow one from now on."""
    first_connection(node).slow_lanes.doubts_changed = True


cdef void note_ended(Core *core, Node *node) noexcept nogil:
    """End the doubts of the lanes of a connection that has ended; after the slow one, of all lanes of the broker.

    Nothing of these lanes is in flight any more.
    """
    cdef Node *broker = first_connection(node)
    cdef Lane *lane = broker.slow_lanes.doubted
    broker.slow_lanes.doubts_changed = True
    broker.slow_lanes.no_doubts_until_ns = max(broker.slow_lanes.no_doubts_until_ns, core.loop.now + ENDED_NS)
    broker.slow_lanes.latency.found = True  # this is no false alarm
    if node != broker:
        broker.slow_lanes.trials_end_ns = 0
        broker.slow_lanes.asked_ns = 0
    while lane != NULL:
        if node != broker or lane.drain.leader == node:
            lane.slow_lanes.doubt = DOUBT_NONE
        lane = lane.slow_lanes.next_doubted


cdef void set_broker(Core *core, Lane *lane, Node *broker, int32_t epoch) noexcept nogil:
    """Set the lane's leader (NULL: none) and its epoch. A lane that goes by the slow connection to it stays there.

    Nothing is known of the lane's latency at another leader.
    """
    cdef Node *leader = broker
    if broker != NULL and lane.drain.leader != NULL and lane.drain.leader.broker == broker:
        leader = lane.drain.leader
    if leader != lane.drain.leader and lane.slow_lanes.doubted_at != NULL:
        forget_doubt(lane)
    set_leader(core, lane, leader, epoch)


cdef void settle_doubts(Core *core, Node *broker) noexcept nogil:
    """Move the lanes whose doubts have changed and of which nothing is in flight to the connection that they need."""
    if broker.slow_lanes.doubted == NULL:
        return
    if broker.slow_lanes.trials_end_ns and broker.slow_lanes.trials_end_ns <= core.loop.now:
        _end_trials(broker)
    if broker.slow_lanes.latency.trials_wait_ns and broker.slow_lanes.latency.trials_wait_ns <= core.loop.now:
        broker.slow_lanes.latency.trials_wait_ns = 0
        broker.slow_lanes.doubts_changed = True
    if broker.slow_lanes.doubts_changed:
        broker.slow_lanes.doubts_changed = False
        if not _move_lanes(core, broker) and broker.slow_lanes.latency.alarmed:
            _end_alarm(core, broker)
    if broker.slow_lanes.trials_end_ns:
        schedule_timer(core, broker.slow_lanes.trials_end_ns)
    if broker.slow_lanes.latency.trials_wait_ns:
        schedule_timer(core, broker.slow_lanes.latency.trials_wait_ns)


cdef bint _move_lanes(Core *core, Node *broker) noexcept nogil:
    """Return whether there are lanes of which it is not known yet whether they are slow."""
    cdef bint any_shared = False
    cdef Lane **link = &broker.slow_lanes.doubted
    cdef Lane *lane
    cdef Node *wanted
    cdef bint is_open = _is_open(broker.slow)
    while link[0] != NULL:
        lane = link[0]
        if lane.slow_lanes.doubt == DOUBT_ALONE and not _has_data(core, lane):
            lane.slow_lanes.doubt = DOUBT_NONE
        any_shared = any_shared or lane.slow_lanes.doubt == DOUBT_SHARED
        wanted = broker.slow if is_open and lane.slow_lanes.doubt != DOUBT_NONE else broker
        if lane.slow_lanes.doubt == DOUBT_SHARED and lane.drain.leader == broker and is_open and trials_wait(broker):
            wanted = broker
        if lane.drain.leader != wanted and not lane.wire.in_flight:
            move_lane(core, lane, wanted)
            if lane.slow_lanes.doubt == DOUBT_SHARED:
                broker.slow_lanes.trials_end_ns = max(
                    broker.slow_lanes.trials_end_ns,
                    _trials_end(core, broker) + (BUSY_NS if broker.slow.connection.in_flight else 0)
                )
        if lane.slow_lanes.doubt == DOUBT_NONE and lane.drain.leader == broker:
            link[0] = lane.slow_lanes.next_doubted
            lane.slow_lanes.doubted_at = NULL
        else:
            link = &lane.slow_lanes.next_doubted
    return any_shared


cdef inline uint64_t _trials_end(const Core *core, const Node *broker) noexcept nogil:
    """Return when the trials end that begin now."""
    cdef uint64_t late_ns = min(broker.slow_lanes.latency.late_ns, <uint64_t>LATE_MAX_NS)
    return core.loop.now + TRIALS_FACTOR * late_after_ns(&broker.slow_lanes.latency) + late_ns


cdef void _end_alarm(Core *core, Node *broker) noexcept nogil:
    """Note that the trials are over. If none was late, no lane is doubted for a while."""
    broker.slow_lanes.trials_end_ns = 0
    broker.slow_lanes.latency.trials_wait_ns = 0
    broker.slow_lanes.latency.alarmed = False
    if not broker.slow_lanes.latency.found:
        _pause(core, broker)
