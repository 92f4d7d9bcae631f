"""Keeps the unsent batches of sessions whose sender is gone, and moves them into the arena of the next session.

Their records stay in the arena of the ended session, which no other process touches any more, until the next session
copies them into its own. It copies unchanged chunks, so every future keeps its batch and its index. The batches of a
topic wait until the next sender knows the topic; they keep the order in which they were opened.
"""


# ------------------------------------------------------------ unsent lists
#
# Keeps all unsent batches of an owner: a list for each earlier session whose sender was lost.
#
# A method that calls Python lets other threads run, which may change the lists: each method works on a copy.


@cython.final
@cython.auto_pickle(False)
cdef class UnsentLists:
    """The unsent batches of an owner. Its length is the number of UnsentBatches."""

    def __cinit__(self):
        self.lists = []

    def __len__(self):
        return len(self.lists)

    cdef int add(self, UnsentBatches unsent) except -1:
        """Add the list of the session that has just ended."""
        self.lists.insert(0, unsent)
        return 0

    def topics(self):
        """Return the names of the topics of the batches."""
        return {name for unsent in list(self.lists) for name in list(unsent.topics)}

    def batches(self):
        """Return the batches; those of one partition are in the order in which they were opened."""
        return [batch for unsent in list(self.lists) for batch in unsent.batches()]

    def outstanding(self):
        """Return (batches, records)."""
        cdef UnsentBatches unsent
        cdef long long batches = 0, records = 0
        for unsent in list(self.lists):
            batches += unsent.count
            records += unsent.records()
        return batches, records

    def expires_in(self):
        """Return the seconds until the next batch expires; 0.0 if there is none."""
        return min([unsent.expires_in() for unsent in list(self.lists)], default=0.0)

    cdef bint move(self, Arena target, TopicTable known, list failed) except -1:
        """Move the batches of known topics into the arena `target`. Return False if memory is lacking.

        Batches that cannot be sent any more are added to `failed` as (batch, error code).
        """
        cdef Topic topic
        cdef UnsentBatches unsent
        cdef bint room = True
        for unsent in list(self.lists):
            for name in list(unsent.topics):
                topic = known.by_name.get(name)
                if topic is None or topic.partition_count == 0:
                    if topic is not None and topic.error in PERMANENT_ERRORS:
                        failed += [(batch, topic.error) for batch in unsent.take_topic(name)]
                elif room:
                    room = unsent.move(target, known, topic, failed)
        return room

    cdef list take_expired(self):
        """Remove and return the batches that are older than delivery_timeout_ms."""
        return [batch for unsent in list(self.lists) for batch in unsent.take_expired()]

    cdef list take_all(self):
        """Remove and return all batches."""
        return [
            batch for unsent in list(self.lists) for name in list(unsent.topics) for batch in unsent.take_topic(name)
        ]

    cdef int drop_empty(self) except -1:
        """Close and remove each UnsentBatches that is empty. Call this when the batches that were taken have failed."""
        cdef UnsentBatches unsent
        if self.filling:
            return 0
        for unsent in list(self.lists):
            if unsent.count == 0 and unsent in self.lists:
                unsent.close()  # first: if a signal's handler raises here, the next call closes it
                if unsent in self.lists:  # another thread may have run meanwhile
                    self.lists.remove(unsent)
        return 0


# ------------------------------------------------------------ unsent batches


cdef void revoke(Arena arena) noexcept:
    """Revoke the slots of all batches without an outcome: a sender that is alive after all can take none of them."""
    cdef uint32_t slot = arena.first_pending, chunk
    while slot != CYP_NONE:
        chunk = slot
        while chunk != CYP_NONE:
            slot_reclaim(&arena.rows[chunk])
            chunk = arena.slots[chunk].next
        slot = arena.slots[slot].next_pending


cdef long long chain_bytes(Arena arena, uint32_t slot) noexcept:
    """Return the bytes of records in the batch that starts in `slot`."""
    cdef long long size = 0
    while slot != CYP_NONE:
        size += word_bytes(slot_glance(&arena.rows[slot]))
        slot = arena.slots[slot].next
    return size


cdef long long chain_records(Arena arena, uint32_t slot) noexcept:
    """Return the number of records in the batch that starts in `slot`."""
    cdef long long count = 0
    while slot != CYP_NONE:
        count += word_count(slot_glance(&arena.rows[slot]))
        slot = arena.slots[slot].next
    return count


cdef long long pending_records(Arena arena) noexcept:
    """Return the number of records in the batches without an outcome."""
    cdef long long count = 0
    cdef uint32_t slot = arena.first_pending
    while slot != CYP_NONE:
        count += chain_records(arena, slot)
        slot = arena.slots[slot].next_pending
    return count


