"""Reads the outcomes of batches from the outcome ring, frees their memory, and notifies waiters and callbacks.

Every method runs with the GIL held. The class is a base of Session. drain() first takes all outcomes off the ring and
only then notifies the waiters, so that the code that they run finds the session consistent.
"""

from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize

from cyproducer.producer.arena.append cimport Chain
from cyproducer.producer.arena.arena cimport SlotInfo
from cyproducer.producer.session.unsent_batches cimport chain_records
from cyproducer.shm.atomics cimport store_relaxed, store_release
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport (
    CYP_NONE,
    CYP_OUTCOME_RELEASE,
    CYP_OUTCOME_RESULT,
    CYP_TEXT_BYTES,
    CYP_TEXTS,
    CYP_UNIT_BYTES,
    cyp_outcome,
    cyp_text,
)
from cyproducer.shm.ring cimport outcome_available, outcome_is_current, outcome_take

from cyproducer import errors
from cyproducer.producer.results.callbacks import Delivery


@cython.auto_pickle(False)
cdef class OutcomeReader(Metadata):
    """The part of a session that reads outcomes and notifies waiters and callbacks."""

    def __cinit__(self, *args):
        self.memory_queue = deque()
        self.ready = deque()
        self.finished = []

    # ---------------------------------------------------------------- state

    @property
    def alive(self):
        """Whether the session can be used: it has not ended and belongs to this process, not to a fork's parent."""
        return self.sentinel[0] == self.token

    @property
    def foreign(self):
        """Whether this is a forked child and the session is the parent's."""
        return self.sentinel[0] != self.process

    @property
    def recovering(self):
        """Whether the session has ended and its unsent batches wait for the next session."""
        return self.sentinel[0] != self.token and len(self.unsent_lists) != 0 and self.sentinel[0] == self.process

    @property
    def over(self):
        """Whether the session has ended and has no unsent batches."""
        return self.sentinel[0] != self.token and not self.recovering

    @property
    def latest(self):
        """The last session of the chain of successors; the session itself if it has none."""
        session = self
        while session.successor is not None:
            session = session.successor
        return session

    @property
    def buffer_available(self):
        """Free bytes of the arena; 0 without an arena."""
        return self.pool.free_bytes if self.pool is not None else 0

    @property
    def open_records(self):
        """Records in batches that are still open."""
        cdef long long found = 0
        cdef Chain *chain = self.open_chains
        while chain != NULL:
            found += chain.total
            chain = chain.next_open
        return found

    def unfinished(self):
        """Return the batches without an outcome; those of one partition are in the order in which they were opened."""
        cdef uint32_t slot = self.first_pending
        found = []
        while slot != CYP_NONE:
            if self.slots[slot].batch != NULL:
                found.append(<object>self.slots[slot].batch)
            slot = self.slots[slot].next_pending
        for unsent in list(self.unsent_lists):
            found += unsent.batches()
        return found

    def outstanding(self):
        """Return (batches, records): how many have no outcome."""
        cdef uint32_t slot = self.first_pending
        cdef long long batches = self.pending, records = 0
        if self.sentinel[0] == self.token:
            while slot != CYP_NONE:
                records += chain_records(self, slot)
                slot = self.slots[slot].next_pending
        for unsent in list(self.unsent_lists):
            batches += unsent.count
            records += unsent.records()
        return batches, records

    def seal_all(self):
        """Give every open batch to the sender now."""
        while self.sentinel[0] == self.token and self.open_chains != NULL:
            self.close_chain(self.open_chains, False)

    def add_blocked(self, uint64_t waited_ns):
        """Add the time that one send() has waited for memory."""
        self.blocked_ns += waited_ns
        if self.sentinel[0] == self.token:
            store_relaxed(&self.port.arena.blocked_ns, self.blocked_ns)

    # ---------------------------------------------------------------- outcomes

    cpdef int drain(self) except -1:
        """Take all available outcomes, free their batches' memory and notify the waiters. Return how many."""
        cdef uint64_t count, _i
        cdef cyp_outcome outcome
        if self.sentinel[0] != self.token:
            return 0
        count = outcome_available(&self.outcomes.outcome_tail, self.outcome_head)
        if count == 0:
            return 0
        for _i in range(count):
            outcome_take(self.outcome_ring, self.geometry.outcome_entries - 1, self.outcome_head, &outcome)
            self.outcome_head += 1
            self._apply(&outcome)
        # release: the texts have been read; pairs with the acquire of the sender, which then reuses their places
        store_release(&self.port.arena.outcome_head, self.outcome_head)
        store_relaxed(
            &self.port.arena.bytes_in_use, <uint64_t>self.geometry.slot_count * CYP_UNIT_BYTES - self.pool.free_bytes
        )
        CRASHPOINT(b"outcome.drained")
        self._notify_finished()
        return <int>count

    cdef int _apply(self, const cyp_outcome *outcome) except -1:
        cdef uint32_t slot = outcome.slot
        cdef SlotInfo *info
        if slot >= self.geometry.slot_count or not outcome_is_current(outcome, self.slots[slot].generation):
            return 0  # the batch has been freed already: a sender after a takeover may publish an outcome twice
        info = &self.slots[slot]
        if info.chain != NULL and outcome.flags & (CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE):
            # the sender has sealed and completed a batch that is open here: an append would write to freed memory
            self._retire(info.chain, False)
        CRASHPOINT(b"outcome.read")
        if outcome.flags & CYP_OUTCOME_RESULT:
            if outcome.error:
                self._explain(slot, outcome)
            self._settle(slot, outcome.error, outcome.base_offset, outcome.append_time)
        if outcome.flags & CYP_OUTCOME_RELEASE:
            self._settle(slot, errors.OUTCOME_UNKNOWN, -1, -1)
            CRASHPOINT(b"outcome.settled")
            self._release(slot)
        return 0

    cdef int _explain(self, uint32_t slot, const cyp_outcome *outcome) except -1:
        """Store the details of the batch's error: the code of the last failed attempt, and the broker's message."""
        cdef Batch batch
        cdef const cyp_text *text
        if self.slots[slot].batch == NULL or not self.slots[slot].waits:
            return 0
        batch = <Batch>self.slots[slot].batch
        batch.cause = outcome.cause
        if 0 < outcome.text <= CYP_TEXTS:
            text = &self.outcomes.texts[outcome.text - 1]
            said = PyBytes_FromStringAndSize(text.text, min(text.bytes, <uint32_t>CYP_TEXT_BYTES))
            batch.said = said.decode(errors="replace")
        return 0

    cdef int _settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1:
        """Give the batch that starts in `slot` its outcome, unless it has one already."""
        cdef Batch batch
        if not self.slots[slot].waits:
            return 0
        if error:
            self.failures += 1
        batch = self._remove_pending(slot)
        if batch is not None:
            batch.finish(error, base_offset, append_time)
            self.finished.append(batch)
        return 0

    cdef int _notify_finished(self) except -1:
        """Notify the waiters of finished batches, pass callbacks to their thread, and offer freed memory to waiters."""
        cdef Batch batch
        cdef list finished = self.finished, notified = []
        self.finished = []
        for batch in finished:
            if batch.callbacks is not None:
                self.watched -= 1
                self.ready.append(batch)
            waiters = batch.take_waiters()
            if waiters is not None:
                notified += waiters
        error = self.notify_all(notified, "notify") if notified else None
        if self.freed:
            self.freed = False
            if self.unsent_lists:
                self.take_over()
            if self.memory_queue:
                error = self.notify_all((self.memory_queue[0],), "notify") or error
        if self.ready and self.delivery is not None:
            error = self.notify_all((self.delivery,), "poke") or error
        if error is not None:
            raise error
        return 0

    def notify_all(self, waiters, str how):
        """Call the method named `how` of every waiter, also if a signal handler raises. Return that exception."""
        error = None
        again = []
        for waiter in waiters:
            try:
                getattr(waiter, how)()
            except BaseException as raised:
                error = raised
                again.append(waiter)
        for waiter in again:
            getattr(waiter, how)()
        return error

    cdef int _fail(self, object batches, int32_t code) except -1:
        cdef Batch batch
        for batch in batches:
            batch.finish(code, -1, -1)
            self.failures += 1
            self.finished.append(batch)
        return 0

    # ---------------------------------------------------------------- callbacks

    def ensure_delivery(self):
        """Start the callback thread unless it runs. Raise the errors of creating and starting a thread."""
        if self.delivery is not None or self.over and not self.ready:
            return
        delivery = Delivery(self)
        if self.delivery is None:
            self.delivery = delivery
            try:
                delivery.start()
            except BaseException:
                self.delivery = None  # the next callback tries again
                delivery.close()
                raise
        else:
            delivery.close()  # another thread has started one meanwhile

    def retire_delivery(self):
        """Return whether the callback thread may end. If so, forget it: the next callback starts another one."""
        if self.successor is not None or self.watched or self.ready or not (self.orphaned or self.over):
            return False
        self.delivery = None
        return True

    def forget_delivery(self, delivery):
        """Note that the thread of `delivery` has ended: the next callback starts another one."""
        if self.delivery is delivery:
            self.delivery = None

    def watch_batch(self):
        """Count a batch that got its first callback. The batch may be done and its callback run when this returns."""
        self.watched += 1
        if self.delivery is None:
            self.ensure_delivery()
        if self.delivery is not None:
            self.delivery.poke()
