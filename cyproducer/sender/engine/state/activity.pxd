"""Declares the functions that track which front-ends the loop has to look at, see activity.pyx."""

from cyproducer.sender.engine.state.model cimport Core, FrontEnd
from libc.stdint cimport uint32_t, uint64_t


cdef int reserve_places(Core *core) except -1
cdef void activate(Core *core, FrontEnd *front_end) noexcept nogil
cdef void deactivate(Core *core, FrontEnd *front_end) noexcept nogil
cdef bint make_idle(Core *core, FrontEnd *front_end) noexcept nogil
cdef void note_deadline(Core *core, FrontEnd *front_end, uint64_t at_ns) noexcept nogil
cdef void forget_deadline(Core *core, FrontEnd *front_end) noexcept nogil
cdef FrontEnd *next_due(Core *core) noexcept nogil
cdef void note_outcomes(Core *core, FrontEnd *front_end) noexcept nogil
cdef FrontEnd *take_to_announce(Core *core) noexcept nogil
cdef void forget_outcomes(Core *core, FrontEnd *front_end) noexcept nogil
