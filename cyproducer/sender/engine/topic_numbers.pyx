"""Gives back the numbers of topics that are not in use any more, so that other names can have them.

A front-end keeps the number of a name, and may be stopped at any point. So a number is retired first: its generation
becomes odd, and a front-end that opens a batch after that sees it and commits nothing. Then all slots are searched for
batches with the number. If there is one, or if the name is used again meanwhile, the number keeps its name, in the same
generation. Otherwise the number is free, and the next name has it in the next generation. DESIGN.md, "Topic numbers",
says why no batch can reach a wrong topic.

The order of the stores: the epoch in which new lanes begin is raised, the number is RETIRED in the state region, the
rows of its partitions are FREE, the snapshot is cleared, the number is FREE. A successor that finds RETIRED does what
is left. One that finds a number USED with an odd generation lets it keep its name.
"""


cdef enum:
    SLOTS_AT_ONCE = 16384           # rows that one call of search() looks at


cdef class TopicNumbers:
    """The numbers of one sender that are being given back. Call retire(), search() until it is True, then reclaim()."""

    cdef FrontEnds front_ends
    cdef Core *core
    cdef list _retired              # numbers

    def __cinit__(self, FrontEnds front_ends not None):
        self.front_ends = front_ends
        self.core = &front_ends.core
        self._retired = []

    def retire(self, names):
        """Retire the numbers of topics that have left the metadata. Return the names of those that are in use."""
        cdef FrontEnd *front_end = self.core.front_end.first
        cdef Topic *topic
        in_use = []
        for name in names:
            number = self.front_ends.topic_numbers.get(name)
            if number is None:
                continue
            topic = self.core.topics.table[<uint32_t>number]
            if not _is_unused(topic):
                in_use.append(name)
                continue
            topic.topic_numbers.retired = True
            topic.topic_numbers.held = False
            self.front_ends.snapshot.retire(number)
            CRASHPOINT(b"topics.retired")
            self._retired.append(number)
        while front_end != NULL and self._retired:
            front_end.topic_numbers.scanned = 0
            front_end = front_end.front_end.next
        return in_use

    def is_searching(self):
        """Return whether numbers are retired and not given back yet."""
        return bool(self._retired)

    def search(self):
        """Search further slots for batches with retired numbers. Return whether all slots are done.

        A front-end that attaches after retire() cannot look up a retired number.
        """
        cdef bint done
        with nogil:
            done = _search(self.core)
        return done

    def reclaim(self):
        """Give the retired numbers back that no batch has. Return (names that gave theirs back, names that keep it).

        Names that are in the metadata again are in neither. Return None if events must be taken first, since they can
        refer to partitions.
        """
        cdef uint32_t number
        cdef list free_ones = [], kept = [], given = []
        if self.core.outcome.event_count:
            return None
        _hold_referenced_topics(self.core)
        for number in self._retired:
            if self.core.topics.table[number].topic_numbers.retired:
                in_use = (
                    self.core.topics.table[number].topic_numbers.held or not _is_unused(self.core.topics.table[number])
                )
                (kept if in_use else free_ones).append(number)
        self._retired = []
        if not self._raise_epochs(free_ones):
            kept += free_ones
            free_ones = []
        for number in kept:
            self.front_ends.add_topic(self._name_of(number))
        for number in free_ones:
            given.append(self._name_of(number))
            self._give_back(number)
        return given, [self._name_of(number) for number in kept]

    def _name_of(self, uint32_t number):
        return self.core.topics.table[number].name[:self.core.topics.table[number].name_bytes].decode()

    cdef bint _raise_epochs(self, list numbers) except -1:
        """Raise the epochs in which new lanes begin above those of the lanes of these numbers.

        If the name comes back, the broker still knows the producer id in the partitions. It would take the sequence 0
        in the same epoch for a duplicate. Return False if there is no higher epoch: a new producer id is requested.
        """
        cdef Core *core = self.core
        cdef int32_t ordinary = -1, isolation = -1, at
        cdef uint32_t number
        cdef Lane *lane
        cdef Lane *last = NULL
        for number in numbers:
            for at in range(core.topics.table[number].topics.partition_count):
                lane = core.topics.table[number].topics.partitions[at]
                if lane.idempotence.producer_id >= 0 and lane.idempotence.producer_id == core.state_header.producer_id:
                    ordinary = max(ordinary, <int32_t>lane.idempotence.producer_epoch)
                    last = lane if lane.idempotence.producer_epoch >= EPOCH_MAX else last
                lane = lane.topics.other_lane
                if lane != NULL and lane.idempotence.producer_id >= 0 \
                        and lane.idempotence.producer_id == core.idempotence.isolation_producer_id:
                    isolation = max(isolation, <int32_t>lane.idempotence.producer_epoch)
                    last = lane if lane.idempotence.producer_epoch >= EPOCH_MAX else last
        if last != NULL:
            want_producer_id(core, last)
            return False
        raise_epochs(core, ordinary, isolation)
        return True

    cdef object _give_back(self, uint32_t number):
        cdef Topic *topic = self.core.topics.table[number]
        store_release32(&topic_state(self.core, number).state, CYP_TOPIC_RETIRED)
        CRASHPOINT(b"topics.decided")
        _free_queues(self.core, topic)
        unlist_shares(self.core, topic)
        free_rows(self.core, topic)
        self.front_ends.free_number(number)


