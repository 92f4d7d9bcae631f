"""Keeps the rows of transactional producers in the state region, and their lanes.

Each transactional producer has a row (cyp_transaction_row) with its producer id, epoch and state. The control plane
changes the state; the engine stores IN_TRANSACTION before the first byte of a batch, and `failed` before the outcome of
the first record that fails. A failed transaction sends nothing more and can only be aborted. So whatever an attempt of
one of its batches has left in the log is never committed.
"""


cdef inline cyp_transaction_place *current_copy(const Transaction *transaction) noexcept nogil:
    """Return the place of the transaction's row that is in force."""
    cdef cyp_transaction_row *row = transaction.row
    return &row.places[row.current & 1]


cdef inline bint is_open(const Transaction *transaction) noexcept nogil:
    """Return whether a transaction may be open at the broker."""
    cdef uint32_t state = current_copy(transaction).phase
    return CYP_TRANSACTION_IN_TRANSACTION <= state <= CYP_TRANSACTION_ABORTING_TRANSACTION


cdef inline void schedule_news(Transaction *transaction) noexcept nogil:
    """Let the control plane look at the transaction after this loop iteration."""
    transaction.has_news = True
    transaction.core.transactions.news = True


cdef inline bint may_send(Lane *lane) noexcept nogil:
    """Return whether batches of a transactional lane may be sent now.

    Before KIP-890 the coordinator adds the partition to the transaction first. With KIP-890, the former transaction
    must be complete. Let the control plane ask for that.
    """
    cdef cyp_transaction_place *place = current_copy(lane.transaction)
    if place.failed or (place.phase != CYP_TRANSACTION_READY and place.phase != CYP_TRANSACTION_IN_TRANSACTION):
        return False
    if place.v2 or lane.transactions.added:
        if lane.transaction.hold == HOLD:
            lane.transaction.hold = HOLD_AWAITED
            schedule_news(lane.transaction)
        return lane.transaction.hold == HOLD_NONE
    if not lane.transactions.addition_wanted:
        lane.transactions.addition_wanted = True
        schedule_news(lane.transaction)
    return False


cdef void map_transactions(Core *core) noexcept:
    """Connect the private table with the rows of the state region."""
    cdef uint32_t index
    for index in range(CYP_TRANSACTIONS_MAX):
        core.transactions.table[index].core = core
        core.transactions.table[index].index = index
        core.transactions.table[index].row = &core.transaction_rows[index]


cdef Transaction *add_transaction(Core *core, uint64_t attach_id, bytes name, int32_t timeout_ms) except NULL:
    """Give a transactional producer a row. It is UNINITIALIZED and counts as failed until it has a producer id.

    Raise OverflowError if all rows are in use, ValueError if the transactional id is empty or too long.
    """
    cdef cyp_transaction_place place
    memset(&place, 0, sizeof(place))
    place.producer_id = -1
    place.producer_epoch = -1
    place.phase = CYP_TRANSACTION_UNINITIALIZED
    place.failed = CODE_TRANSACTION_ABORTED
    return _new_transaction_row(core, attach_id, name, timeout_ms, &place)


cdef Transaction *join_transaction(
    Core *core, bytes name, int32_t timeout_ms, int64_t producer_id, int16_t epoch, bint v2
) except NULL:
    """Return the row of a transaction in which several front-ends take part, added if needed, and count one more.

    Another process has begun it and ends it. All front-ends of this host continue the same sequences, so the row stays
    when they have ended. Raise the errors of add_transaction().
    """
    cdef cyp_transaction_place place
    cdef Transaction *transaction = find_shared(core, name, producer_id, epoch)
    if transaction == NULL:
        memset(&place, 0, sizeof(place))
        place.producer_id = producer_id
        place.producer_epoch = epoch
        place.phase = CYP_TRANSACTION_IN_TRANSACTION
        place.v2 = v2
        transaction = _new_transaction_row(core, 0, name, timeout_ms, &place)
    transaction.participants += 1
    return transaction


cdef Transaction *find_shared(Core *core, bytes name, int64_t producer_id, int16_t epoch) noexcept:
    """Return the row of a transaction in which several front-ends take part; NULL if there is none."""
    cdef uint32_t index
    cdef cyp_transaction_row *row
    cdef cyp_transaction_place *place
    for index in range(core.transactions.end):
        row = &core.transaction_rows[index]
        place = current_copy(&core.transactions.table[index])
        if core.transactions.table[index].used and row.attach_id == 0 and place.producer_id == producer_id \
                and place.producer_epoch == epoch and row.id[:row.id_bytes] == name:
            return &core.transactions.table[index]
    return NULL


cdef void leave_transaction(Transaction *transaction) noexcept nogil:
    """Note that a front-end which took part in the transaction has ended."""
    transaction.participants -= 1
    schedule_news(transaction)


