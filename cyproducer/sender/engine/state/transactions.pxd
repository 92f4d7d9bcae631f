"""Declares the functions for the rows of transactional producers, see transactions.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Core, Lane, Transaction
from cyproducer.sender.engine.state.states cimport SETTLED, UNSETTLED, UNSETTLED_AND_AWAITED
from cyproducer.shm.layout cimport (
    CYP_TRANSACTION_ABORTING,
    CYP_TRANSACTION_OPEN,
    CYP_TRANSACTION_READY,
    cyp_transaction_place,
    cyp_transaction_row,
)


cdef inline cyp_transaction_place *place_of(const Transaction *transaction) noexcept nogil:
    """Return the place of the transaction's row that is in force."""
    cdef cyp_transaction_row *row = transaction.row
    return &row.places[row.current & 1]


cdef inline bint is_open(const Transaction *transaction) noexcept nogil:
    """Return whether a transaction may be open at the broker."""
    cdef uint32_t phase = place_of(transaction).phase
    return CYP_TRANSACTION_OPEN <= phase <= CYP_TRANSACTION_ABORTING


cdef inline void report_news(Transaction *transaction) noexcept nogil:
    """Let the control plane look at the transaction after this loop iteration."""
    transaction.has_news = True
    transaction.core.transactions_news = True


cdef inline bint may_send(Lane *lane) noexcept nogil:
    """Return whether batches of a transactional lane may be sent now.

    Before KIP-890 the coordinator adds the partition to the transaction first. With KIP-890, the former transaction
    must be complete. Let the control plane ask for that.
    """
    cdef cyp_transaction_place *place = place_of(lane.transaction)
    if place.failed or (place.phase != CYP_TRANSACTION_READY and place.phase != CYP_TRANSACTION_OPEN):
        return False
    if place.v2 or lane.added:
        if lane.transaction.settling == UNSETTLED:
            lane.transaction.settling = UNSETTLED_AND_AWAITED
            report_news(lane.transaction)
        return lane.transaction.settling == SETTLED
    if not lane.addition_wanted:
        lane.addition_wanted = True
        report_news(lane.transaction)
    return False


cdef void place_transactions(Core *core) noexcept
cdef Transaction *add_transaction(Core *core, uint64_t attach_id, bytes name, int32_t timeout_ms) except NULL
cdef Transaction *join_transaction(
    Core *core, bytes name, int32_t timeout_ms, int64_t producer_id, int16_t epoch, bint v2
) except NULL
cdef object restore_transactions(Core *core)
cdef Transaction *find_transaction(Core *core, uint64_t attach_id) except NULL
cdef Transaction *find_shared(Core *core, bytes name, int64_t producer_id, int16_t epoch) noexcept
cdef void leave_transaction(Transaction *transaction) noexcept nogil
cdef bint has_left_nothing(Core *core, uint64_t attach_id, dict settings) except -1
cdef void orphan_transaction(Transaction *transaction) noexcept nogil
cdef void free_transaction(Transaction *transaction) noexcept nogil
cdef void store_place(Transaction *transaction, const cyp_transaction_place *place) noexcept nogil
cdef void open_transaction(Transaction *transaction) noexcept nogil
cdef void demand_producer_epoch(Transaction *transaction) noexcept nogil
cdef void fail_transaction(Transaction *transaction, int32_t error) noexcept nogil
cdef void note_failing(Transaction *transaction) noexcept nogil
cdef Lane *lane_of(Transaction *transaction, Lane *ordinary) noexcept nogil
cdef bint is_busy(const Transaction *transaction) noexcept nogil
