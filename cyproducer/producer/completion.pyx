"""What became of the batches: outcomes taken off the ring, memory taken back, and everybody told.

Every method runs with the GIL held, as those of Session, which this is a part of. drain() first takes all
outcomes off the ring and only then tells those who wait, so that whatever they do finds the session consistent.
"""

from collections import deque

cimport cython

from cyproducer.producer.append cimport Chain
from cyproducer.producer.arena cimport SlotInfo
from cyproducer.producer.estate cimport chain_records
from cyproducer.shm.atomics cimport store_relaxed
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_NONE, CYP_OUTCOME_RELEASE, CYP_OUTCOME_RESULT, CYP_UNIT_BYTES, cyp_outcome
from cyproducer.shm.ring cimport outcome_available, outcome_is_current, outcome_take

from cyproducer import errors
from cyproducer.producer.delivery import Delivery


@cython.auto_pickle(False)
cdef class Completion(Metadata):
    """The session's batches on their way back."""

    def __cinit__(self, *args):
        self.memory_queue = deque()
        self.ready = deque()
        self.finished = []

    # ---------------------------------------------------------------- state

    @property
    def alive(self):
        """May it be used: not ended, and not in a forked child?"""
        return self.sentinel[0] == self.token

    @property
    def foreign(self):
        """Is it the parent's, in a forked child?"""
        return self.sentinel[0] != self.process

    @property
    def recovering(self):
        """Has it ended, and left batches to a session that is yet to come?"""
        return self.sentinel[0] != self.token and len(self.inherited) != 0 and self.sentinel[0] == self.process

    @property
    def over(self):
        """Has it ended without leaving anything to anybody?"""
        return self.sentinel[0] != self.token and not self.recovering

    @property
    def latest(self):
        """The session that has inherited all that this one left, itself if none has."""
        session = self
        while session.successor is not None:
            session = session.successor
        return session

    @property
    def buffer_available(self):
        """Free bytes of the arena."""
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
        """The batches without an outcome, in an order in which they were opened for each partition."""
        cdef uint32_t slot = self.first_pending
        found = []
        while slot != CYP_NONE:
            if self.slots[slot].batch != NULL:
                found.append(<object>self.slots[slot].batch)
            slot = self.slots[slot].next_pending
        for estate in list(self.inherited):
            found += estate.batches()
        return found

    def outstanding(self):
        """(batches, records) without an outcome."""
        cdef uint32_t slot = self.first_pending
        cdef long long batches = self.pending, records = 0
        if self.sentinel[0] == self.token:
            while slot != CYP_NONE:
                records += chain_records(self, slot)
                slot = self.slots[slot].next_pending
        for estate in list(self.inherited):
            batches += estate.count
            records += estate.records()
        return batches, records

    def seal_all(self):
        """Gives every open batch to the sender now."""
        while self.sentinel[0] == self.token and self.open_chains != NULL:
            self.close_chain(self.open_chains, False)

    def add_blocked(self, uint64_t waited_ns):
        """Time that a send() waited for memory."""
        self.blocked_ns += waited_ns
        if self.sentinel[0] == self.token:
            store_relaxed(&self.port.arena.blocked_ns, self.blocked_ns)

    # ---------------------------------------------------------------- outcomes

    cpdef int drain(self) except -1:
        """Takes the outcomes that are there, frees their memory, tells who waits. Returns how many."""
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
        store_relaxed(&self.port.arena.outcome_head, self.outcome_head)
        store_relaxed(
            &self.port.arena.bytes_in_use, <uint64_t>self.geometry.slot_count * CYP_UNIT_BYTES - self.pool.free_bytes
        )
        CRASHPOINT(b"outcome.drained")
        self._tell()
        return <int>count

    cdef int _apply(self, const cyp_outcome *outcome) except -1:
        cdef uint32_t slot = outcome.slot
        cdef SlotInfo *info
        if slot >= self.geometry.slot_count or not outcome_is_current(outcome, self.slots[slot].generation):
            return 0  # of a batch that is long gone: the sender may publish an outcome twice
        info = &self.slots[slot]
        if info.chain != NULL and outcome.flags & (CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE):
            # the sender has sealed and completed what is open here: writing on would be into freed memory
            self._retire(info.chain, False)
        CRASHPOINT(b"outcome.read")
        if outcome.flags & CYP_OUTCOME_RESULT:
            self._settle(slot, outcome.error, outcome.base_offset, outcome.append_time)
        if outcome.flags & CYP_OUTCOME_RELEASE:
            self._settle(slot, errors.OUTCOME_UNKNOWN, -1, -1)
            CRASHPOINT(b"outcome.settled")
            self._release(slot)
        return 0

    cdef int _settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1:
        """The outcome of the batch that starts in `slot`, unless it has one."""
        cdef Batch batch
        if not self.slots[slot].waits:
            return 0
        if error:
            self.failures += 1
        batch = self._disown(slot)
        if batch is not None:
            batch.finish(error, base_offset, append_time)
            self.finished.append(batch)
        return 0

    cdef int _tell(self) except -1:
        """Tells the waiters of the batches that are finished, and hands callbacks to their thread."""
        cdef Batch batch
        cdef list finished = self.finished, told = []
        self.finished = []
        for batch in finished:
            if batch.callbacks is not None:
                self.watched -= 1
                self.ready.append(batch)
            waiters = batch.take_waiters()
            if waiters is not None:
                told += waiters
        error = self.tell_all(told, "notify") if told else None
        if self.freed:
            self.freed = False
            if self.inherited:
                self.take_over()
            if self.memory_queue:
                error = self.tell_all((self.memory_queue[0],), "notify") or error
        if self.ready and self.delivery is not None:
            error = self.tell_all((self.delivery,), "poke") or error
        if error is not None:
            raise error
        return 0

    def tell_all(self, waiters, str how):
        """Calls that method of each. Returns what a signal's handler has raised meanwhile: nobody is left out."""
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
        """Starts the thread that calls callbacks, unless it runs. Raises what starting a thread raises."""
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
            delivery.close()  # another thread was faster

    def retire_delivery(self):
        """May the callback thread end? True: it is forgotten, and the next callback starts another one."""
        if self.successor is not None or self.watched or self.ready or not (self.orphaned or self.over):
            return False
        self.delivery = None
        return True

    def forget_delivery(self, delivery):
        """`delivery`'s thread has ended: the next callback starts another one."""
        if self.delivery is delivery:
            self.delivery = None

    def watch_batch(self):
        """A batch got its first callback. It may be done, and called back, when this returns."""
        self.watched += 1
        if self.delivery is None:
            self.ensure_delivery()
        if self.delivery is not None:
            self.delivery.poke()
