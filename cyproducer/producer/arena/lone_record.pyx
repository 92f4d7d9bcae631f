"""Writes a record that cannot share a batch as a batch of its own, in as many chunks as it needs."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from cyproducer.producer.arena.append cimport announce
from cyproducer.producer.arena.arena cimport HAVE_ROOM, NEED_MEMORY, NEED_METADATA, NEED_SESSION, Arena
from cyproducer.producer.arena.scatter cimport Scatter, scatter_record
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport Batch
from cyproducer.record.encode cimport RecordView, record_size
from cyproducer.shm.protocol cimport store_relaxed
from cyproducer.shm.protocol cimport CRASHPOINT
from cyproducer.shm.protocol cimport CYP_NONE, CYP_OPEN, CYP_READY, CYP_SUBMIT_FULL, CYP_WORD_CONT, CYP_WORD_HEAD
from cyproducer.shm.pool cimport class_bytes
from cyproducer.shm.protocol cimport may_open, slot_commit, slot_hint, slot_open
from cyproducer.shm.protocol cimport word_make


cdef int write_alone(
    Arena arena, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, const uint8_t *packed,
    Py_ssize_t packed_bytes, Batch batch,
) except -1:
    """Write a record that cannot share a batch as a batch of its own. `packed`: compressed records, or NULL.

    Return a Room code. Raise MemoryError.
    """
    cdef Py_ssize_t size = record_size(0, 0, record)
    cdef Py_ssize_t count = 0, i
    cdef Scatter out
    cdef uint32_t *slots
    cdef uint32_t slot, first = CYP_NONE
    cdef int status
    if may_open(arena.control):
        first = arena._take_chunks(size)
    if first == CYP_NONE:
        return NEED_MEMORY
    slot = first
    while slot != CYP_NONE:
        count += 1
        slot = arena.slots[slot].next
    slots = <uint32_t *>calloc(count, sizeof(uint32_t))
    if slots == NULL:
        arena.give_back(first)
        raise MemoryError
    if topic.chains[partition].row != NULL:
        arena.close_chain(&topic.chains[partition], True)
    for i in range(count):
        slots[i] = first
        first = arena.slots[first].next
    status = _fill_rows(arena, topic, partition, timestamp, slots, count)
    if status != HAVE_ROOM:
        free(slots)
        return status
    out.chunks = arena.chunks
    out.slots = slots
    out.classes = arena.pool.chunk_class
    out.room = 0
    scatter_record(&out, record)
    CRASHPOINT(b"append.scattered")
    if packed != NULL:
        for i in range(1, count):
            arena.slots[slots[i - 1]].next = slots[i]
        arena.offer(slots[0], <uint32_t>size, packed, packed_bytes)
    if not _publish(arena, slots, count, size):
        status = NEED_SESSION
    else:
        CRASHPOINT(b"commit.alone")
        arena.add_pending(slots[0], batch, NULL)
        arena.note_former(&topic.chains[partition], slots[0])
        arena.records += 1
        arena.bytes += size
        store_relaxed(&arena.port.arena.records_sent, arena.records)
        announce(&arena.port, CYP_SUBMIT_FULL, slots[0], arena.slots[slots[0]].generation, 0)
    free(slots)
    return status


cdef int _fill_rows(
    Arena arena, Topic topic, int32_t partition, int64_t timestamp, const uint32_t *slots, Py_ssize_t count
) noexcept:
    """Fill the rows of a batch, and open its head. Return a Room code; with NEED_METADATA the chunks are free."""
    cdef Py_ssize_t i
    cdef int status
    arena.fill_row(slots[0], topic.id, partition, timestamp)
    status = arena.open_head(topic, slots[0])
    for i in range(1, count):
        arena.fill_row(slots[i], topic.id, partition, timestamp)
        if status == NEED_METADATA:
            arena.slots[slots[i - 1]].next = slots[i]
    if status == NEED_METADATA:
        arena.release(slots[0])
    return status


cdef bint _publish(Arena arena, const uint32_t *slots, Py_ssize_t count, Py_ssize_t size) noexcept:
    """Store the words of a written chain; that of the open head comes last and commits the batch. False if revoked."""
    cdef Py_ssize_t i
    cdef uint32_t slot, used, generation
    cdef uint32_t first = class_bytes(arena.pool.chunk_class[slots[0]])
    cdef uint64_t flags
    size -= first
    for i in range(1, count):
        slot = slots[i]
        arena.rows[slots[i - 1]].next = arena.slots[slots[i - 1]].next = slot
        used = <uint32_t>min(size, class_bytes(arena.pool.chunk_class[slot]))
        size -= used
        flags = CYP_WORD_CONT if i + 1 < count else 0
        generation = arena.slots[slot].generation
        if not slot_open(&arena.rows[slot], generation, word_make(CYP_READY, flags, generation, 0, used)):
            return False
    CRASHPOINT(b"commit.tail-published")
    slot = slots[0]
    generation = arena.slots[slot].generation
    slot_hint(&arena.rows[slot], 1, 0, False)  # fill_row has stored the timestamp
    flags = CYP_WORD_HEAD | (CYP_WORD_CONT if count > 1 else 0)
    used = <uint32_t>(first if count > 1 else first + size)
    # release: the whole chain is seen with its head
    return slot_commit(
        &arena.rows[slot], word_make(CYP_OPEN, CYP_WORD_HEAD, generation, 0, 0),
        word_make(CYP_READY, flags, generation, 1, used),
    )
