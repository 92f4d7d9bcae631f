"""Compression of the batches that a process fills by itself, on its own CPU.

The batch is closed and belongs to the sender as it is; its compressed records are an offer beside it, in a chunk of
their own that is freed with the batch. A sender that finds none (the batch's linger time was over before, there was no
room, it has taken over from another one) compresses the raw records itself. So nobody waits longer than without, and a
process that dies in between has lost nothing.
"""

import logging

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from cyproducer.producer.append cimport announce
from cyproducer.producer.arena cimport LEFT_MAX
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_BLOCK_BYTES, CYP_NONE, CYP_SUBMIT_FULL, CYP_UNIT_BYTES
from cyproducer.shm.pool cimport class_for
from cyproducer.shm.slot cimport sent_is, slot_glance, slot_offer
from cyproducer.shm.wake cimport sender_asleep
from cyproducer.shm.word cimport word_bytes

_log = logging.getLogger("cyproducer")


cdef int pack_closed(Session session) except -1:
    """Compresses the batch that was closed full, if there is one, and announces it.

    The GIL may be released, and a signal's handler may raise: whoever calls has committed nothing, and looks
    everything up again.
    """
    cdef uint32_t head = session.closed_head, generation = session.closed_generation
    if head == CYP_NONE:
        return 0
    session.closed_head = CYP_NONE
    try:
        if not _leave_to_sender(session, head, generation):
            _pack(session, head, generation)
    finally:
        # Other threads may have run: the sender may be gone, or be done with the batch.
        if _is_there(session, head, generation):
            session.given_head, session.given_generation = head, generation
            announce(&session.port, CYP_SUBMIT_FULL, head, generation, 0)
    return 0


cdef bint _leave_to_sender(Session session, uint32_t head, uint32_t generation) noexcept:
    """Does the sender lack work: has it sent what it was given last, or all but one of those that it was left?

    It goes on with that one while the owner fills and compresses the next. Asleep it may still have to be told.
    """
    cdef int i, place = -1, unsent = 0
    for i in range(LEFT_MAX):
        if _is_sent(session, session.left_heads[i], session.left_generations[i]):
            place = i
        else:
            unsent += 1
    if place < 0 or unsent == 0 and not sender_asleep(session.port.snapshot) \
            and not _is_sent(session, session.given_head, session.given_generation):
        return False
    session.left_heads[place], session.left_generations[place] = head, generation
    return True


cdef bint _is_sent(Session session, uint32_t head, uint32_t generation) noexcept:
    return head == CYP_NONE or not _is_there(session, head, generation) or sent_is(&session.sent[head], generation)


cdef bint _is_there(Session session, uint32_t head, uint32_t generation) noexcept:
    return session.sentinel[0] == session.token and session.slots[head].generation == generation


cdef int _pack(Session session, uint32_t head, uint32_t generation) except -1:
    cdef Py_buffer packed
    try:
        raw = _records(session, head)  # a copy: the arena may be given back while the library reads
        PyObject_GetBuffer(session.compress(raw), &packed, PyBUF_SIMPLE)
    except Exception as error:
        _log.error("the sender compresses from here on; it fails in this process: %s", error)
        session.compress = None
        return 0
    if packed.len < len(raw) and _is_there(session, head, generation):
        _offer(session, head, <uint32_t>len(raw), &packed)
    PyBuffer_Release(&packed)
    return 0


cdef bytes _records(Session session, uint32_t slot):
    parts = []
    while slot != CYP_NONE:
        parts.append(PyBytes_FromStringAndSize(
            <char *>session.chunks + <uint64_t>slot * CYP_UNIT_BYTES, word_bytes(slot_glance(&session.rows[slot]))
        ))
        slot = session.slots[slot].next
    return parts[0] if len(parts) == 1 else b"".join(parts)


cdef void _offer(Session session, uint32_t head, uint32_t raw_bytes, Py_buffer *packed) noexcept:
    """Into a chunk of its own, the last of the batch's list: it goes with the batch."""
    cdef uint32_t last = head, slot
    if packed.len > CYP_BLOCK_BYTES:
        return
    slot = session._alloc(class_for(packed.len), packed.len)
    if slot == CYP_NONE:
        return
    while session.slots[last].next != CYP_NONE:
        last = session.slots[last].next
    memcpy(session.chunks + <uint64_t>slot * CYP_UNIT_BYTES, packed.buf, packed.len)
    CRASHPOINT(b"pack.written")
    session.slots[slot].next = CYP_NONE
    session.slots[last].next = slot
    slot_offer(
        &session.rows[last], &session.rows[slot], slot, session.rows[head].open_seq, raw_bytes, <uint32_t>packed.len
    )
    CRASHPOINT(b"pack.offered")