cdef bint _search(Core *core) noexcept nogil:
    cdef FrontEnd *front_end = core.front_end.first
    cdef uint32_t most = SLOTS_AT_ONCE, slot, end = 0, id
    while front_end != NULL:
        while front_end.topic_numbers.scanned < front_end.slot_count:
            if most == 0:
                untouch(core)
                return False
            touch(core, front_end, CYP_NONE)
            if not next_used(front_end, &front_end.topic_numbers.scanned, &end):
                front_end.topic_numbers.scanned = front_end.slot_count
                break
            end = min(end, front_end.topic_numbers.scanned + most)
            most -= end - front_end.topic_numbers.scanned
            for slot in range(front_end.topic_numbers.scanned, end):
                id = slot_topic(&front_end.rows[slot])
                if id != CYP_NONE and topic_id_number(id) < core.topics.count:
                    core.topics.table[topic_id_number(id)].topic_numbers.held = True
            front_end.topic_numbers.scanned = end
        front_end = front_end.front_end.next
    untouch(core)
    return True


cdef void _hold_referenced_topics(Core *core) noexcept nogil:
    """Hold the topics to which requests for the states of producers, and the table of failures, refer to."""
    cdef uint32_t index, at
    cdef Node *node
    for index in range(core.connection.node_count):
        node = core.connection.nodes[index]
        for at in range(node.idempotence.asked_count):
            node.idempotence.asked[at].topic.topic_numbers.held = True
    for index in range(core.outcome.failure_count):
        if core.outcome.failures[index].topic < core.topics.count:
            core.topics.table[core.outcome.failures[index].topic].topic_numbers.held = True


cdef bint _is_unused(const Topic *topic) noexcept nogil:
    """Return whether no batch refers to the topic or one of its lanes, and none has since used_topics was taken."""
    cdef int32_t at
    cdef Lane *lane
    if topic.topics.used or topic.topic_numbers.retired and topic.topic_numbers.held:
        return False
    for at in range(topic.topics.partition_count):
        lane = topic.topics.partitions[at]
        while lane != NULL:
            if not is_idle(lane) or lane.transaction != NULL and _is_of_present_epoch(lane):
                return False
            lane = next_lane(lane)
    return True


cdef inline bint _is_of_present_epoch(const Lane *lane) noexcept nogil:
    """Return whether the lane of a transactional producer has sequences that the producer continues."""
    cdef cyp_transaction_place *place = current_copy(lane.transaction)
    return lane.idempotence.producer_id == place.producer_id and lane.idempotence.producer_epoch == place.producer_epoch


cdef void _free_queues(Core *core, Topic *topic) noexcept nogil:
    """Free the empty queues that front-ends have for the partitions of a topic."""
    cdef FrontEnd *front_end = core.front_end.first
    cdef int32_t at
    cdef uint32_t row
    while front_end != NULL:
        for at in range(topic.topics.partition_count):
            row = topic.topics.partitions[at].index
            if row < front_end.intake.queue_capacity:
                free(front_end.intake.queues[row])
                front_end.intake.queues[row] = NULL
        front_end = front_end.front_end.next
