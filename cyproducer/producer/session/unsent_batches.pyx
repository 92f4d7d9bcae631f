"""Keeps the unsent batches of a session whose sender is gone, and moves them into the arena of the next session.

Their records stay in the arena of the ended session, which no other process touches any more, until the next session
copies them into its own. It copies unchanged chunks, so every future keeps its batch and its index. The batches of a
topic wait until the next sender knows the topic; they keep the order in which they were opened.
"""

from collections import deque

cimport cython
from libc.string cimport memcpy

from cyproducer.producer.arena.append cimport announce
from cyproducer.producer.arena.arena cimport HAVE_ROOM, NEED_MEMORY, NEED_METADATA, NEED_SESSION
from cyproducer.producer.results.futures cimport make_batch
from cyproducer.shm.protocol cimport monotonic_ns
from cyproducer.shm.protocol cimport (
    CYP_BLOCK_BYTES, CYP_NONE, CYP_OPEN, CYP_READY, CYP_SUBMIT_FULL, CYP_UNIT_BYTES, CYP_WORD_CONT, CYP_WORD_HEAD,
    cyp_slot_row,
)
from cyproducer.shm.protocol cimport sent_is, slot_commit, slot_glance, slot_open, slot_take_back
from cyproducer.shm.protocol cimport topic_id_number
from cyproducer.shm.protocol cimport word_bytes, word_count, word_make

from cyproducer import errors


cdef void revoke(Arena arena) noexcept:
    """Revoke the slots of all batches without an outcome: a sender that is alive after all can take none of them."""
    cdef uint32_t slot = arena.first_pending, chunk
    while slot != CYP_NONE:
        chunk = slot
        while chunk != CYP_NONE:
            slot_take_back(&arena.rows[chunk])
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

    def set_session(self, session):
        """Assign the batches to `session`: threads that wait for one of them wait with that session from now on."""
        cdef Batch batch
        for batch in self.batches():
            batch.session = session

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
        for slot, batch in self.topics.pop(name, ()):
            found.append(batch)
            self._count_failed(slot)
        self.count -= len(found)
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
        target.batches -= 1  # the batch was counted when it was opened first
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
                fresh = target.reserve(source.pool.chunk_class[slot], size)
                if fresh == CYP_NONE:
                    target.give_back(first[0])
                    return False
                target.slots[fresh].next = CYP_NONE
                memcpy(
                    target.chunks + <uint64_t>fresh * CYP_UNIT_BYTES, source.chunks + <uint64_t>slot * CYP_UNIT_BYTES,
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
    object session, TopicTable topics, OutcomeReader outcomes, UnsentBatches unsent
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
            outcomes.settle(slot, errors.SENDER_LOST, -1, -1)
            lost += 1
        elif chain_records(arena, slot) == 0:
            arena.remove_pending(slot)
        else:
            _keep(session, topics, unsent, slot)
        slot = following
    return lost


cdef int _keep(object session, TopicTable topics, UnsentBatches unsent, uint32_t slot) except -1:
    cdef Batch batch = None
    cdef Arena arena = unsent.source
    cdef cyp_slot_row *row = &arena.rows[slot]
    if arena.slots[slot].batch != NULL:
        batch = <Batch>arena.slots[slot].batch
    else:
        # the producer and all futures of this batch are gone
        batch = make_batch(
            session, topics.names[topic_id_number(row.topic)], row.partition, row.base_timestamp
        )
    unsent.add(slot, batch)
    arena.remove_pending(slot)  # after add(): unfinished() may find the batch twice, but never misses it
    return 0
