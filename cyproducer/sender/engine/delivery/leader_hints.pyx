"""Collects the newer leaders that a broker names in a Produce response, and hands them to Python (KIP-951).

From version 10 on, a broker that does not lead a partition says which broker leads it, and gives the addresses of these
brokers. cluster/metadata.py decides what is taken from that. The payload of the event has, as 32-bit integers in the
order of this machine, the number of hints, and then a row of the partition table, a leader and an epoch for each. The
rest is the field NodeEndpoints as it was sent.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from cyproducer.protocol.error_codes cimport ERROR_FENCED_LEADER_EPOCH, ERROR_NOT_LEADER_OR_FOLLOWER
from cyproducer.sender.engine.delivery.cursor cimport Cursor, get_int, take_tag
from cyproducer.sender.engine.state.events cimport EVENT_LEADERS, Event, LeaderHint
from cyproducer.sender.engine.state.model cimport Core, Lane, Node
from cyproducer.sender.engine.state.outcomes cimport push_event


cdef enum:
    CURRENT_LEADER_TAG = 0
    CURRENT_LEADER_BYTES = 8        # without the tagged fields at its end


cdef LeaderHint read_leader(Cursor *cursor) noexcept nogil:
    """Skip the tagged fields of a partition's result. Return the leader among them; its epoch is -1 if there is none.

    The row is not set.
    """
    cdef LeaderHint found
    cdef uint32_t length
    cdef Cursor field
    field.at = take_tag(cursor, CURRENT_LEADER_TAG, &length)
    field.end = field.at + length
    field.bad = False
    found.row = 0
    found.leader_id = -1
    found.leader_epoch = -1
    if length >= CURRENT_LEADER_BYTES:
        found.leader_id = <int32_t>get_int(&field, 4)
        found.leader_epoch = <int32_t>get_int(&field, 4)
    return found


cdef void note_leader(Core *core, Lane *lane, int16_t error, const LeaderHint *leader) noexcept nogil:
    """Note the leader that the broker names for the lane's partition, if its epoch is newer than the known one.

    Without memory nothing is noted: the metadata refresh that the error causes finds the leader too.
    """
    cdef LeaderHint *grown
    if error != ERROR_NOT_LEADER_OR_FOLLOWER and error != ERROR_FENCED_LEADER_EPOCH:
        return
    if leader.leader_id < 0 or leader.leader_epoch <= lane.leader_epoch:
        return
    if core.hint_count == core.hint_room:
        grown = <LeaderHint *>realloc(core.hints, 2 * (core.hint_room + 8) * sizeof(LeaderHint))
        if grown == NULL:
            return
        core.hints = grown
        core.hint_room = 2 * (core.hint_room + 8)
    core.hints[core.hint_count] = leader[0]
    core.hints[core.hint_count].row = lane.index
    core.hint_count += 1


cdef void report_leaders(Core *core, Node *node, const uint8_t *endpoints, uint32_t size) noexcept nogil:
    """Hand the noted leaders to Python. `endpoints` is the field NodeEndpoints, or NULL with a `size` of 0."""
    cdef uint32_t hints = core.hint_count * <uint32_t>sizeof(LeaderHint), before = core.event_count
    cdef uint8_t *payload
    cdef Event *event
    if core.hint_count == 0:
        return
    payload = <uint8_t *>malloc(sizeof(uint32_t) + hints + size)
    if payload == NULL:
        return
    memcpy(payload, &core.hint_count, sizeof(uint32_t))
    memcpy(payload + sizeof(uint32_t), core.hints, hints)
    if size:
        memcpy(payload + sizeof(uint32_t) + hints, endpoints, size)
    push_event(core, EVENT_LEADERS, node.index, 0, 0)
    if core.event_count == before:
        free(payload)
        return
    event = &core.events[before]
    event.payload = payload
    event.payload_length = <uint32_t>sizeof(uint32_t) + hints + size
