"""Declares the recovery of a predecessor's state in a takeover, see recovery.pyx."""

from cyproducer.sender.engine.state.model cimport Core, FrontEnd


cdef object restore_tables(Core *core)
cdef object restore_front_end(Core *core, FrontEnd *front_end, bint ended)
cdef object restore_work(Core *core)
