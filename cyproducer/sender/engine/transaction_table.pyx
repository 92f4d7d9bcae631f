"""Gives the control plane access to the rows of transactional producers (transactions.pyx)."""

cdef tuple STATES = tuple(TransactionState)


cdef class TransactionTable:
    """The transactional producers of one sender, by the index of their row.

    Methods with an index raise IndexError if the row is not in use.
    """

    cdef FrontEnds front_ends
    cdef Core *core

    def __cinit__(self, FrontEnds front_ends not None):
        self.front_ends = front_ends
        self.core = &front_ends.core

    cdef Transaction *_row(self, object index) except NULL:
        if not 0 <= index < self.core.transactions.end or not self.core.transactions.table[<uint32_t>index].used:
            raise IndexError(f"row {index} of the table of transactions is not in use")
        return &self.core.transactions.table[<uint32_t>index]

    def rows(self):
        """Return the indexes of the rows in use."""
        return (
            [index for index in range(self.core.transactions.end) if self.core.transactions.table[<uint32_t>index].used]
        )

    def shared_rows(self):
        """Return the indexes of the rows in which several front-ends can take part."""
        cdef uint32_t index
        found = []
        for index in range(self.core.transactions.end):
            if self.core.transactions.table[index].used and self.core.transaction_rows[index].attach_id == 0:
                found.append(index)
        return found

    def row_of(self, uint64_t attach_id):
        """Return the row of a front-end; None if it is not transactional."""
        cdef uint32_t index
        for index in range(self.core.transactions.end):
            if self.core.transactions.table[index].used and self.core.transaction_rows[index].attach_id == attach_id:
                return index
        return None

    def read(self, index):
        """Return the TransactionRow as it is now."""
        cdef Transaction *transaction = self._row(index)
        cdef cyp_transaction_row *row = transaction.row
        cdef cyp_transaction_place *place = current_copy(transaction)
        return TransactionRow(
            transactional_id=row.id[:row.id_bytes].decode(),
            attach_id=row.attach_id,
            timeout_ms=row.timeout_ms,
            state=STATES[place.phase],
            producer_id=place.producer_id,
            epoch=place.producer_epoch,
            failed=place.failed,
            needs_epoch=place.needs_epoch != 0,
            v2=place.v2 != 0,
            number=place.number,
            result=place.result,
            orphaned=transaction.orphaned != 0,
            shared=row.attach_id == 0,
            participants=transaction.participants,
            held=transaction.hold != HOLD_NONE,
            holds_up=transaction.hold == HOLD_AWAITED,
        )

    def store(
        self, index, uint32_t state, int64_t producer_id, int16_t epoch, uint64_t number, int32_t result, bint v2
    ):
        """Change a row. All of it takes effect with one store. READY ends the failed state, too."""
        cdef Transaction *transaction = self._row(index)
        cdef cyp_transaction_place place = current_copy(transaction)[0]
        if state > CYP_TRANSACTION_FATAL_ERROR:
            raise ValueError(f"state {state} of a transactional producer is none that is stored")
        place.phase = state
        place.producer_id = producer_id
        place.producer_epoch = epoch
        place.number = number
        place.result = result
        place.v2 = v2
        if place.phase == CYP_TRANSACTION_READY:
            place.failed = 0
            place.needs_epoch = 0
        transaction.awaited = False
        store_copy(transaction, &place)

    def open(self, index):
        """Store that a transaction may be open at the broker, before a request that can begin one is sent."""
        open_transaction(self._row(index))

    def hold(self, index):
        """Send no batch until release(): the former transaction may not be complete at the broker.

        An event follows when a batch waits for that.
        """
        self._row(index).hold = HOLD

    def release(self, index):
        """Let batches be sent again, see hold()."""
        self._row(index).hold = HOLD_NONE

    def fail(self, index, int32_t code):
        """Let the transaction fail: its unsent batches end with TRANSACTION_ABORTED. The first code is kept."""
        fail_transaction(self._row(index), code)

    def read_submissions(self, index):
        """Take the batches that the front-end of the row has submitted. Return whether that was all.

        It was not if there are many, which the next call or the loop takes, or if the front-end is being detached.
        """
        cdef FrontEnd *front_end = self.front_ends._find(self._row(index).row.attach_id)
        cdef bint is_all
        if front_end == NULL:
            return False
        update_clock(self.core)
        activate(self.core, front_end)
        is_all = read_submissions(self.core, front_end)
        untouch(self.core)
        return is_all

    def is_busy(self, index):
        """Return whether batches are queued or in flight. If so, an event follows when that may have changed."""
        cdef Transaction *transaction = self._row(index)
        transaction.awaited = is_busy(transaction)
        return transaction.awaited != 0

    def partitions_to_add(self, index):
        """Return [(topic, partition)] with batches that wait until the coordinator has added the partition."""
        cdef Lane *lane = self._row(index).lanes
        found = []
        while lane != NULL:
            if not lane.transactions.added and (lane.intake.queues.length or lane.wire.unresolved):
                found.append((lane.topic.name[:lane.topic.name_bytes].decode(), lane.number))
            lane = lane.topics.next_of_transaction
        return found

    def on_partitions_added(self, index, partitions):
        """Allow the batches of these [(topic, partition)] to be sent."""
        cdef Lane *lane = self._row(index).lanes
        added = set(partitions)
        while lane != NULL:
            if (lane.topic.name[:lane.topic.name_bytes].decode(), lane.number) in added:
                lane.transactions.added = True
            lane = lane.topics.next_of_transaction

    def remove(self, index):
        """Free the row of a producer whose front-end has ended. Return False if something still refers to its lanes."""
        cdef Transaction *transaction = self._row(index)
        cdef Lane *lane = transaction.lanes
        if self.core.outcome.event_count or self._is_attached(transaction):
            return False
        while lane != NULL:
            if lane.drain.backs_off and lane.intake.queues.length == 0 and lane.wire.unresolved == 0:
                unlink_backoff(lane)  # nothing of it is sent again, so its time may end while the broker is down
            if not is_idle(lane) or self._is_asked(lane):
                return False
            lane = lane.topics.next_of_transaction
        while transaction.lanes != NULL:
            free_transactional(self.core, transaction.lanes)
        free_transaction(transaction)
        return True

    cdef bint _is_attached(self, Transaction *transaction) except -1:
        """Return whether a front-end refers to the row: it is attached, or has batches that were not released."""
        front_end = self.core.front_end.first
        while front_end != NULL:
            if front_end.transaction == transaction:
                return True
            front_end = front_end.front_end.next
        return False

    cdef bint _is_asked(self, Lane *lane) except -1:
        """Return whether a request about the state of the lane's producer is being made or in flight."""
        cdef uint32_t index, at
        for index in range(self.core.connection.node_count):
            for at in range(self.core.connection.nodes[index].idempotence.asked_count):
                if self.core.connection.nodes[index].idempotence.asked[at] == lane:
                    return True
        return False
