"""Declares how a broker's answers decide about batches that may be in the log, see sequences.pyx."""

from libc.stdint cimport int16_t, int64_t

from cyproducer.protocol.error_codes cimport (
    ERROR_INVALID_PRODUCER_EPOCH,
    ERROR_INVALID_PRODUCER_ID_MAPPING,
    ERROR_INVALID_TXN_STATE,
    ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER,
    ERROR_PRODUCER_FENCED,
    ERROR_UNKNOWN_PRODUCER_ID,
)
from cyproducer.sender.engine.state.model cimport Core, Lane, WireBatch


cdef inline bint is_id_error(int16_t error) noexcept nogil:
    """Return whether the broker refuses the producer id itself. The next batch needs another one, see sequences.pyx."""
    return (
        error == ERROR_INVALID_PRODUCER_ID_MAPPING
        or error == ERROR_INVALID_TXN_STATE
        or error == ERROR_PRODUCER_FENCED
    )


cdef inline bint is_sequence_error(const WireBatch *wire, int16_t error) noexcept nogil:
    """Return whether the broker refused the batch for its producer id, epoch or sequence, and not for its records.

    A transaction has its producer id from the coordinator, so there an error of the id ends the batch.
    """
    return wire.idempotent and (
        error == ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER
        or error == ERROR_UNKNOWN_PRODUCER_ID
        or error == ERROR_INVALID_PRODUCER_EPOCH
        or (wire.lane.transaction == NULL and is_id_error(error))
    )


cdef void prove_predecessors(Lane *lane, WireBatch *wire, int64_t base_offset) noexcept nogil
cdef void exclude_followers(Lane *lane, WireBatch *wire) noexcept nogil
cdef void seek_place(WireBatch *wire) noexcept nogil
cdef void complete_proven(Core *core, Lane *lane) noexcept nogil
cdef void on_state_lost(Core *core, Lane *lane) noexcept nogil
cdef void handle_sequence_error(Core *core, WireBatch *wire, int16_t error) noexcept nogil
cdef void restore_sequences(Lane *lane) noexcept nogil