@cython.final
@cython.auto_pickle(False)
cdef class UnsentBatches:
    """The batches of one ended session that wait for the next one."""

    def __init__(self, Arena source, attachment, settings):
        self.source = source
        self.attachment = attachment
        self.lifetime_ns = <uint64_t>(settings.delivery_timeout_ms * 1e6)
        self.topics = {}

    cdef int add(self, uint32_t slot, Batch batch) except -1:
        """Add `batch`, which starts in `slot` of the source. Add batches in the order in which they were opened."""
        entries = self.topics.get(batch.topic)
        if entries is None:
            entries = self.topics[batch.topic] = deque()
        entries.append((slot, batch))
        self.count += 1
        return 0

    def batches(self):
        """Return the batches that are still in this list."""
        return [batch for entries in list(self.topics.values()) for _, batch in list(entries)]

    def records(self):
        """Return the number of records in these batches."""
        return sum(
            [chain_records(self.source, slot) for entries in list(self.topics.values()) for slot, _ in list(entries)]
        )

    def take_expired(self):
        """Remove and return the batches that are older than delivery_timeout_ms, which the caller fails."""
        cdef uint64_t now = monotonic_ns()
        found = []
        for name, entries in list(self.topics.items()):
            while entries and self._born_ns(entries[0][0]) + self.lifetime_ns <= now:
                slot, batch = entries.popleft()
                found.append(batch)
                self._count_failed(slot)
            self._drop_if_empty(name, entries)
        self.count -= len(found)
        return found

    def take_topic(self, name):
        """Remove and return all batches of a topic, which the caller fails."""
        found = []
        entries = self.topics.pop(name, ())
        while entries:  # emptied, since move() may be at work with it
            slot, batch = entries.popleft()
            self.count -= 1
            found.append(batch)
            self._count_failed(slot)
        return found

    def expires_in(self):
        """Return the seconds until the next batch expires (see take_expired)."""
        cdef uint64_t now = monotonic_ns()
        cdef uint64_t first = now
        for entries in list(self.topics.values()):
            if entries:
                first = min(first, self._born_ns(entries[0][0]))
        return max(0.0, (<int64_t>(first + self.lifetime_ns) - <int64_t>now) / 1e9)

    def close(self):
        """Unmap the arena once no batch is left."""
        self.attachment.close()

    cdef uint64_t _born_ns(self, uint32_t slot) noexcept:
        """Return when the batch was opened, in its first arena if it has been moved since (CLOCK_MONOTONIC)."""
        cdef cyp_slot_row *row = &self.source.rows[slot]
        return row.opened_ns - row.waited_ms * <uint64_t>1000000

    cdef int _count_failed(self, uint32_t slot) except -1:
        self.source.own.fail(chain_records(self.source, slot))
        return 0

    def _drop_if_empty(self, name, entries):
        if not entries and self.topics.get(name) is entries:
            self.topics.pop(name, None)

    # ---------------------------------------------------------------- into the next session's arena

    cdef bint move(self, Arena target, TopicTable known, Topic topic, list failed) except -1:
        """Copy the topic's batches into `target` and remove them here. Return False if memory is lacking.

        If the sender has given the topic's number back, the batches stay until the topic is known again. Batches that
        cannot be sent any more are added to `failed` as (batch, error code): their partition does not exist, or the
        next sender's limit is smaller than the batch.
        """
        cdef Batch batch
        cdef uint32_t slot
        cdef int status
        entries = self.topics.get(topic.name)
        while entries:
            # Other threads may run this too; none of them runs between the look at an entry and its removal.
            slot, batch = entries[0]
            error = 0
            if batch.partition >= topic.partition_count:
                error = errors.UNKNOWN_PARTITION
            elif chain_bytes(self.source, slot) > target.max_request + CYP_BLOCK_BYTES:
                error = errors.RecordTooLargeError.code  # the next sender has a smaller limit and would refuse it
            if not error:
                status = self._copy(target, topic, slot, batch)
                if status == NEED_METADATA:
                    if known.renew(topic):
                        continue
                    return True
                if status != HAVE_ROOM:
                    return False
            entries.popleft()
            self.count -= 1
            if error:
                failed.append((batch, error))
                self._count_failed(slot)
        self._drop_if_empty(topic.name, entries)
        return True

    cdef int _copy(self, Arena target, Topic topic, uint32_t slot, Batch batch) except -1:
        """Copy a batch. Return a Room code."""
        cdef uint32_t head = CYP_NONE
        cdef int status
        if not self._copy_chunks(target, slot, &head):
            return NEED_MEMORY
        status = self._publish(target, topic, slot, head, batch)
        if status != HAVE_ROOM:
            return status
        target.add_pending(head, batch, NULL)
        target.own.batches -= 1  # the batch was counted when it was opened first
        announce(&target.port, CYP_SUBMIT_FULL, head, target.slots[head].generation, 0)
        return HAVE_ROOM

    cdef bint _copy_chunks(self, Arena target, uint32_t slot, uint32_t *first) noexcept:
        """Copy the batch's chunks into private, linked chunks of the target. Return False if memory is lacking.

        In that case take nothing. Each copy has the class of its original: batches that fitted into one arena fit into
        an empty arena of the same size.
        """
        cdef uint32_t fresh, last = CYP_NONE, size
        cdef Arena source = self.source
        while slot != CYP_NONE:
            size = word_bytes(slot_glance(&source.rows[slot]))
            if size:
                fresh = target.reserve(source.allocator.chunk_class[slot], size)
                if fresh == CYP_NONE:
                    target.give_back(first[0])
                    return False
                target.slots[fresh].next = CYP_NONE
                memcpy(
                    target.chunk(fresh), source.chunk(slot),
                    size,
                )
                if last == CYP_NONE:
                    first[0] = fresh
                else:
                    target.slots[last].next = fresh
                last = fresh
            slot = source.slots[slot].next
        return True

    cdef int _publish(self, Arena target, Topic topic, uint32_t slot, uint32_t head, Batch batch) noexcept:
        """Write the rows and words of the copied chunks. The head is open meanwhile; its word publishes the batch.

        Return NEED_SESSION if the sender has revoked the target's slots, NEED_METADATA if it has given the topic's
        number back: then the chunks are free.
        """
        cdef cyp_slot_row *row
        cdef cyp_slot_row *original
        cdef uint32_t fresh = head, following
        cdef uint64_t word, head_word = 0, born = self._born_ns(slot)
        cdef int status
        while fresh != CYP_NONE:
            original = &self.source.rows[slot]
            slot = self.source.slots[slot].next
            if word_bytes(original.word) == 0:
                continue
            following = target.slots[fresh].next
            row = &target.rows[fresh]
            target.fill_row(fresh, topic.id, batch.partition, batch.base_timestamp)
            target.slots[fresh].next = row.next = following
            if fresh == head:
                status = target.open_head(topic, head)
                if status == NEED_METADATA:
                    target.release(head)
                if status != HAVE_ROOM:
                    return status
            row.max_timestamp = original.max_timestamp
            row.max_count = original.max_count
            word = word_make(
                CYP_READY, CYP_WORD_CONT if following != CYP_NONE else 0, target.slots[fresh].generation,
                word_count(original.word), word_bytes(original.word),
            )
            if fresh == head:
                head_word = word | CYP_WORD_HEAD
            elif not slot_open(row, target.slots[fresh].generation, word):
                return NEED_SESSION
            fresh = following
        row = &target.rows[head]
        row.waited_ms = <uint32_t>min((row.opened_ns - born) // 1000000, <uint64_t>0xffffffff)
        # release: the whole chain is seen with its head
        word = word_make(CYP_OPEN, CYP_WORD_HEAD, target.slots[head].generation, 0, 0)
        return HAVE_ROOM if slot_commit(row, word, head_word) else NEED_SESSION


cdef long long keep_unsent(
    SessionOwner owner, TopicTable topics, OutcomeReader outcomes, UnsentBatches unsent
) except -1:
    """Give the batches that may have gone out SENDER_LOST, and add the others to `unsent`. Return how many got it.

    Call this after revoke(): the SENT words do not change any more.
    """
    cdef Arena arena = unsent.source
    cdef uint32_t slot = arena.first_pending, following
    cdef long long lost = 0
    while slot != CYP_NONE:
        following = arena.slots[slot].next_pending
        if sent_is(&arena.sent[slot], arena.slots[slot].generation):
            outcomes.resolve(slot, errors.SENDER_LOST, -1, -1)
            lost += 1
        elif chain_records(arena, slot) == 0:
            arena.remove_pending(slot)
        else:
            _keep(owner, topics, unsent, slot)
        slot = following
    return lost


cdef int _keep(SessionOwner owner, TopicTable topics, UnsentBatches unsent, uint32_t slot) except -1:
    cdef Batch batch = None
    cdef Arena arena = unsent.source
    cdef cyp_slot_row *row = &arena.rows[slot]
    if arena.slots[slot].batch != NULL:
        batch = <Batch>arena.slots[slot].batch
    else:
        # the producer and all futures of this batch are gone
        batch = make_batch(
            owner, topics.names[topic_id_number(row.topic)], row.partition, row.base_timestamp
        )
    unsent.add(slot, batch)
    arena.remove_pending(slot)  # after add(): unfinished() may find the batch twice, but never misses it
    return 0
