"""What a former sender has left, taken over: see adopt.pyx."""

from cyproducer.sender.model cimport Core, FrontEnd


cdef object adopt_tables(Core *core)
cdef object adopt_front_end(Core *core, FrontEnd *front_end, bint ended)
cdef object adopt_work(Core *core)
