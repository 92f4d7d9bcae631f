"""Reads the outcomes of batches from the outcome ring, and frees the memory of batches that the sender has released.

Every method runs with the GIL held. The session notifies the waiters of the finished batches when all outcomes are
taken off the ring, so that the code that they run finds the session consistent.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize

from cyproducer.producer.arena.arena cimport Arena, SlotInfo, is_alive
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport Batch, Extent
from cyproducer.producer.results.native_only cimport native_only
from cyproducer.producer.session.unsent_batches cimport chain_bytes, chain_records
from cyproducer.shm.protocol cimport store_relaxed, store_release
from cyproducer.shm.protocol cimport CRASHPOINT
from cyproducer.shm.protocol cimport (
    CYP_EXTENTS_MAX, CYP_OUTCOME_RELEASE, CYP_OUTCOME_RESULT, CYP_TEXT_BYTES, CYP_TEXTS, CYP_UNIT_BYTES, cyp_extent,
    cyp_outcome, cyp_outcomes_header, cyp_text,
)
from cyproducer.shm.native cimport Region
from cyproducer.shm.protocol cimport extent_take, outcome_available, outcome_is_current, outcome_take

from cyproducer import errors


cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()


cdef int32_t TOO_LARGE = errors.RecordTooLargeError.code


def first_of(Extent extent not None):
    """Return the index of the extent's first record."""
    return extent.first


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class OutcomeReader:
    """Gives the batches of an arena their outcomes, and keeps those that have one until take_finished()."""

    def __init__(self, *args):
        raise TypeError("OutcomeReader cannot be created directly: a session creates it")

    cdef int open(self, Region outcomes) except -1:
        """Read the region `outcomes`, which the caller keeps mapped. The arena is open."""
        self.header = <const cyp_outcomes_header *>outcomes.base
        self.ring = <const cyp_outcome *>(outcomes.base + self.arena.geometry.outcome_ring_offset)
        self.extents = <const cyp_extent *>(outcomes.base + self.arena.geometry.extents_offset)
        return 0

    cdef int take(self) except -1:
        """Take all available outcomes and free their batches' memory. Return how many."""
        cdef uint64_t count, _i
        cdef cyp_outcome outcome
        cdef Arena arena = self.arena
        if not is_alive(arena):
            return 0
        count = outcome_available(&self.header.outcome_tail, self.head)
        if count == 0:
            return 0
        for _i in range(count):
            if outcome_available(&self.header.outcome_tail, self.head) == 0:
                break  # a finalizer has taken some
            outcome_take(self.ring, arena.geometry.outcome_entries - 1, self.head, &outcome)
            self.head += 1
            self._apply(&outcome)
        # release: the texts have been read; pairs with the acquire of the sender, which then reuses their places
        store_release(&arena.port.arena.outcome_head, self.head)
        store_relaxed(
            &arena.port.arena.bytes_in_use, <uint64_t>arena.geometry.slot_count * CYP_UNIT_BYTES - arena.pool.free_bytes
        )
        CRASHPOINT(b"outcome.drained")
        return <int>count

    cdef int _apply(self, const cyp_outcome *outcome) except -1:
        cdef uint32_t slot = outcome.slot
        cdef SlotInfo *info
        if slot >= self.arena.geometry.slot_count or not outcome_is_current(outcome, self.arena.slots[slot].generation):
            return 0  # the batch has been freed already: a sender after a takeover may publish an outcome twice
        info = &self.arena.slots[slot]
        if info.chain != NULL and outcome.flags & (CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE):
            # the sender has sealed and completed a batch that is open here: an append would write to freed memory
            self.arena.retire(info.chain, False)
        CRASHPOINT(b"outcome.read")
        if outcome.flags & CYP_OUTCOME_RESULT:
            if outcome.error or outcome.extents:
                self._read_details(slot, outcome)
            self.settle(slot, outcome.error, outcome.base_offset, outcome.append_time)
        if outcome.flags & CYP_OUTCOME_RELEASE:
            self.settle(slot, errors.OUTCOME_UNKNOWN, -1, -1)
            CRASHPOINT(b"outcome.settled")
            self.arena.release(slot)
        return 0

    cdef int _read_details(self, uint32_t slot, const cyp_outcome *outcome) except -1:
        """Copy the texts and extents to which an outcome leads.

        No garbage is collected meanwhile. A finalizer could take further outcomes, and the sender would use the places
        of these texts and extents again.
        """
        cdef int collecting = PyGC_Disable()
        try:
            if outcome.error:
                self._explain(slot, outcome)
            if outcome.extents:
                self._take_extents(slot, outcome.extents)
        finally:
            if collecting:
                PyGC_Enable()
        return 0

    cdef int _explain(self, uint32_t slot, const cyp_outcome *outcome) except -1:
        """Store the details of the batch's error: the code of the last failed attempt, and the broker's message."""
        cdef Batch batch
        if self.arena.slots[slot].batch == NULL or not self.arena.slots[slot].waits:
            return 0
        batch = <Batch>self.arena.slots[slot].batch
        batch.cause = outcome.cause
        batch.said = self._said(outcome.text, outcome.error, outcome.cause)
        if outcome.error == TOO_LARGE or outcome.error == errors.REQUEST_TOO_LARGE:
            self._note_refused(batch, slot)
        return 0

    cdef str _said(self, uint32_t place, int32_t error, int32_t cause):
        """Return the reason that came with the outcome, or the sender's last error if that may be the reason."""
        cdef str text = self._text(place)
        if text is None and (cause == errors.AUTHENTICATION_FAILED or error == errors.DELIVERY_TIMEOUT):
            last = self.topics.last_error
            text = f"the sender's last error: {last}" if last else None
        return text

    cdef str _text(self, uint32_t place):
        """Return the broker's message in text place `place - 1`; None if `place` is not that of a message."""
        cdef const cyp_text *text
        if not 0 < place <= CYP_TEXTS:
            return None
        text = &self.header.texts[place - 1]
        said = PyBytes_FromStringAndSize(text.text, min(text.bytes, <uint32_t>CYP_TEXT_BYTES))
        return said.decode(errors="replace")

    cdef int _take_extents(self, uint32_t slot, uint32_t at) except -1:
        """Copy the results of a batch that the sender has split. `at - 1` is their first row."""
        cdef cyp_extent found
        cdef Extent extent
        cdef list extents = []
        cdef bint too_large = True              # the batch was refused for its size, not because of some records
        if self.arena.slots[slot].batch == NULL or not self.arena.slots[slot].waits:
            return 0
        while 0 < at <= CYP_EXTENTS_MAX and len(extents) < CYP_EXTENTS_MAX:
            extent_take(&self.extents[at - 1], &found)
            extent = Extent.__new__(Extent)
            extent.first, extent.count = found.first, found.count
            extent.error, extent.cause = found.error, found.cause
            extent.base_offset, extent.append_time = found.base_offset, found.append_time
            extent.said = self._said(found.text, found.error, found.cause)
            too_large = too_large and found.error in (0, TOO_LARGE)
            if found.error:
                self._count_failure(found.error)
                self.arena.own.fail(found.count)
            extents.append(extent)
            at = found.next
        extents.sort(key=first_of)
        (<Batch>self.arena.slots[slot].batch).extents = extents
        if too_large:
            self._note_refused(<Batch>self.arena.slots[slot].batch, slot)
        return 0

    cdef int _note_refused(self, Batch batch, uint32_t slot) except -1:
        """Note that the batch was too large for its topic or for the broker: the next ones must be smaller."""
        cdef Topic topic = self.topics.by_name.get(batch.topic)
        cdef uint32_t size = <uint32_t>chain_bytes(self.arena, slot)
        if topic is not None and (topic.refused_bytes == 0 or size < topic.refused_bytes):
            topic.refused_bytes = size
        return 0

    cdef int settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1:
        """Give the batch that starts in `slot` its outcome, unless it has one already."""
        cdef Batch batch
        if not self.arena.slots[slot].waits:
            return 0
        if error:
            self._count_failure(error)
            self.arena.own.fail(self._failed_records(slot))
        batch = self.arena.remove_pending(slot)
        if batch is not None:
            batch.finish(error, base_offset, append_time)
            self.finished.append(batch)
        return 0

    cdef long long _failed_records(self, uint32_t slot) except -1:
        """Return the number of records of a failed batch that have no result of their own."""
        cdef long long count = chain_records(self.arena, slot)
        cdef Extent extent
        cdef void *batch = self.arena.slots[slot].batch
        if batch != NULL and (<Batch>batch).extents is not None:
            for extent in (<Batch>batch).extents:
                count -= extent.count
        return max(count, 0)

    cdef int fail(self, object batches, int32_t code) except -1:
        """Give unsent batches the error `code`."""
        cdef Batch batch
        for batch in batches:
            batch.finish(code, -1, -1)
            self._count_failure(code)
            self.finished.append(batch)
        return 0

    cdef void _count_failure(self, int32_t error) noexcept:
        self.failures += 1
        if self.first_error == 0:
            self.first_error = error

    def watch(self):
        """Forget the errors so far: `first_error` is the next one."""
        self.first_error = 0

    cdef int take_over(self, OutcomeReader former) except -1:
        """Continue the counts of the session before."""
        self.failures, self.first_error = former.failures, former.first_error
        return 0

    cdef list take_finished(self):
        """Remove and return the batches that have finished since the last call."""
        cdef list finished = self.finished
        self.finished = []
        return finished


cdef OutcomeReader make_outcome_reader(Arena arena, TopicTable topics):
    cdef OutcomeReader reader = OutcomeReader.__new__(OutcomeReader)
    reader.arena = arena
    reader.topics = topics
    reader.finished = []
    return reader


native_only(OutcomeReader)