cdef Transaction *_new_transaction_row(
    Core *core, uint64_t attach_id, bytes name, int32_t timeout_ms, const cyp_transaction_place *place
) except NULL:
    cdef uint32_t index = 0
    cdef cyp_transaction_row *row
    if not 0 < len(name) < CYP_TRANSACTIONAL_ID_BYTES:
        raise ValueError(f"the transactional id has {len(name)} bytes, not 1 to {CYP_TRANSACTIONAL_ID_BYTES - 1}")
    while index < CYP_TRANSACTIONS_MAX and core.transactions.table[index].used:
        index += 1
    if index == CYP_TRANSACTIONS_MAX:
        raise OverflowError(f"too many transactional producers: one sender handles at most {CYP_TRANSACTIONS_MAX}")
    row = &core.transaction_rows[index]
    row.current = 0
    row.attach_id = attach_id
    row.timeout_ms = timeout_ms
    row.id_bytes = <uint32_t>len(name)
    memset(row.id, 0, CYP_TRANSACTIONAL_ID_BYTES)
    memcpy(row.id, <const char *>name, len(name))
    row.places[0] = place[0]
    CRASHPOINT(b"transaction.row-filled")
    store_release32(&row.used, 1)  # a successor sees the whole row
    CRASHPOINT(b"transaction.row-used")
    return _enlist_transaction(core, index)


cdef Transaction *_enlist_transaction(Core *core, uint32_t index) noexcept nogil:
    cdef Transaction *transaction = &core.transactions.table[index]
    transaction.used = True
    transaction.orphaned = False
    transaction.hold = HOLD_NONE
    transaction.participants = 0
    transaction.lanes = NULL
    transaction.has_news = False
    transaction.awaited = False
    core.transactions.end = max(core.transactions.end, index + 1)
    return transaction


cdef object restore_transactions(Core *core):
    """Restore the transactional producers as the predecessor has stored them, before the partitions.

    Each counts as orphaned until its front-end is restored. Raise ValueError for a row that no sender writes.
    """
    cdef uint32_t index
    cdef cyp_transaction_row *row
    for index in range(CYP_TRANSACTIONS_MAX):
        row = &core.transaction_rows[index]
        if not row.used:
            continue
        if row.current > 1 or not 0 < row.id_bytes < CYP_TRANSACTIONAL_ID_BYTES \
                or row.places[row.current].phase > CYP_TRANSACTION_FATAL_ERROR:
            raise ValueError(f"the table of transactions has an invalid row {index}")
        _enlist_transaction(core, index).orphaned = row.attach_id != 0
        schedule_news(&core.transactions.table[index])
        if current_copy(&core.transactions.table[index]).failed:
            schedule_failing(&core.transactions.table[index])


cdef Transaction *find_transaction(Core *core, uint64_t attach_id) except NULL:
    """Return the transactional producer of a front-end. Raise ValueError if there is none."""
    cdef uint32_t index
    for index in range(core.transactions.end):
        if core.transactions.table[index].used and core.transaction_rows[index].attach_id == attach_id:
            return &core.transactions.table[index]
    raise ValueError(f"front-end {attach_id} has no row in the table of transactions")


cdef bint has_left_nothing(Core *core, uint64_t attach_id, dict settings) except -1:
    """Return whether a transactional front-end that has ended is without a row, which is freed as the last of it."""
    if settings.get("transactional_id") is None:
        return False
    joined = settings.get("joined_transaction")
    if joined is not None:
        return find_shared(core, settings["transactional_id"].encode(), joined[0], joined[1]) == NULL
    try:
        find_transaction(core, attach_id)
    except ValueError:
        return True
    return False


cdef void orphan_transaction(Transaction *transaction) noexcept nogil:
    """Note that the front-end has ended. A transaction that is not being committed can only be aborted now."""
    transaction.orphaned = True
    if current_copy(transaction).phase <= CYP_TRANSACTION_IN_TRANSACTION:
        fail_transaction(transaction, CODE_TRANSACTION_ABORTED)
    schedule_news(transaction)


cdef void free_transaction(Transaction *transaction) noexcept nogil:
    """Free the row of a transactional producer whose lanes are freed."""
    cdef Transaction **link = &transaction.core.transactions.failing
    while link[0] != NULL and link[0] != transaction:
        link = &link[0].next_failing
    if link[0] != NULL:
        link[0] = transaction.next_failing
    transaction.failing = False
    transaction.used = False
    store_release32(&transaction.row.used, 0)
    CRASHPOINT(b"transaction.row-freed")


