"""Keeps the results of batches that are sent in parts, until each batch has its outcome.

A row of the front-end's table of extents holds the result of some records (cyp_extent). The outcome of the batch leads
to its rows, and a row is free again once the front-end has taken that outcome. A batch is split only if there are rows
for the results of all its parts: they are promised to it. So the sender never waits for a front-end, and one that takes
no outcomes can only prevent the splitting of its own batches.

A row is filled before the entry of its part is freed. So a successor finds the result of each record of a split batch
in an entry or in a row.
"""

from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from cyproducer.sender.engine.state.model cimport ClientBatch, FrontEnd
from cyproducer.shm.atomics cimport store_release32
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_EXTENT_FILLED, CYP_EXTENTS_MAX, CYP_TEXTS, cyp_extent
from cyproducer.shm.ring cimport extent_fill, extent_free, extent_lengthen, outcomes_taken


cdef bint promise_extents(ClientBatch *batch, uint32_t count) noexcept nogil:
    """Promise `count` more rows to the batch. Return False if that many are not free."""
    cdef FrontEnd *front_end = batch.front_end
    if front_end.detached:
        return True  # it gets no outcomes
    if front_end.extent_until == NULL and not _allocate(front_end):
        return False
    if front_end.free_extent_count < front_end.extents_promised + count:
        _reclaim(front_end)
    if front_end.free_extent_count < front_end.extents_promised + count:
        return False
    batch.promised += count
    front_end.extents_promised += count
    return True


cdef bint _allocate(FrontEnd *front_end) noexcept nogil:
    """Allocate the private tables for the rows, all of them free. Return False without memory."""
    cdef uint32_t index
    front_end.extent_until = <uint64_t *>calloc(CYP_EXTENTS_MAX, sizeof(uint64_t))
    front_end.free_extents = <uint32_t *>malloc(CYP_EXTENTS_MAX * sizeof(uint32_t))
    if front_end.extent_until == NULL or front_end.free_extents == NULL:
        free(front_end.extent_until)
        free(front_end.free_extents)
        front_end.extent_until = NULL
        front_end.free_extents = NULL
        return False
    for index in range(CYP_EXTENTS_MAX):
        front_end.free_extents[index] = CYP_EXTENTS_MAX - 1 - index
    front_end.free_extent_count = CYP_EXTENTS_MAX
    return True


cdef void _reclaim(FrontEnd *front_end) noexcept nogil:
    """Free the rows that the front-end has read. If it says so wrongly, only its own results are spoiled."""
    cdef uint64_t head = min(outcomes_taken(&front_end.header.outcome_head), front_end.outcome_tail)
    cdef uint32_t index
    for index in range(front_end.outcomes_header.extents_used):
        if front_end.extent_until[index] and front_end.extent_until[index] <= head:
            extent_free(&front_end.extents[index])
            front_end.extent_until[index] = 0
            front_end.free_extents[front_end.free_extent_count] = index
            front_end.free_extent_count += 1


cdef uint32_t extents_in_use(FrontEnd *front_end) noexcept nogil:
    """Return how many rows have a result that the front-end has not taken, or are promised."""
    if front_end.extent_until == NULL or front_end.detached:
        return 0
    _reclaim(front_end)
    return CYP_EXTENTS_MAX - front_end.free_extent_count + front_end.extents_promised


cdef bint _continues(const cyp_extent *row, const cyp_extent *filled) noexcept nogil:
    """Return whether `filled` is the same result for the records that follow those of the row."""
    if row.error or filled.error or row.first + row.count != filled.first or row.append_time != filled.append_time:
        return False
    if row.base_offset < 0 or filled.base_offset < 0:
        return row.base_offset < 0 and filled.base_offset < 0
    return row.base_offset + row.count == filled.base_offset


cdef bint is_covered(ClientBatch *batch, uint32_t first, uint32_t count) noexcept nogil:
    """Return whether a row of the batch has these records: the sender was killed after it had filled that row."""
    cdef uint32_t at = batch.extents
    cdef const cyp_extent *row
    while at:
        row = &batch.front_end.extents[at - 1]
        if row.first <= first and first + count <= row.first + row.count:
            return True
        at = row.next
    return False


