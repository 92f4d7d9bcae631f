"""Queues, in a takeover, the committed batches of a front-end that belong to no entry.

The other part of a takeover (recovery.pyx) has restored the entries and their batches before.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort

from cyproducer.sender.engine.intake.accumulator cimport admit, next_used, report_violation, scan, seal
from cyproducer.sender.engine.state.breadcrumb cimport touch
from cyproducer.sender.engine.state.events cimport VIOLATION_CHAIN
from cyproducer.sender.engine.state.metrics cimport keep_totals
from cyproducer.sender.engine.state.model cimport BATCH_DUE, BATCH_LINGERING, BATCH_NONE, ClientBatch, Core, FrontEnd
from cyproducer.sender.engine.state.outcomes cimport sort_by_age
from cyproducer.sender.engine.state.written cimport row_is_written
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_CONTROL_DETACHED, CYP_OPEN, CYP_OUTCOME_RELEASE
from cyproducer.shm.slot cimport control_end, slot_done, slot_next, slot_peek, word_is_live, word_is_taken
from cyproducer.shm.word cimport word_continues, word_count, word_generation, word_state


cdef int by_rank(const void *a, const void *b) noexcept nogil:
    cdef const Ranked *left = <const Ranked *>a
    cdef const Ranked *right = <const Ranked *>b
    if left.rank != right.rank:
        return 1 if left.rank > right.rank else -1
    if left.stale != right.stale:
        return 1 if left.stale else -1
    if left.sequence != right.sequence:
        return 1 if left.sequence > right.sequence else -1
    return (left.start > right.start) - (left.start < right.start)


cdef object restore_slots(Core *core, FrontEnd *front_end):
    """Queue committed batches that are in no entry, by open_seq. If the front-end has ended, revoke its slots.

    The front-end may go on meanwhile. If it opens two batches, one pass over the table can find the second and miss the
    first. So a first pass finds the highest open_seq. A second pass takes all batches up to that. Newer ones are
    submitted as hints, which were not read yet. Raise MemoryError.
    """
    cdef Ranked *found = <Ranked *>calloc(front_end.slot_count, sizeof(Ranked))
    cdef uint32_t slot, count = 0, at, first = 0, end = 0
    cdef uint64_t youngest = 0, steps = 0
    if found == NULL:
        raise MemoryError
    if front_end.detached:  # the predecessor may have died before it told the front-end
        control_end(&front_end.outcomes_header.control, CYP_CONTROL_DETACHED)
    while next_used(front_end, &first, &end):
        for slot in range(first, end):
            touch(core, front_end, slot)
            if _is_unassigned(front_end, slot):
                youngest = max(youngest, front_end.rows[slot].open_seq)
        first = end
    first = 0
    while next_used(front_end, &first, &end):
        for slot in range(first, end):
            touch(core, front_end, slot)
            if _is_unassigned(front_end, slot) and front_end.rows[slot].open_seq <= youngest:
                found[count].rank = front_end.rows[slot].open_seq
                found[count].index = slot
                count += 1
        first = end
    qsort(found, count, sizeof(Ranked), by_rank)
    for at in range(count):
        if front_end.violation:
            break
        _restore_slot(core, front_end, <uint32_t>found[at].index, &steps)
        CRASHPOINT(b"recover.batch-queued")
    free(found)
    if front_end.detached and not front_end.violation:
        scan(core, front_end)
    if front_end.detached:
        keep_totals(core, front_end)
    front_end.outcomes_header.submit_head = front_end.submit_head
    sort_by_age(core, front_end)


cdef bint _is_unassigned(FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Return whether a batch starts here that holds records, is not released, and was not found in an entry."""
    cdef uint64_t word = slot_peek(&front_end.rows[slot])
    cdef uint32_t generation = word_generation(word)
    if front_end.batches[slot].state != BATCH_NONE:
        return False
    if not word_is_live(word, generation) and not word_is_taken(word, generation):
        return False
    if published_flags(front_end, slot, word_generation(word)) & CYP_OUTCOME_RELEASE:
        slot_done(&front_end.rows[slot], word_generation(word))
        return False
    return word_state(word) != CYP_OPEN or word_count(word) > 0 or word_continues(word)


cdef void _restore_slot(Core *core, FrontEnd *front_end, uint32_t slot, uint64_t *steps) noexcept nogil:
    """Queue one committed batch, and seal it if its front-end has closed it."""
    cdef uint64_t word = slot_peek(&front_end.rows[slot])
    cdef ClientBatch *batch
    touch(core, front_end, slot)
    batch = admit(core, front_end, slot, word_generation(word), True)
    # an open batch goes on lingering; a closed one is sealed here: the predecessor may have read its FULL hint
    if batch != NULL and (batch.state == BATCH_LINGERING or batch.state == BATCH_DUE) \
            and not _is_open_slot(front_end, slot, steps):
        seal(core, batch)
    if steps[0] > 2 * <uint64_t>front_end.slot_count:
        report_violation(core, front_end, VIOLATION_CHAIN)


cdef bint _is_open_slot(FrontEnd *front_end, uint32_t slot, uint64_t *steps) noexcept nogil:
    """Return whether the front-end may still add to the chain that starts here.

    `steps` counts the chunks of all chains. A chunk is in one chain, or in two if it was used again meanwhile. If there
    are more steps than that, chains lead into each other.
    """
    cdef uint64_t word
    while steps[0] <= 2 * <uint64_t>front_end.slot_count:
        steps[0] += 1
        word = slot_peek(&front_end.rows[slot])
        if word_state(word) == CYP_OPEN:
            return True
        if not word_continues(word):
            return False
        slot = slot_next(&front_end.rows[slot])
        if slot >= front_end.slot_count or not row_is_written(front_end, slot):
            return False
    return False