cdef void store_copy(Transaction *transaction, const cyp_transaction_place *place) noexcept nogil:
    """Put a new state of the row in force with one store. READY begins without partitions."""
    cdef cyp_transaction_row *row = transaction.row
    cdef uint32_t spare = row.current ^ 1
    cdef Lane *lane = transaction.lanes
    row.places[spare] = place[0]
    CRASHPOINT(b"transaction.place-filled")
    store_release32(&row.current, spare)  # a successor sees the old state or the whole new one
    CRASHPOINT(b"transaction.place-stored")
    while lane != NULL and place.phase == CYP_TRANSACTION_READY:
        lane.transactions.added = False
        lane.transactions.addition_wanted = False
        lane.idempotence.bumping = False  # it was about an epoch that is over
        lane = lane.topics.next_of_transaction


cdef void open_transaction(Transaction *transaction) noexcept nogil:
    """Store that a transaction may be open at the broker. This must be called before the first byte is written."""
    cdef cyp_transaction_place *place = current_copy(transaction)
    if place.phase == CYP_TRANSACTION_READY:
        store_release32(&place.phase, CYP_TRANSACTION_IN_TRANSACTION)
        CRASHPOINT(b"transaction.opened")


cdef void demand_producer_epoch(Transaction *transaction) noexcept nogil:
    """Store that batches with a sequence are dropped. This must be called before their entries are freed."""
    current_copy(transaction).needs_epoch = 1
    CRASHPOINT(b"transaction.epoch-needed")


cdef void fail_transaction(Transaction *transaction, int32_t error) noexcept nogil:
    """Let the transaction fail with the code of a record's error, before the front-end gets the record's outcome."""
    cdef cyp_transaction_place *place = current_copy(transaction)
    if place.failed == 0:
        store_release32(<uint32_t *>&place.failed, <uint32_t>error)
        CRASHPOINT(b"transaction.failed")
        schedule_news(transaction)
    schedule_failing(transaction)


cdef void schedule_failing(Transaction *transaction) noexcept nogil:
    """Note that batches of the failed transaction must end: this is done before the next requests are made."""
    if not transaction.failing:
        transaction.failing = True
        transaction.next_failing = transaction.core.transactions.failing
        transaction.core.transactions.failing = transaction


cdef Lane *lane_of(Transaction *transaction, Lane *ordinary) noexcept nogil:
    """Return the transaction's lane of a partition, added if needed; NULL without memory or a row."""
    cdef Lane *lane = ordinary.topics.transactional
    while lane != NULL and lane.transaction != transaction:
        lane = lane.topics.next_transactional
    if lane == NULL:
        lane = append_transactional(transaction.core, ordinary, transaction)
    return lane


cdef bint is_busy(const Transaction *transaction) noexcept nogil:
    """Return whether a batch of the transaction is queued, waits to be sent again, or is in flight."""
    cdef const Lane *lane = transaction.lanes
    while lane != NULL:
        if lane.intake.queues.length or lane.wire.unresolved:
            return True
        lane = lane.topics.next_of_transaction
    return False


# ------------------------------------------------------------ failed transactions
#
# Ends the batches of failed transactions, as Kafka's RecordAccumulator.abortUndrainedBatches.
#
# A batch that is queued, or that waits to be sent again, ends with TRANSACTION_ABORTED: the transaction can only be
# aborted, so the record is not committed, even if an earlier attempt is in the log. A batch in flight is waited for.
# Its answer may still be a success, or it waits to be sent again and ends here.


cdef void end_failed(Core *core) noexcept nogil:
    """End what is queued or waits of the transactions that have failed."""
    cdef Transaction *transaction
    cdef Lane *lane
    while core.transactions.failing != NULL:
        transaction = core.transactions.failing
        core.transactions.failing = transaction.next_failing
        transaction.failing = False
        if not current_copy(transaction).failed:
            continue  # it was aborted meanwhile
        lane = transaction.lanes
        while lane != NULL:
            _end_waiting(core, lane)
            while lane.intake.queues.first != NULL:
                _end_queue(core, <Queue *>lane.intake.queues.first)
            lane = lane.topics.next_of_transaction


cdef void _end_waiting(Core *core, Lane *lane) noexcept nogil:
    cdef WireBatch *wire = lane.wire.head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.wire.next
        if wire.wire.state == WIRE_WAITING and wire.idempotence.unsure and wire.idempotence.proven:
            acknowledge(core, wire, wire.idempotence.proven_offset, -1)
        elif wire.wire.state == WIRE_WAITING:
            abort_batch(core, wire)
        wire = following


cdef void _end_queue(Core *core, Queue *queue) noexcept nogil:
    cdef ClientBatch *batch = queue.intake.head
    if batch.intake.state == BATCH_CLOSED or seal(core, batch):  # otherwise it was malformed and has left the queue
        remove(queue, batch)
        release_batch(core, batch, -1, -1, CODE_TRANSACTION_ABORTED, NULL)
