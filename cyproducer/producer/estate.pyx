"""What a session leaves when its sender has ended for good: batches that did not go out.

Their records stay in the arena of that session, which nobody else touches any more, until the next session
copies them into its own: chunk by chunk as they are, so that every future keeps its batch and its index. A
topic's batches wait until the next sender knows the topic, in the order in which they were opened.
"""

from collections import deque

cimport cython
from libc.string cimport memcpy

from cyproducer.producer.append cimport announce
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.layout cimport (
    CYP_NONE,
    CYP_READY,
    CYP_SUBMIT_FULL,
    CYP_UNIT_BYTES,
    CYP_WORD_CONT,
    CYP_WORD_HEAD,
    cyp_slot_row,
)
from cyproducer.shm.slot cimport slot_glance, slot_open, slot_take_back
from cyproducer.shm.word cimport word_bytes, word_count, word_make

from cyproducer import errors


cdef void revoke(Arena arena) noexcept:
    """Closes every batch without an outcome to the sender, should it live: what it has not taken stays ours."""
    cdef uint32_t slot = arena.first_pending, chunk
    while slot != CYP_NONE:
        chunk = slot
        while chunk != CYP_NONE:
            slot_take_back(&arena.rows[chunk])
            chunk = arena.slots[chunk].next
        slot = arena.slots[slot].next_pending


cdef long long chain_records(Arena arena, uint32_t slot) noexcept:
    """Records in the batch that starts in `slot`."""
    cdef long long count = 0
    while slot != CYP_NONE:
        count += word_count(slot_glance(&arena.rows[slot]))
        slot = arena.slots[slot].next
    return count


@cython.final
@cython.auto_pickle(False)
cdef class Estate:
    """The batches of one ended session that wait for the next one."""

    def __init__(self, Arena source, attachment, settings):
        self.source = source
        self.attachment = attachment
        self.lifetime_ns = <uint64_t>(settings.delivery_timeout_ms * 1e6)
        self.topics = {}

    cdef int add(self, uint32_t slot, Batch batch) except -1:
        """`batch` starts in `slot` of the source; they are added in the order in which they were opened."""
        entries = self.topics.get(batch.topic)
        if entries is None:
            entries = self.topics[batch.topic] = deque()
        entries.append((slot, batch))
        self.count += 1
        return 0

    def batches(self):
        """Those that are still here."""
        return [batch for entries in list(self.topics.values()) for _, batch in list(entries)]

    def records(self):
        """Their number."""
        return sum(
            [chain_records(self.source, slot) for entries in list(self.topics.values()) for slot, _ in list(entries)]
        )

    def set_session(self, session):
        """Whoever waits for one of the batches waits with `session` from now on."""
        cdef Batch batch
        for batch in self.batches():
            batch.session = session

    def take_expired(self):
        """The batches that are older than their delivery_timeout_ms, which the estate forgets."""
        cdef uint64_t now = monotonic_ns()
        found = []
        for name, entries in list(self.topics.items()):
            while entries and self._born_ns(entries[0][0]) + self.lifetime_ns <= now:
                found.append(entries.popleft()[1])
            self._drop_if_empty(name, entries)
        self.count -= len(found)
        return found

    def take_topic(self, name):
        """All batches of a topic, which the estate forgets."""
        found = [batch for _, batch in self.topics.pop(name, ())]
        self.count -= len(found)
        return found

    def expires_in(self):
        """Seconds until the next of take_expired."""
        cdef uint64_t now = monotonic_ns()
        cdef uint64_t first = now
        for entries in list(self.topics.values()):
            if entries:
                first = min(first, self._born_ns(entries[0][0]))
        return max(0.0, (<int64_t>(first + self.lifetime_ns) - <int64_t>now) / 1e9)

    def close(self):
        """Nothing is left: the arena goes."""
        self.attachment.close()

    cdef uint64_t _born_ns(self, uint32_t slot) noexcept:
        """When the first record was sent, though it may have changed arenas since."""
        cdef cyp_slot_row *row = &self.source.rows[slot]
        return row.opened_ns - row.waited_ms * <uint64_t>1000000

    def _drop_if_empty(self, name, entries):
        if not entries and self.topics.get(name) is entries:
            self.topics.pop(name, None)

    # ---------------------------------------------------------------- into the next session's arena

    cdef bint move(self, Arena target, Topic topic, list failed) except -1:
        """Copies the topic's batches, and forgets them; False: there is no memory for all of them.

        `failed` gets (batch, code) of those that have no place in the topic any more.
        """
        cdef Batch batch
        cdef uint32_t slot
        entries = self.topics.get(topic.name)
        while entries:
            # Other threads may do the same: nothing of theirs runs between the look at an entry and its end.
            slot, batch = entries[0]
            gone = batch.partition >= topic.partition_count
            if not gone and not self._copy(target, topic, slot, batch):
                return False
            entries.popleft()
            self.count -= 1
            if gone:
                failed.append((batch, errors.UNKNOWN_PARTITION))
        self._drop_if_empty(topic.name, entries)
        return True

    cdef bint _copy(self, Arena target, Topic topic, uint32_t slot, Batch batch) except -1:
        cdef uint32_t head = CYP_NONE
        if not self._copy_chunks(target, slot, &head):
            return False
        if not self._publish(target, topic, slot, head, batch):
            return False
        target._own(head, batch, NULL)
        target.batches -= 1  # it was counted when it was opened
        announce(&target.port, CYP_SUBMIT_FULL, head, target.slots[head].generation, 0)
        return True

    cdef bint _copy_chunks(self, Arena target, uint32_t slot, uint32_t *first) noexcept:
        """The batch's chunks as private ones of the target, linked; False, and nothing taken: no memory.

        Each has the class of the original: what fitted one arena fits an empty one of its size.
        """
        cdef uint32_t fresh, last = CYP_NONE, size
        cdef Arena source = self.source
        while slot != CYP_NONE:
            size = word_bytes(slot_glance(&source.rows[slot]))
            if size:
                fresh = target._alloc(source.pool.chunk_class[slot], size)
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

    cdef bint _publish(self, Arena target, Topic topic, uint32_t slot, uint32_t head, Batch batch) noexcept:
        """Rows and words of the copied chunks, the head's word last; False: the sender has revoked the target."""
        cdef cyp_slot_row *row
        cdef cyp_slot_row *original
        cdef uint32_t fresh = head, following
        cdef uint64_t word, head_word = 0, born = self._born_ns(slot)
        while fresh != CYP_NONE:
            original = &self.source.rows[slot]
            slot = self.source.slots[slot].next
            if word_bytes(original.word) == 0:
                continue
            following = target.slots[fresh].next
            row = &target.rows[fresh]
            target._fill_row(fresh, topic.number, batch.partition, batch.base_timestamp)
            target.slots[fresh].next = row.next = following
            row.max_timestamp = original.max_timestamp
            row.max_count = original.max_count
            word = word_make(
                CYP_READY, CYP_WORD_CONT if following != CYP_NONE else 0, target.slots[fresh].generation,
                word_count(original.word), word_bytes(original.word),
            )
            if fresh == head:
                head_word = word | CYP_WORD_HEAD
            elif not slot_open(row, target.slots[fresh].generation, word):
                return False
            fresh = following
        row = &target.rows[head]
        row.waited_ms = <uint32_t>min((row.opened_ns - born) // 1000000, <uint64_t>0xffffffff)
        # the whole chain is seen with its head
        return slot_open(row, target.slots[head].generation, head_word)
