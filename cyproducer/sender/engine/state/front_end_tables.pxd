"""Declares the private tables of a front-end, see front_end_tables.pyx."""

from cyproducer.sender.engine.state.model cimport Core, FrontEnd
from cyproducer.shm.geometry cimport FrontEndGeometry
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef object check_arena(int fd, uint32_t slot_count)
cdef FrontEnd *new_front_end(uint32_t slot_count, dict settings) except NULL
cdef void describe_outcomes(FrontEnd *front_end, FrontEndGeometry *geometry) noexcept nogil
cdef uint32_t reserve_front_end(Core *core) except? 0xffffffff
cdef void list_front_end(Core *core, FrontEnd *front_end) noexcept nogil
cdef void free_front_end(FrontEnd *front_end) noexcept nogil
cdef uint64_t free_tables(FrontEnd *front_end, uint64_t most) noexcept nogil
cdef void lay_out(
    FrontEnd *front_end, FrontEndGeometry *geometry, int arena_fd, uint8_t *arena, uint8_t *outcomes
) noexcept nogil
cdef void end_front_end(Core *core, FrontEnd *front_end) noexcept nogil
