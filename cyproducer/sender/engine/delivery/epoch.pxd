"""Declares drain-then-bump: how a lane continues in a higher producer epoch, see epoch.pyx."""

from cyproducer.sender.engine.state.model cimport Core, Lane, WireBatch


cdef bint settle_epoch(Core *core, Lane *lane) noexcept nogil
cdef WireBatch *next_to_settle(Lane *lane) noexcept nogil
