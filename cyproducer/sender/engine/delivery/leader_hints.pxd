"""Declares the functions that collect the newer leaders that a Produce response names, see leader_hints.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from cyproducer.sender.engine.delivery.cursor cimport Cursor
from cyproducer.sender.engine.state.events cimport LeaderHint
from cyproducer.sender.engine.state.model cimport Core, Lane, Node


cdef LeaderHint read_leader(Cursor *cursor) noexcept nogil
cdef void note_leader(Core *core, Lane *lane, int16_t error, const LeaderHint *leader) noexcept nogil
cdef void report_leaders(Core *core, Node *node, const uint8_t *endpoints, uint32_t size) noexcept nogil
