"""Compression of the batches that a process fills by itself, on its own CPU.

The batch is closed and belongs to the sender as it is; its compressed records are an offer beside it, in chunks of
their own that are freed with the batch. A sender that finds none (the batch's linger time was over before, there was no
room, it has taken over from another one) compresses the raw records itself. So nobody waits longer than without, and a
process that dies in between has lost nothing. A record that is a batch of its own is compressed before it is written.

What takes long is not left to the sender, where others wait for it.
"""

import logging

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.producer.append cimport announce
from cyproducer.producer.arena cimport LEFT_MAX
from cyproducer.record.encode cimport HeaderView, put_record, record_size
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.layout cimport CYP_NONE, CYP_SUBMIT_FULL, CYP_UNIT_BYTES
from cyproducer.shm.slot cimport sent_is, slot_glance
from cyproducer.shm.wake cimport sender_asleep
from cyproducer.shm.word cimport word_bytes

_log = logging.getLogger("cyproducer")

cdef enum:
    LEFT_NS = 5000000           # the sender is left what is compressed faster


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
    if not 0 < session.compress_ns < LEFT_NS:
        return False
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
    cdef const uint8_t[::1] packed
    raw = _records(session, head)  # a copy: the arena may be given back while the library reads
    packed = _compressed(session, raw)
    if packed is not None and _is_there(session, head, generation):
        session.offer(head, <uint32_t>len(raw), &packed[0], packed.shape[0])
    return 0


cdef object pack_alone(
    Session session, const uint8_t *key, Py_ssize_t key_size, const uint8_t *value, Py_ssize_t value_size,
    const HeaderView *headers, int header_count,
):
    """A record that is a batch of its own, compressed before it is written; None: as it is, or by the sender.

    The GIL may be released, and a signal's handler may raise.
    """
    raw = PyBytes_FromStringAndSize(NULL, record_size(0, 0, key_size, value_size, headers, header_count))
    put_record(
        <uint8_t *>PyBytes_AS_STRING(raw), 0, 0, key, key_size, value, value_size, headers, header_count
    )
    return _compressed(session, raw)


cdef object _compressed(Session session, bytes raw):
    """A buffer; None: the records do not become smaller, or compressing fails here."""
    cdef uint64_t began = monotonic_ns()
    try:
        packed = memoryview(session.compress(raw))
    except Exception as error:
        _log.error("the sender compresses from here on; it fails in this process: %s", error)
        session.compress = None
        return None
    session.compress_ns = monotonic_ns() - began
    return packed if 0 < packed.nbytes < len(raw) else None


cdef bytes _records(Session session, uint32_t slot):
    parts = []
    while slot != CYP_NONE:
        parts.append(PyBytes_FromStringAndSize(
            <char *>session.chunks + <uint64_t>slot * CYP_UNIT_BYTES, word_bytes(slot_glance(&session.rows[slot]))
        ))
        slot = session.slots[slot].next
    return parts[0] if len(parts) == 1 else b"".join(parts)
