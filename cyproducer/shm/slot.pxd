"""Declares the functions of slot.h for Cython: every transition of a slot word."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from cyproducer.shm.layout cimport cyp_slot_row


cdef extern from "cyproducer/shm/slot.h" nogil:
    bint slot_open "cyp_slot_open"(cyp_slot_row *row, uint32_t generation, uint64_t opened) noexcept
    void slot_hint "cyp_slot_hint"(cyp_slot_row *row, uint32_t count, int64_t max_timestamp, bint raised) noexcept
    bint slot_commit "cyp_slot_commit"(cyp_slot_row *row, uint64_t seen, uint64_t desired) noexcept
    bint slot_roll "cyp_slot_roll"(cyp_slot_row *row, uint64_t seen, uint32_t next) noexcept
    bint slot_close "cyp_slot_close"(cyp_slot_row *row, uint64_t seen) noexcept
    void slot_free "cyp_slot_free"(cyp_slot_row *row, uint32_t next_generation) noexcept
    void slot_packed "cyp_slot_packed"(
        cyp_slot_row *row, uint64_t open_seq, uint32_t raw_bytes, uint32_t size, uint32_t next
    ) noexcept
    void slot_offer "cyp_slot_offer"(cyp_slot_row *last, uint32_t packed) noexcept
    uint64_t slot_take_back "cyp_slot_take_back"(cyp_slot_row *row) noexcept

    uint64_t slot_peek "cyp_slot_peek"(const cyp_slot_row *row) noexcept
    uint32_t slot_topic "cyp_slot_topic"(const cyp_slot_row *row) noexcept
    uint64_t slot_glance "cyp_slot_glance"(const cyp_slot_row *row) noexcept
    bint word_is_live "cyp_word_is_live"(uint64_t word, uint32_t generation) noexcept
    bint word_is_taken "cyp_word_is_taken"(uint64_t word, uint32_t generation) noexcept
    uint64_t slot_seal "cyp_slot_seal"(cyp_slot_row *row, bint head, uint32_t generation, uint64_t room) noexcept
    uint32_t slot_offered "cyp_slot_offered"(const cyp_slot_row *last) noexcept
    uint32_t slot_next "cyp_slot_next"(const cyp_slot_row *row) noexcept
    bint slot_hinted "cyp_slot_hinted"(const cyp_slot_row *row, uint64_t word, int64_t *max_timestamp) noexcept
    void slot_done "cyp_slot_done"(cyp_slot_row *row, uint32_t generation) noexcept
    uint64_t slot_revoke "cyp_slot_revoke"(cyp_slot_row *row) noexcept

    void control_end "cyp_control_end"(uint32_t *control, uint32_t why) noexcept
    bint may_commit "cyp_may_commit"(const uint32_t *control) noexcept
    bint may_open "cyp_may_open"(const uint32_t *control) noexcept

    void sent_mark "cyp_sent_mark"(uint32_t *sent, uint32_t generation) noexcept
    bint sent_is "cyp_sent_is"(const uint32_t *sent, uint32_t generation) noexcept
