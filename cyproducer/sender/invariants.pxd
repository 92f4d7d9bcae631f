"""What holds between two turns of the loop."""

from cyproducer.sender.model cimport Core


cdef void check_core(Core *core) noexcept nogil