cdef cyp_extent *fill_extent(ClientBatch *batch, const cyp_extent *filled) noexcept nogil:
    """Store the result of some records of a split batch, in a row that was promised to it.

    Return a new row, to which the caller may add a text; NULL if no row was filled for these records alone.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_extent *row
    cdef cyp_extent linked
    cdef uint32_t index
    if front_end.published != NULL and is_covered(batch, filled.first, filled.count):
        return NULL
    if front_end.detached or batch.reported:
        batch.settled += filled.count
        return NULL
    if batch.promised == 0:
        return NULL  # only if a front-end has changed its batch before a takeover; the records end as unknown
    batch.settled += filled.count
    batch.promised -= 1
    front_end.extents_promised -= 1
    if batch.extents:
        row = &front_end.extents[batch.extents - 1]
        if _continues(row, filled):
            extent_lengthen(row, row.count + filled.count)
            CRASHPOINT(b"extent.lengthened")
            return NULL
    front_end.free_extent_count -= 1
    index = front_end.free_extents[front_end.free_extent_count]
    if index >= front_end.outcomes_header.extents_used:
        store_release32(&front_end.outcomes_header.extents_used, index + 1)  # before the row: a successor looks for it
    linked = filled[0]
    linked.slot = batch.slot
    linked.generation = batch.generation
    linked.next = batch.extents
    front_end.extent_until[index] = UINT64_MAX
    extent_fill(&front_end.extents[index], &linked)
    CRASHPOINT(b"extent.filled")
    batch.extents = index + 1
    return &front_end.extents[index]


cdef void extents_are_published(ClientBatch *batch, uint64_t position) noexcept nogil:
    """Note that the outcome before `position` leads to the batch's rows: then they and their texts become free."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t at = batch.extents
    cdef cyp_extent *row
    while at:
        row = &front_end.extents[at - 1]
        front_end.extent_until[at - 1] = position
        if row.text:
            front_end.text_until[row.text - 1] = position
        at = row.next
    batch.extents = 0


cdef void end_promise(ClientBatch *batch) noexcept nogil:
    """Take back the rows that were promised to the batch and not filled."""
    batch.front_end.extents_promised -= batch.promised
    batch.promised = 0


# ---------------------------------------------------------------- takeover


cdef object restore_extents(FrontEnd *front_end):
    """Find the rows that the predecessor has filled. Raise MemoryError."""
    cdef uint32_t index, used = min(front_end.outcomes_header.extents_used, <uint32_t>CYP_EXTENTS_MAX)
    if used == 0:
        return
    if not _allocate(front_end):
        raise MemoryError
    front_end.free_extent_count = 0
    for index in range(CYP_EXTENTS_MAX - 1, -1, -1):
        if index < used and front_end.extents[index].state == CYP_EXTENT_FILLED:
            front_end.extent_until[index] = UINT64_MAX
            if 0 < front_end.extents[index].text <= CYP_TEXTS:
                front_end.text_until[front_end.extents[index].text - 1] = UINT64_MAX
        else:
            front_end.free_extents[front_end.free_extent_count] = index
            front_end.free_extent_count += 1


cdef void find_extents(ClientBatch *batch) noexcept nogil:
    """Link the rows of a batch that the predecessor has begun to send in parts, and that has no outcome."""
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_extent *row
    cdef uint32_t index
    if front_end.extent_until == NULL:
        return
    for index in range(front_end.outcomes_header.extents_used):
        row = &front_end.extents[index]
        if front_end.extent_until[index] and row.slot == batch.slot and row.generation == batch.generation:
            row.next = batch.extents
            batch.extents = index + 1
            batch.settled += row.count


cdef void settle_extents(FrontEnd *front_end) noexcept nogil:
    """Let the rows of batches that have an outcome become free once the front-end has taken all published outcomes."""
    cdef uint32_t index
    cdef cyp_extent *row
    cdef ClientBatch *batch
    if front_end.extent_until == NULL:
        return
    for index in range(front_end.outcomes_header.extents_used):
        row = &front_end.extents[index]
        if front_end.extent_until[index] == 0 or row.slot >= front_end.slot_count:
            continue
        batch = &front_end.batches[row.slot]
        if not batch.split or batch.reported or batch.generation != row.generation:
            front_end.extent_until[index] = max(front_end.outcome_tail, <uint64_t>1)
            if 0 < row.text <= CYP_TEXTS:
                front_end.text_until[row.text - 1] = front_end.outcome_tail
